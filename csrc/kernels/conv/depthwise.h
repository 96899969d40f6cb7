// Depthwise convolution in the place of self-attention (Wu et al. 2019): each channel by itself,
// the D channels of a head with the same kernel of K weights,
//
//   y[t, n, d] = sum over j < K of w[t, n, j] x[t + j - left, n, d]
//
// in the order of j; a position outside the sentence adds nothing. A causal convolution ends at its
// token, left = K - 1; any other has it in the middle, left = K / 2. The kernel w is a weight,
// equal for all t (LightConv), or softmax over j of scores that the model makes from x[t]
// (DynamicConv).
//
// An output takes K multiply-adds and, where each input comes from memory once, 2 sizeof(T) bytes:
// K / sizeof(T) operations a byte. A GPU with 67 Tflop/s and 4.3 TB/s (H200) does 16, so memory is
// the limit up to K = 62 in float32 and 31 in 16 bits: what fetches an input K times, or spends an
// instruction beside each multiply-add, is not at it. A CPU finds the rows in its caches, where
// with AVX-512 its 64 operations a cycle are the limit from K = 8 or so on; from memory, K = 40.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "kernels/search/step.h"
#include "kernels/stream.h"

namespace decoding {

constexpr int kMaxKernelSize = 32;

template <typename T>
struct DepthwiseWeights {
  const float* weights = nullptr;  // [N, K]
  const T* scores = nullptr;       // [rows, N, K]; null where weights is not
  int kernel_size;                 // K, at most kMaxKernelSize
};

// Of all tokens of all sentences, in packed rows: sentence b owns [offsets[b], offsets[b + 1]).
template <typename T>
struct PackedDepthwiseParams {
  const T* x;  // [tokens, N, D]
  DepthwiseWeights<T> weights;
  const int32_t* offsets;  // [sentences + 1]
  T* y;                    // [tokens, N, D], not x
  int sentences, longest;  // longest: most tokens of a sentence
  int heads, head_dim;
  bool causal;
};

template <typename T, cpu::Isa isa>
void packed_depthwise(cpu::Stream<isa>&, const PackedDepthwiseParams<T>&);
template <typename T>
void packed_depthwise(cuda::Stream&, const PackedDepthwiseParams<T>&);

// Causal, of one new token per row. Each input is kept once, at (cache row, position), and found
// through the indirection table as keys are (attention/decode.h): a beam reorder rewrites the
// table. No token sees further back than K - 1 positions, so that a position may take the place of
// the one `ring` before it. Where C has fewer bits than T, inputs are what has been kept.
template <typename T, typename C = T>
struct DecodeDepthwiseParams {
  const StepState* state;
  const T* x;  // [sentences * beams, N, D]
  DepthwiseWeights<T> weights;
  C* inputs;                         // [total_rows, N, ring, D], position p at p % ring
  const int32_t* cache_indirection;  // [2, total_rows, history], step g reads table g % 2
  const ActiveSentence* active;      // [sentences]; cache row = id * slots + beam
  T* y;                              // [sentences * beams, N, D]
  int sentences, beams;              // sentences: at least state->active_count
  int heads, head_dim;
  int ring;   // at least K
  int slots;  // cache rows of a sentence: beams, but where one row reads a prompt for all
  int total_rows, history;
};

template <typename T, typename C, cpu::Isa isa>
void decode_depthwise(cpu::Stream<isa>&, const DecodeDepthwiseParams<T, C>&);
template <typename T>
void decode_depthwise(cuda::Stream&, const DecodeDepthwiseParams<T>&);

}  // namespace decoding
