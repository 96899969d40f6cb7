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
void ban_tokens(cpu::Stream<isa>& stream, const BanTokensParams<T>& p) {
  const int groups = groups_of(p.vocab);
  const cpu::Range rows = stream.share(p.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    T* logits = p.logits + row * p.vocab;
    for (int i = 0; i < p.count; ++i) logits[p.ids[i]] = -INFINITY;
    for (int i = 0; i < p.count; ++i) {
      scan_group(logits, p.vocab, p.ids[i] / kGroup, p.group_max + row * groups,
                 p.group_sum + row * groups);
    }
  }
  stream.barrier();
}

template <typename T, cpu::Isa isa>
void force_tokens(cpu::Stream<isa>& stream, const ForceTokensParams<T>& p) {
  const int groups = groups_of(p.vocab);
  const cpu::Range rows = stream.share(p.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    T* logits = p.logits + row * p.vocab;
    std::fill(logits, logits + p.vocab, -INFINITY);
    std::fill(p.group_max + row * groups, p.group_max + (row + 1) * groups, -INFINITY);
    std::fill(p.group_sum + row * groups, p.group_sum + (row + 1) * groups, 0.0f);
    for (int i = 0; i < p.count; ++i) logits[p.ids[i]] = 0.0f;
    for (int i = 0; i < p.count; ++i) {
      scan_group(logits, p.vocab, p.ids[i] / kGroup, p.group_max + row * groups,
                 p.group_sum + row * groups);
    }
    if (std::isfinite(p.lse[row])) p.lse[row] = 0.0f;
  }
  stream.barrier();
}

template <cpu::Isa isa>
void renormalize(cpu::Stream<isa>& stream, const RenormalizeParams& p) {
  const int groups = groups_of(p.vocab);
  const cpu::Range rows = stream.share(p.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const float left =
        cpu::log_sum_exp(p.group_max + row * groups, p.group_sum + row * groups, groups);
    if (std::isfinite(p.lse[row]) && std::isfinite(left)) p.lse[row] = left;
  }
  stream.barrier();
}

template void scan_logits(cpu::Stream<cpu::Isa::DECODING_ISA>&, const ScanLogitsParams<float>&);
template void ban_tokens(cpu::Stream<cpu::Isa::DECODING_ISA>&, const BanTokensParams<float>&);
template void force_tokens(cpu::Stream<cpu::Isa::DECODING_ISA>&, const ForceTokensParams<float>&);
template void renormalize(cpu::Stream<cpu::Isa::DECODING_ISA>&, const RenormalizeParams&);

}  // namespace decoding
