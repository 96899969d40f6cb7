#include "kernels/rows/cross_entropy.h"

#include <cmath>

#include "kernels/cpu/stream.h"
#include "kernels/rows/cpu/log_sum.h"

namespace decoding {
namespace cpu {
namespace {

// The weights of columns from c on.
template <typename T>
Lanes<T> weights(const Targets<Real<T>>& targets, int c, auto... count) {
  if (targets.weight == nullptr) return broadcast(Real<T>(1));
  return load(targets.weight + c, count...);
}

// sum_c w[c] (x[c] - reference) of `cols` columns from `begin` on.
template <typename T>
Lanes<T> weighted_sum(const T* x, const Targets<Real<T>>& targets, int begin, int cols,
                      Real<T> reference) {
  Lanes<T> sum = {};
  for_vectors(cols, [&](int c, auto... count) {
    const Lanes<T> term =
        (load(x + begin + c, count...) - reference) * weights<T>(targets, begin + c, count...);
    sum += first_lanes(term, Lanes<T>{}, count...);
  });
  return sum;
}

// The loss of a row that counts; leaves peak and sum in `softmax`.
template <typename T>
Real<T> loss_of(const T* x, const Targets<Real<T>>& targets, int64_t label, Real<T>* softmax) {
  using R = Real<T>;
  const R own = load_one(x + label);
  // Differences to a number of the row are what smoothing adds up, so that rows far from 0 keep
  // their precision.
  const R reference = std::isfinite(own) ? own : R(0);
  Lanes<T> differences = {};
  const auto [peak, sum] = log_sum(x, targets.classes, [&](int begin, int count) {
    if (targets.smoothing != 0) {
      differences += weighted_sum(x, targets, begin, count, reference);
    }
  });
  softmax[0] = peak, softmax[1] = sum;
  const R log = std::log(sum);
  const R loss = targets.weight_of(label) * (peak - own + log);
  if (targets.smoothing == 0) return loss;
  const R smooth = targets.all_weights() * (peak - reference + log) - sum_of(differences);
  return (1 - targets.smoothing) * loss + targets.smoothing / targets.classes * smooth;
}

// upstream times the gradient of a row that counts; dx may be x.
template <typename T>
void gradient_of(const T* x, const Targets<Real<T>>& targets, int64_t label, const Real<T>* softmax,
                 Real<T> upstream, T* dx) {
  using R = Real<T>;
  const R peak = softmax[0], sum = softmax[1], own = load_one(x + label);
  const R wanted = upstream * (1 - targets.smoothing) * targets.weight_of(label);
  const bool smooth = targets.smoothing != 0;
  const R spread = smooth ? upstream * targets.smoothing / targets.classes : R(0);
  const R all = smooth ? spread * targets.all_weights() : R(0);
  const R factor = (wanted + all) / sum;
  for_vectors(targets.classes, [&](int c, auto... count) {
    const Lanes<T> p = exp_not_above_0(load(x + c, count...) - peak);
    store(dx + c, p * factor - spread * weights<T>(targets, c, count...), count...);
  });
  const R p = exp_not_above_0(broadcast(own - peak))[0];
  store_one(dx + label, p * factor - spread * targets.weight_of(label) - wanted);
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void cross_entropy(cpu::Stream<isa>& stream, const CrossEntropyParams<T>& p) {
  const Targets<Real<T>>& targets = p.targets;
  const cpu::Range rows = stream.share(targets.rows);
  for (int r = rows.begin; r < rows.end; ++r) {
    const int64_t label = targets.labels[r];
    p.losses[r] = label == targets.ignored
                      ? Real<T>(0)
                      : cpu::loss_of(p.x + size_t(r) * targets.classes, targets, label,
                                     p.softmax + size_t(r) * 2);
  }
  stream.barrier();
}

template <typename R, cpu::Isa isa>
void total_loss(cpu::Stream<isa>& stream, const TotalLossParams<R>& p) {
  if (stream.rank() == 0) {  // a number for each row: not worth sharing
    const Targets<R>& targets = p.targets;
    double total = 0.0, count = 0.0;
    for (int r = 0; r < targets.rows; ++r) {
      if (targets.labels[r] == targets.ignored) continue;
      total += p.losses[r];
      count += targets.weight_of(targets.labels[r]);
    }
    *p.total = static_cast<R>(p.mean ? total / count : total);
    *p.count = static_cast<R>(count);
  }
  stream.barrier();
}

template <typename T, cpu::Isa isa>
void cross_entropy_backward(cpu::Stream<isa>& stream, const CrossEntropyBackwardParams<T>& p) {
  const Targets<Real<T>>& targets = p.targets;
  const cpu::Range rows = stream.share(targets.rows);
  for (int r = rows.begin; r < rows.end; ++r) {
    const size_t at = size_t(r) * targets.classes;
    const int64_t label = targets.labels[r];
    if (label == targets.ignored) {
      std::fill_n(p.dx + at, targets.classes, T{});
      continue;
    }
    const Real<T> upstream = p.upstream[p.each ? r : 0] / (p.count != nullptr ? *p.count : 1);
    cpu::gradient_of(p.x + at, targets, label, p.softmax + size_t(r) * 2, upstream, p.dx + at);
  }
  stream.barrier();
}

#define INSTANTIATE(T)                                                                             \
  template void cross_entropy(cpu::Stream<cpu::Isa::DECODING_ISA>&, const CrossEntropyParams<T>&); \
  template void cross_entropy_backward(cpu::Stream<cpu::Isa::DECODING_ISA>&,                       \
                                       const CrossEntropyBackwardParams<T>&);
DECODING_FOR_ELEMENTS(INSTANTIATE)
#undef INSTANTIATE
template void total_loss(cpu::Stream<cpu::Isa::DECODING_ISA>&, const TotalLossParams<float>&);
template void total_loss(cpu::Stream<cpu::Isa::DECODING_ISA>&, const TotalLossParams<double>&);

}  // namespace decoding
