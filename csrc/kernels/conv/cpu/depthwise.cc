// A head of a token is an item: the kernel of its row, then its channels, four vectors at a time,
// so that their sums wait for each other's products and a weight is fetched once for all of them. A
// thread stays with a head while it goes through tokens, whose inputs then are in its cache.
#include "kernels/conv/depthwise.h"

#include <algorithm>

#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/softmax_row.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kVectors = 4;

// The kernel of a row and head: the weights, or the softmax of scores.
class HeadKernel {
 public:
  HeadKernel(const DepthwiseWeights<float>& weights, int heads)
      : weights_(weights), heads_(heads) {}

  const float* of(int64_t row, int head) {
    if (weights_.scores == nullptr) return weights_.weights + head * weights_.kernel_size;
    const float* scores = weights_.scores + (row * heads_ + head) * weights_.kernel_size;
    softmax_row<float>(scores, nullptr, softmax_, weights_.kernel_size, 1.0f);
    return softmax_;
  }

 private:
  const DepthwiseWeights<float>& weights_;
  const int heads_;
  float softmax_[kMaxKernelSize];
};

// y[c] = sum over [begin, end) of weights[j] * input(j)[c], for `channels` of them.
template <typename Input>
void convolve(const float* weights, int begin, int end, Input&& input, float* y, int channels) {
  int c = 0;
  for (; c + kVectors * kLanes <= channels; c += kVectors * kLanes) {
    Floats sums[kVectors] = {};
    for (int j = begin; j < end; ++j) {
      const Floats weight = broadcast(weights[j]);
      for (int v = 0; v < kVectors; ++v) {
        sums[v] = fma(weight, load(input(j) + c + v * kLanes), sums[v]);
      }
    }
    for (int v = 0; v < kVectors; ++v) store(y + c + v * kLanes, sums[v]);
  }
  for_vectors(channels - c, [&](int i, auto... count) {
    Floats sum = {};
    for (int j = begin; j < end; ++j) sum = fma(weights[j], load(input(j) + c + i, count...), sum);
    store(y + c + i, sum, count...);
  });
}

// The tokens [begin, end) of one head; `sentence` is that of the first.
void convolve_tokens(const PackedDepthwiseParams<float>& p, HeadKernel& kernel, int head, int begin,
                     int end, int sentence) {
  const int size = p.weights.kernel_size, left = p.causal ? size - 1 : size / 2;
  const int64_t stride = int64_t{p.heads} * p.head_dim, channel = int64_t{head} * p.head_dim;
  for (int token = begin; token < end; ++token) {
    while (token >= p.offsets[sentence + 1]) ++sentence;
    const int first = token - left;  // the position of weight 0
    convolve(
        kernel.of(token, head), std::max(0, p.offsets[sentence] - first),
        std::min(size, p.offsets[sentence + 1] - first),
        [&](int j) { return p.x + (first + j) * stride + channel; }, p.y + token * stride + channel,
        p.head_dim);
  }
}

// A head of an active row.
template <typename C>
void convolve_newest(const DecodeDepthwiseParams<float, C>& p, HeadKernel& kernel, int row,
                     int head) {
  const ActiveSentence& sentence = p.active[row / p.beams];
  const int position = sentence.position, first = position - (p.weights.kernel_size - 1);
  const int cache_row = sentence.id * p.slots + row % p.beams;
  const int32_t* rows =
      p.cache_indirection + (int64_t{sentence.table()} * p.total_rows + cache_row) * p.history;
  const int64_t at = (int64_t{row} * p.heads + head) * p.head_dim;
  const auto place = [&](int row, int position) {
    return p.inputs + ((int64_t{row} * p.heads + head) * p.ring + position % p.ring) * p.head_dim;
  };
  C* const newest = place(cache_row, position);
  for_vectors(p.head_dim, [&](int d, auto... count) {
    store(newest + d, load(p.x + at + d, count...), count...);
  });
  const C* inputs[kMaxKernelSize];
  const int begin = std::max(0, -first);
  for (int j = begin; j < p.weights.kernel_size - 1; ++j)
    inputs[j] = place(rows[first + j], first + j);
  inputs[p.weights.kernel_size - 1] = newest;
  convolve(
      kernel.of(row, head), begin, p.weights.kernel_size, [&](int j) { return inputs[j]; },
      p.y + at, p.head_dim);
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void packed_depthwise(cpu::Stream<isa>& stream, const PackedDepthwiseParams<T>& p) {
  const int tokens = p.offsets[p.sentences];
  const cpu::Range mine = stream.share(p.heads * tokens);
  cpu::HeadKernel kernel(p.weights, p.heads);
  for (int i = mine.begin; i < mine.end;) {
    const int head = i / tokens, begin = i % tokens, end = std::min(tokens, begin + mine.end - i);
    const int32_t* next = std::upper_bound(p.offsets, p.offsets + p.sentences + 1, begin);
    cpu::convolve_tokens(p, kernel, head, begin, end, next - p.offsets - 1);
    i += end - begin;
  }
  stream.barrier();
}

template <typename T, typename C, cpu::Isa isa>
void decode_depthwise(cpu::Stream<isa>& stream, const DecodeDepthwiseParams<T, C>& p) {
  const cpu::Range mine = stream.share(p.state->active_count * p.beams * p.heads);
  cpu::HeadKernel kernel(p.weights, p.heads);
  for (int i = mine.begin; i < mine.end; ++i) {
    cpu::convolve_newest(p, kernel, i / p.heads, i % p.heads);
  }
  stream.barrier();
}

template void packed_depthwise(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                               const PackedDepthwiseParams<float>&);
template void decode_depthwise(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                               const DecodeDepthwiseParams<float, float>&);
template void decode_depthwise(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                               const DecodeDepthwiseParams<float, BFloat16>&);

}  // namespace decoding
