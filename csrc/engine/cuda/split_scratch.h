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

// That of classes which attend side by side: a part for each row of a deterministic session's, else
// for each class.
struct ClassSplitScratch {
  bool by_row;
  int64_t parts;
  SplitScratch part;

  // all: the rows of all classes, as sentences of one row.
  ClassSplitScratch(const ModelSpec& spec, Limits all, int classes, bool deterministic)
      : by_row(deterministic), parts(deterministic ? all.batch : classes) {
    all.batch = 1;
    part = split_scratch(spec, all, deterministic);
  }

  SplitScratch all() const { return {parts * part.histories, parts * part.queries}; }

  // Moves a workspace of all to that of a class whose rows begin with `first`.
  template <typename T>
  void move(Workspace<T>& w, int index, int64_t first, int head_dim) const {
    const int64_t place = by_row ? first : index;
    w.split_counters += place * part.histories;
    w.partial += place * part.queries * (head_dim + 2);
  }
};

template <typename T>
void take_split_scratch(Arena& arena, const SplitScratch& size, int head_dim, Workspace<T>& w) {
  w.split_counters = arena.take<int32_t>("attention_split_counters", {size.histories});
  w.partial = arena.take<float>("attention_partial", {size.queries, head_dim + 2});
}

}  // namespace decoding
