// Parts of several requests' texts, side by side as a packed pass reads them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/encoder.h"
#include "engine/runner.h"

namespace decoding {

struct PackedParts {
  std::vector<int32_t> ids, positions, cells;  // of each token; cells: see StoreSharedParams
  std::vector<int32_t> offsets;                // [parts + 1]
  std::vector<int32_t> first, ends;            // [parts], positions
  std::vector<int32_t> pages;                  // [parts, longest_list], of their texts so far
  int longest = 0;
  bool whole = true;  // every text is read from its beginning

  // longest_list: of pages.
  PackedParts(std::span<const ReadPart> parts, const ModelSpec& spec, int longest_list)
      : offsets{0} {
    for (const ReadPart& part : parts) {
      append_tokens(part, spec);
      offsets.push_back(static_cast<int32_t>(ids.size()));
      first.push_back(part.first);
      ends.push_back(part.first + part.count);
      const auto& list = part.admitted->shared_pages;
      pages.insert(pages.end(), list.begin(), list.end());
      pages.resize(first.size() * longest_list);
      longest = std::max(longest, part.count);
      whole = whole && part.first == 0;
    }
  }

  // Where they lie in a session's inputs.
  PackedTokens tokens(const Inputs& in, const ModelSpec& spec) const {
    const int sentences = static_cast<int>(first.size()), count = static_cast<int>(ids.size());
    if (spec.encoder) {
      return {in.source.ids, in.source.positions, in.source.offsets, sentences, count, longest};
    }
    return {in.prompt_ids, in.prompt_positions, in.prompt_offsets, sentences, count, longest};
  }

 private:
  void append_tokens(const ReadPart& part, const ModelSpec& spec) {
    const RotaryTables tables = rotary_tables(spec.decoder);
    const RunnerRequest& given = *part.admitted->request;
    const int length = static_cast<int>(given.prompt.size());
    for (int i = part.first; i < part.first + part.count; ++i) {
      ids.push_back(spec.encoder ? given.source[i] : given.prompt[i]);
      positions.push_back(spec.encoder ? given.source_positions[i] : tables.pack(i, length));
      cells.push_back(part.admitted->shared_pages[i / kPageSize] * kPageSize + i % kPageSize);
    }
  }
};

// The inputs are in place.
template <typename Stream, typename T, typename C>
void read_parts(const Pass<Stream, T, C>& p, const PackedTokens& tokens, bool whole) {
  if (p.spec.encoder) {
    encode(p, tokens);
  } else {
    prompt_pass(p, tokens, whole ? nullptr : p.workspace.inputs.first_queries);
  }
}

}  // namespace decoding
