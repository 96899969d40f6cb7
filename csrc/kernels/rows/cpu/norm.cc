#include "kernels/rows/norm.h"

#include "kernels/cpu/normalize.h"
#include "kernels/cpu/stream.h"
#include "kernels/rows/cpu/dropout_factors.h"
#include "kernels/rows/cpu/weight.h"

namespace decoding {
namespace cpu {
namespace {

// Writes the row of dropout(x + bias) + residual that begins at `at`, rounded to T.
template <typename T>
void add_up(const TrainingNormParams<T>& p, size_t at) {
  for_dropped_vectors<T>(p.dropout, at, p.cols, [&](int c, Lanes<T> factors, auto... count) {
    Lanes<T> sum = (load(p.x + at + c, count...) + load(p.bias, 0, c, count...)) * factors;
    if (p.residual != nullptr) sum += load(p.residual + at + c, count...);
    store(p.sum + at + c, sum, count...);
  });
}

template <typename T>
void training_row(const TrainingNormParams<T>& p, int r) {
  const size_t at = static_cast<size_t>(r) * p.cols;
  if (p.sum != nullptr) add_up(p, at);
  const T* s = (p.sum != nullptr ? p.sum : p.x) + at;
  const auto row = moments(s, p.cols, static_cast<Real<T>>(p.eps), p.rms);
  if (p.mean != nullptr) p.mean[r] = row.mean;
  if (p.rstd != nullptr) p.rstd[r] = row.rstd;
  for_vectors(p.cols, [&](int c, auto... count) {
    const Lanes<T> z = (load(s + c, count...) - broadcast(row.mean)) * broadcast(row.rstd);
    const Lanes<T> gamma = load(p.gamma, 1, c, count...), beta = load(p.beta, 0, c, count...);
    store(p.y + at + c, fma(z, gamma, beta), count...);
  });
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void layer_norm(cpu::Stream<isa>& stream, const LayerNormParams<T>& p) {
  const cpu::Range rows = stream.share(p.rows);
  for (int r = rows.begin; r < rows.end; ++r) {
    const size_t at = static_cast<size_t>(r) * p.cols;
    const float* residual = p.residual != nullptr ? p.residual + at : nullptr;
    cpu::normalize(p.x + at, p.norm, p.y + at, p.cols, residual);
  }
  stream.barrier();
}

template <typename T, cpu::Isa isa>
void training_norm(cpu::Stream<isa>& stream, const TrainingNormParams<T>& p) {
  const cpu::Range rows = stream.share(p.rows);
  for (int r = rows.begin; r < rows.end; ++r) cpu::training_row(p, r);
  stream.barrier();
}

template void layer_norm(cpu::Stream<cpu::Isa::DECODING_ISA>&, const LayerNormParams<float>&);
#define INSTANTIATE(T) \
  template void training_norm(cpu::Stream<cpu::Isa::DECODING_ISA>&, const TrainingNormParams<T>&);
DECODING_FOR_ELEMENTS(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
