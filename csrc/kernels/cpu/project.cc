// Groups are the outer loop and rows the inner one, as panels are in linear.cc: a group is two of
// them. The contract is in project.h.
#include "kernels/project.h"

#include <algorithm>

#include "kernels/cpu/groups.h"
#include "kernels/cpu/operand.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace cpu {
namespace {

// The best of a row so far, best first; what comes later has a higher id.
class Best {
 public:
  Best(Candidate* list, int k) : list_(list), k_(k) {}

  void clear() { std::fill_n(list_, k_, Candidate{-INFINITY, -1}); }
  // What does not beat it stays out.
  float bound() const { return list_[k_ - 1].value; }

  void insert(const Candidate& candidate) {
    Candidate* last = list_ + k_ - 1;
    Candidate* place = std::upper_bound(list_, last, candidate, Better());
    std::move_backward(place, last, last + 1);
    *place = candidate;
  }

 private:
  Candidate* list_;
  const int k_;
};

// The logits of group g, for the rows of x. logits: [rows, kGroup].
template <Isa isa>
void multiply_group(const ProjectParams<float>& p, DotKind kind, int g, const Operand& x, int rows,
                    float* logits) {
  static_assert(kGroup % kPanel == 0);
  alignas(64) float sums[kRowBlock * kPanel];
  const int end = std::min((g + 1) * kGroup, p.weight.outputs);
  for (int column = g * kGroup; column < end; column += kPanel, logits += kPanel) {
    multiply_panel<isa>(kind, p.weight, column / kPanel, x, rows, sums);
    for (int r = 0; r < rows; ++r) {
      for_vectors(std::min(kPanel, end - column), [&](int c, auto... count) {
        Floats y = load(sums + r * kPanel + c, count...);
        if (p.bias != nullptr) y += load(p.bias + column + c, count...);
        store(logits + r * kGroup + c, y, count...);
      });
    }
  }
}

// What one thread makes of its groups.
class Search {
 public:
  Search(const ProjectParams<float>& p, int rank)
      : p_(p), groups_(groups_of(p.weight.outputs)), seen_(p.seen + int64_t{rank} * p.rows * p.k) {
    for (int row = 0; row < p.rows; ++row) best(row).clear();
  }

  // logits: of rows [first, first + rows) and group g, [rows, kGroup]; they are spoilt.
  void take(int g, int first, int rows, float* logits) {
    const int column = g * kGroup, columns = std::min(kGroup, p_.weight.outputs - column);
    const int32_t* end = p_.banned + p_.banned_count;
    const Banned banned = {std::lower_bound(p_.banned, end, column),
                           std::lower_bound(p_.banned, end, column + columns)};
    for (int64_t row = first; row < first + rows; ++row, logits += kGroup) {
      float& group_max = p_.group_max[row * groups_ + g];
      scan(Group(logits, columns, 0), group_max, p_.group_sum[row * groups_ + g]);
      Best best = this->best(row);
      if (!(group_max > best.bound())) continue;
      for (const int32_t* id = banned.begin; id < banned.end; ++id)
        logits[*id - column] = -INFINITY;
      for (int c = 0; c < columns; ++c) {
        if (logits[c] > best.bound()) best.insert({logits[c], column + c});
      }
    }
  }

 private:
  struct Banned {
    const int32_t *begin, *end;
  };

  Best best(int64_t row) const { return {seen_ + row * p_.k, p_.k}; }

  const ProjectParams<float>& p_;
  const int groups_;
  Candidate* seen_;  // [rows, k]
};

// The k best of what all threads have seen, whose groups follow one another.
void merge(const ProjectParams<float>& p, int threads, int64_t row) {
  Candidate* found = p.best + row * p.k;
  Best best(found, p.k);
  std::copy_n(p.seen + row * p.k, p.k, found);
  for (int thread = 1; thread < threads; ++thread) {
    const Candidate* next = p.seen + (int64_t{thread} * p.rows + row) * p.k;
    for (int c = 0; c < p.k && next[c].value > best.bound(); ++c) best.insert(next[c]);
  }
  if (p.tokens == nullptr) return;
  for (int c = 0; c < p.k && found[c].id >= 0; ++c) found[c].id = p.tokens[found[c].id];
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void project(cpu::Stream<isa>& stream, const ProjectParams<T>& p) {
  const cpu::DotKind kind = cpu::dot_kind(p.weight.kind, stream.features());
  const LinearParams<T> product{.x = p.x,
                                .norm = p.norm,
                                .normed = p.normed,
                                .weight = p.weight,
                                .y = nullptr,
                                .scratch = p.scratch,
                                .rows = p.rows};
  const int groups = groups_of(p.weight.outputs);
  cpu::Search search(p, stream.rank());
  cpu::with_operand(stream, product, [&](const cpu::Operand& x, int first, int count) {
    const cpu::Range mine = stream.share(groups);
    for (int g = mine.begin; g < mine.end; ++g) {
      for (int row = 0; row < count; row += cpu::kRowBlock) {
        alignas(64) float logits[cpu::kRowBlock * kGroup];
        const int rows = std::min(cpu::kRowBlock, count - row);
        cpu::multiply_group<isa>(p, kind, g, x.from(row), rows, logits);
        search.take(g, first + row, rows, logits);
      }
    }
  });
  const cpu::Range mine = stream.share(p.rows);
  for (int64_t row = mine.begin; row < mine.end; ++row) {
    p.lse[row] = cpu::log_sum_exp(p.group_max + row * groups, p.group_sum + row * groups, groups);
    cpu::merge(p, stream.size(), row);
  }
  stream.barrier();
}

template void project(cpu::Stream<cpu::Isa::DECODING_ISA>&, const ProjectParams<float>&);

}  // namespace decoding
