// The scratch of decode attention, where blocks that share a long history leave their parts.
#pragma once

#include <algorithm>

#include "engine/model/workspace.h"
#include "kernels/attention/decode.h"

namespace decoding {

constexpr int kMostBeams = 4;  // whose histories a block reads

// What steps of the limits need. A deterministic session splits every history that is long enough,
// however many there are; others split those of few rows, for speed.
inline SplitScratch split_scratch(const ModelSpec& spec, const Limits& limits, bool deterministic) {
  if (!deterministic) return {};
  const StackSpec& d = spec.decoder;
  const int64_t longest =
      int64_t{kPageSize} * shared_pages_of(spec, limits) + kMostBeams * history_of(spec, limits);
  SplitScratch most{0, 0};
  for (size_t i = 0; i < d.heads.size(); ++i) {
    const auto layer = SplitScratch::for_all(limits.rows(), d.heads[i], d.kv_heads[i], longest);
    most.histories = std::max(most.histories, layer.histories);
    most.queries = std::max(most.queries, layer.queries);
  }
  return most;
}

template <typename T>
void take_split_scratch(Arena& arena, const SplitScratch& size, int head_dim, Workspace<T>& w) {
  w.split_counters = arena.take<int32_t>("attention_split_counters", {size.histories});
  w.partial = arena.take<float>("attention_partial", {size.queries, head_dim + 2});
}

}  // namespace decoding
