// The pass over the logits, groups shared over the threads. The contract is in logits.h.
#include "kernels/search/logits.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/groups.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace {

template <typename T>
void scan_group(const T* row, int vocab, int g, float* group_max, float* group_sum) {
  cpu::scan(cpu::Group(row, vocab, g), group_max[g], group_sum[g]);
}

// A row, and the sums over its groups.
template <typename T>
struct Row {
  T* logits;         // [V]
  float* group_max;  // [G]
  float* group_sum;  // [G]
  float& lse;
  int vocab;

  int groups() const { return groups_of(vocab); }

  void write(const int32_t* ids, int count, T value) const {
    for (int i = 0; i < count; ++i) logits[ids[i]] = value;
    for (int i = 0; i < count; ++i) {
      scan_group(logits, vocab, ids[i] / kGroup, group_max, group_sum);
    }
  }
  void force(const int32_t* ids, int count) const {
    std::fill(logits, logits + vocab, -INFINITY);
    std::fill(group_max, group_max + groups(), -INFINITY);
    std::fill(group_sum, group_sum + groups(), 0.0f);
    write(ids, count, 0.0f);
    if (std::isfinite(lse)) lse = 0.0f;
  }
  void renormalize() const {
    const float left = cpu::log_sum_exp(group_max, group_sum, groups());
    if (std::isfinite(lse) && std::isfinite(left)) lse = left;
  }
};

template <typename T>
void constrain(const Row<T>& row, const SentenceConfig& config, const int32_t* words, int step) {
  const auto ban = [&](Span ids) { row.write(words + ids.begin, ids.count, -INFINITY); };
  ban(config.banned);
  if (step <= config.min_new) ban(config.eos);
  if (config.forces_first(step)) row.force(&config.forced_first, 1);
  if (config.forces_last(step)) {
    row.force(words + config.forced_last.begin, config.forced_last.count);
  }
  if (config.renormalize) row.renormalize();
}

}  // namespace

template <typename T, cpu::Isa isa>
void scan_logits(cpu::Stream<isa>& stream, const ScanLogitsParams<T>& p) {
  const int groups = groups_of(p.vocab);
  const cpu::Range mine = stream.share(p.rows * groups);
  for (int i = mine.begin; i < mine.end; ++i) {
    const int64_t row = i / groups;
    scan_group(p.logits + row * p.vocab, p.vocab, i % groups, p.group_max + row * groups,
               p.group_sum + row * groups);
  }
  stream.barrier();
  if (p.lse == nullptr) return;
  const cpu::Range rows = stream.share(p.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    p.lse[row] = cpu::log_sum_exp(p.group_max + row * groups, p.group_sum + row * groups, groups);
  }
  stream.barrier();
}

template <typename T, cpu::Isa isa>
void constrain_logits(cpu::Stream<isa>& stream, const ConstrainLogitsParams<T>& p) {
  const int64_t groups = groups_of(p.vocab);
  const cpu::Range rows = stream.share(p.state->active_count * p.beams);
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const Row<T> row = {p.logits + i * p.vocab, p.group_max + i * groups, p.group_sum + i * groups,
                        p.lse[i], p.vocab};
    const ActiveSentence& sentence = p.active[i / p.beams];
    constrain(row, p.config.sentences[sentence.id], p.config.words, sentence.number);
  }
  stream.barrier();
}

template void scan_logits(cpu::Stream<cpu::Isa::DECODING_ISA>&, const ScanLogitsParams<float>&);
template void constrain_logits(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                               const ConstrainLogitsParams<float>&);

}  // namespace decoding
