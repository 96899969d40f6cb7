// Cross-entropy and its gradient as torch defines them, for C classes with weights w, a row x[C] of
// logits with label t, and label smoothing e:
//   p[c] = exp(x[c] - peak) / sum, where peak = max(x) and sum = sum_c exp(x[c] - peak)
//   loss = (1 - e) w[t] -log p[t] + e / C sum_c w[c] -log p[c]
//   d loss / d x[c] = ((1 - e) w[t] + e / C sum_c w[c]) p[c] - (1 - e) w[t] [c = t] - e / C w[c]
// An ignored row has loss 0 and gradient 0, whatever its logits. The loss reads the logits once,
// the gradient reads them once more and may be written over them. Sums are float32, for double
// double.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "kernels/stream.h"

namespace decoding {

// The targets of rows. R: the type of sums.
template <typename R>
struct Targets {
  const int64_t* labels;          // [rows]
  const R* weight = nullptr;      // [classes], may be null: all 1
  const R* weight_sum = nullptr;  // [1], the sum of weight, where there is smoothing; may be null
  int64_t ignored = -100;         // a label that does not count
  R smoothing = 0;
  int rows, classes;

  DECODING_EVERYWHERE R weight_of(int64_t label) const {
    return weight == nullptr ? R(1) : weight[label];
  }
  DECODING_EVERYWHERE R all_weights() const {
    return weight == nullptr ? static_cast<R>(classes) : *weight_sum;
  }
};

// Left for the host by a GPU that meets a label which is no class and is not ignored. Such a row
// has loss NaN and gradient 0. On a CPU labels are checked before.
struct LabelFault {
  int64_t label, ignored;
  int classes;
  int found;  // 1 once the others are written
};

template <typename T>
struct CrossEntropyParams {
  const T* x;  // [rows, classes]
  Targets<Real<T>> targets;
  Real<T>* losses;              // [rows]
  Real<T>* softmax;             // [rows, 2], peak and sum of each row, for the gradient
  LabelFault* fault = nullptr;  // memory that the host sees; null on the CPU
};

template <typename T, cpu::Isa isa>
void cross_entropy(cpu::Stream<isa>&, const CrossEntropyParams<T>&);
template <typename T>
void cross_entropy(cuda::Stream&, const CrossEntropyParams<T>&);

// total = sum(losses), count = the sum of the weights of all labels that count; with `mean`, total
// is divided by count, which makes it NaN where none counts.
template <typename R>
struct TotalLossParams {
  const R* losses;  // [rows]
  Targets<R> targets;
  R* total;  // [1]
  R* count;  // [1]
  bool mean;
};

template <typename R, cpu::Isa isa>
void total_loss(cpu::Stream<isa>&, const TotalLossParams<R>&);
template <typename R>
void total_loss(cuda::Stream&, const TotalLossParams<R>&);

// dx = upstream / count * d loss / d x
template <typename T>
struct CrossEntropyBackwardParams {
  const T* x;  // [rows, classes]
  Targets<Real<T>> targets;
  const Real<T>* softmax;          // [rows, 2], from the loss
  const Real<T>* upstream;         // [rows], or [1] for all rows
  const Real<T>* count = nullptr;  // [1], may be null: 1
  T* dx;                           // [rows, classes], may alias x
  bool each;                       // whether every row has an upstream of its own
};

template <typename T, cpu::Isa isa>
void cross_entropy_backward(cpu::Stream<isa>&, const CrossEntropyBackwardParams<T>&);
template <typename T>
void cross_entropy_backward(cuda::Stream&, const CrossEntropyBackwardParams<T>&);

}  // namespace decoding
