// The log-probability of each row's label, how many columns are not less probable, and the most
// probable column, the lowest of equals:
//   logprob = x[label] - log(sum(exp(x))), rank = count(x >= x[label]), argmax = argmax(x).
// The logits are read from memory once, all sums are float32. A row that holds NaN or +inf, or
// nothing but -inf, gets NaN, and its rank and argmax mean nothing. On a GPU the order of a sum
// depends on how a row lies on 16 bytes.
#pragma once

#include <cstdint>

#include "core/check.h"
#include "kernels/stream.h"

namespace decoding {

constexpr int32_t kIgnored = -100;  // a label that does not count, as in torch

struct LabelScore {
  float logprob;   // 0 where the label is to be ignored
  int32_t rank;    // 1 for the most probable column alone, 0 where the label is to be ignored
  int32_t argmax;  // kIgnored where the label is
};

constexpr LabelScore kNoLabel{0.0f, 0, kIgnored};

template <typename T>
struct LabelLogprobsParams {
  const T* logits;        // [rows, V], rows `stride` elements apart
  const int32_t* labels;  // [rows], see check_labels
  LabelScore* y;          // [rows]
  int rows, vocab, stride;
};

template <typename T, cpu::Isa isa>
void label_logprobs(cpu::Stream<isa>&, const LabelLogprobsParams<T>&);
template <typename T>
void label_logprobs(cuda::Stream&, const LabelLogprobsParams<T>&);

// On the host, before the labels go anywhere.
inline void check_labels(const int32_t* labels, int64_t count, int vocab) {
  for (int64_t i = 0; i < count; ++i) {
    CHECK((labels[i] >= 0 && labels[i] < vocab) || labels[i] == kIgnored, "labels must be 0 to ",
          vocab - 1, ", or ", kIgnored, " where they are ignored, got ", labels[i]);
  }
}

}  // namespace decoding
