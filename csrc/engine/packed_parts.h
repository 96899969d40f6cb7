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
  int longest = 0;

  PackedParts(std::span<const ReadPart> parts, const ModelSpec& spec) : offsets{0} {
    const RotaryTables tables = rotary_tables(spec.decoder);
    for (const auto& [admitted, first, count] : parts) {
      const RunnerRequest& given = *admitted->request;
      for (int i = first; i < first + count; ++i) {
        ids.push_back(spec.encoder ? given.source[i] : given.prompt[i]);
        positions.push_back(spec.encoder ? given.source_positions[i]
                                         : tables.pack(i, static_cast<int>(given.prompt.size())));
        cells.push_back(admitted->shared_pages[i / kPageSize] * kPageSize + i % kPageSize);
      }
      offsets.push_back(static_cast<int32_t>(ids.size()));
      longest = std::max(longest, count);
    }
  }

  // Where they lie in a session's inputs.
  PackedTokens tokens(const Inputs& in, const ModelSpec& spec) const {
    const int sentences = static_cast<int>(offsets.size()) - 1,
              count = static_cast<int>(ids.size());
    if (spec.encoder) {
      return {in.source.ids, in.source.positions, in.source.offsets, sentences, count, longest};
    }
    return {in.prompt_ids, in.prompt_positions, in.prompt_offsets, sentences, count, longest};
  }
};

}  // namespace decoding
