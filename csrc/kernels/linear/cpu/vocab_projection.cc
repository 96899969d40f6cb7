// Groups are the outer loop and rows the inner one, as panels are in linear.cc: a group is two of
// them. The contract is in vocab_projection.h.
#include "kernels/linear/vocab_projection.h"

#include <algorithm>

#include "kernels/cpu/groups.h"
#include "kernels/cpu/stream.h"
#include "kernels/linear/cpu/operand.h"
#include "kernels/linear/cpu/panel.h"
#include "kernels/linear/cpu/panel_sums.h"

namespace decoding {
namespace cpu {
namespace {

// The best of a row so far, best first; what comes later has a higher id.
class Best {
 public:
  Best(Candidate* list, int k) : list_(list), k_(k) {}

  void clear() { std::fill_n(list_, k_, Candidate{-INFINITY, -1}); }
  // Candidates that do not beat it stay out.
  float bound() const { return list_[k_ - 1].value; }

  // logits: [kGroup], of the outputs from `first` on.
  void take(const float* logits, int first) {
    for (int c = 0; c < kGroup; c += kLanes) {
      for_lanes(load(logits + c) > bound(), [&](int lane) {
        const int i = c + lane;
        if (logits[i] > bound()) insert({logits[i], first + i});
      });
    }
  }

  void insert(const Candidate& candidate) {
    Candidate* place = list_ + k_ - 1;
    for (; place > list_ && better(candidate, place[-1]); --place) *place = place[-1];
    *place = candidate;
  }

 private:
  Candidate* list_;
  const int k_;
};

// The logits of group g, for the rows of x; -inf after the last output. logits: [rows, kGroup].
template <Isa isa>
void multiply_group(const ProjectParams<float>& p, DotKind kind, int g, const Operand& x, int rows,
                    float* logits) {
  static_assert(kGroup % kPanel == 0);
  alignas(64) float sums[kRowBlock * kPanel];
  const int begin = g * kGroup, end = std::min(begin + kGroup, p.weight.outputs);
  if (end - begin < kGroup) std::fill_n(logits, rows * kGroup, -INFINITY);
  for (int column = begin; column < end; column += kPanel, logits += kPanel) {
    const auto finish = [&](int row, const PanelSums& part) {
      for_each_sum(part, [&](int r, int c, Floats y, auto... count) {
        if (p.bias != nullptr) y += load(p.bias + column + c, count...);
        store(logits + (row + r) * kGroup + c, y, count...);
      });
    };
    multiply_panel<isa>(kind, p.weight, column / kPanel, x, rows, sums, finish);
  }
}

// One thread's search through its groups.
class Search {
 public:
  Search(const ProjectParams<float>& p, int rank)
      : p_(p),
        groups_(groups_of(p.weight.outputs)),
        best_(p.thread_best + int64_t{rank} * p.rows * p.k) {
    for (int row = 0; row < p.rows; ++row) best(row).clear();
  }

  // logits: of group g and the rows from `first` on, [rows, kGroup]; they are spoilt.
  void take(int g, int first, int rows, float* logits) {
    const int column = g * kGroup;
    const int32_t *end = p_.banned + p_.banned_count,
                  *banned = std::lower_bound(p_.banned, end, column);
    for (int64_t row = first; row < first + rows; ++row, logits += kGroup) {
      float& group_max = p_.group_max[row * groups_ + g];
      scan(Group(logits, kGroup, 0), group_max, p_.group_sum[row * groups_ + g]);
      if (!(group_max > best(row).bound())) continue;
      for (const int32_t* id = banned; id < end && *id < column + kGroup; ++id) {
        logits[*id - column] = -INFINITY;
      }
      best(row).take(logits, column);
    }
  }

 private:
  Best best(int64_t row) const { return {best_ + row * p_.k, p_.k}; }

  const ProjectParams<float>& p_;
  const int groups_;
  Candidate* best_;  // [rows, k]
};

// The k best of what all threads have seen, whose groups follow one another.
void merge(const ProjectParams<float>& p, int threads, int64_t row) {
  Candidate* found = p.best + row * p.k;
  Best best(found, p.k);
  std::copy_n(p.thread_best + row * p.k, p.k, found);
  for (int thread = 1; thread < threads; ++thread) {
    const Candidate* next = p.thread_best + (int64_t{thread} * p.rows + row) * p.k;
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
