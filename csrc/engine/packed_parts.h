// Parts of several requests' texts, side by side as a packed pass reads them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/encoder.h"
#include "engine/runner.h"

namespace decoding {

// longest: most tokens of a text.
struct PackedSize {
  int texts, tokens, longest;

  auto operator<=>(const PackedSize&) const = default;
};

class PackedParts {
 public:
  // longest_list: of pages.
  PackedParts(std::span<const ReadPart> parts, const ModelSpec& spec, int longest_list)
      : offsets_{0} {
    for (const ReadPart& part : parts) {
      append_tokens(part, spec);
      offsets_.push_back(static_cast<int32_t>(ids_.size()));
      first_.push_back(part.first);
      ends_.push_back(part.first + part.count);
      const auto& list = part.admitted->shared_pages;
      pages_.insert(pages_.end(), list.begin(), list.end());
      pages_.resize(first_.size() * longest_list);
      size_.longest = std::max(size_.longest, part.count);
      whole_ = whole_ && part.first == 0;
    }
    size_.texts = static_cast<int>(first_.size());
    size_.tokens = static_cast<int>(ids_.size());
  }

  PackedSize size() const { return size_; }

  // Adds texts without tokens, and behind them tokens of no text, whose keys are not stored.
  void pad(const PackedSize& size) {
    offsets_.resize(size.texts + 1, offsets_.back());
    first_.resize(size.texts);
    ends_.resize(size.texts);
    ids_.resize(size.tokens);
    positions_.resize(size.tokens);
    cells_.resize(size.tokens, -1);
    size_ = size;
  }

  // Whether every text is read from its beginning.
  bool whole() const { return whole_; }

  // put(to, numbers) gets each array with its place in a runner's inputs. Returns the tokens there.
  template <typename Put>
  PackedTokens place(const Inputs& in, const ModelSpec& spec, Put&& put) const {
    const PackedTokens tokens = placed(in, spec);
    put(tokens.ids, ids_);
    put(tokens.positions, positions_);
    put(tokens.offsets, offsets_);
    put(in.shared_cells, cells_);
    put(in.shared_pages, pages_);
    put(in.shared_lengths, ends_);
    put(in.first_queries, first_);
    return tokens;
  }

 private:
  PackedTokens placed(const Inputs& in, const ModelSpec& spec) const {
    const auto [texts, tokens, longest] = size_;
    if (spec.encoder) {
      return {in.source.ids, in.source.positions, in.source.offsets, texts, tokens, longest};
    }
    return {in.prompt_ids, in.prompt_positions, in.prompt_offsets, texts, tokens, longest};
  }

  void append_tokens(const ReadPart& part, const ModelSpec& spec) {
    const RotaryTables tables = rotary_tables(spec.decoder);
    const RunnerRequest& given = *part.admitted->request;
    const int length = static_cast<int>(given.prompt.size());
    for (int i = part.first; i < part.first + part.count; ++i) {
      ids_.push_back(spec.encoder ? given.source[i] : given.prompt[i]);
      positions_.push_back(spec.encoder ? given.source_positions[i] : tables.pack(i, length));
      cells_.push_back(part.admitted->shared_pages[i / kPageSize] * kPageSize + i % kPageSize);
    }
  }

  std::vector<int32_t> ids_, positions_, cells_;  // of each token; cells: see StoreSharedParams
  std::vector<int32_t> offsets_;                  // [parts + 1]
  std::vector<int32_t> first_, ends_;             // [parts], positions
  std::vector<int32_t> pages_;                    // [parts, longest_list], of their texts so far
  PackedSize size_{};
  bool whole_ = true;
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
