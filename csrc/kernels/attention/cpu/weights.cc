// Scores are computed twice, a block at a time: first for the maximum and the sum of the softmax,
// then for the weights. That is cheaper than memory for all of them, which a step must not
// allocate.
#include <algorithm>
#include <cstdint>

#include "kernels/attention/cpu/online_softmax.h"
#include "kernels/attention/decode.h"
#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kBlock = 64;  // positions

// A query and the keys of its head.
template <typename C>
struct Head {
  const float* q;
  const C* k;
  HeadCells cells;
  float scale;

  // The scores of `count` <= kBlock positions from `begin` on; -inf up to a whole block.
  void score(int begin, int count, float* scores) const {
    std::fill(scores, scores + kBlock, -__builtin_inff());
    for (int i = 0; i < count; ++i) {
      const C* key = k + cells.offset(begin + i);
      Floats sum = {};
      for_vectors(cells.dim, [&](int d, auto... tail) {
        sum = fma(load(q + d, tail...), load(key + d, tail...), sum);
      });
      scores[i] = scale * sum_of(sum);
    }
  }
};

// Adds one head's weights, over `heads`, to y [length].
template <typename C>
void add_head(const Head<C>& head, float* y, int length, int heads) {
  alignas(64) float scores[kBlock];
  OnlineSoftmax softmax;
  for (int begin = 0; begin < length; begin += kBlock) {
    head.score(begin, std::min(kBlock, length - begin), scores);
    softmax.weigh(scores, kBlock);
  }
  const float factor = softmax.normaliser() / heads;
  for (int begin = 0; begin < length; begin += kBlock) {
    const int count = std::min(kBlock, length - begin);
    head.score(begin, count, scores);
    for_vectors(count, [&](int i, auto... tail) {
      const Floats weight = exp(load(scores + i) - softmax.maximum) * factor;
      store(y + begin + i, load(y + begin + i, tail...) + weight, tail...);
    });
  }
}

}  // namespace
}  // namespace cpu

template <typename T, typename C, cpu::Isa isa>
void attention_weights(cpu::Stream<isa>& stream, const AttentionWeightsParams<T, C>& p) {
  const cpu::Range mine = stream.share(p.state->active_count * p.beams);
  for (int row = mine.begin; row < mine.end; ++row) {
    const ActiveSentence& sentence = p.active[row / p.beams];
    if (sentence.number == 0) continue;
    const int64_t cache_row = sentence.id * p.beams + row % p.beams;
    const int32_t* pages = p.shared_pages.of(sentence.id);
    const int length = p.shared_lengths[sentence.id];
    float* y = p.y + ((sentence.number - 1) * int64_t{p.total_rows} + cache_row) * p.longest;
    std::fill(y, y + p.longest, 0.0f);
    for (int head = 0; head < p.heads; ++head) {
      const int key_head = head / (p.heads / p.kv_heads);
      cpu::add_head<C>({.q = p.q + int64_t{row} * p.stride + head * p.head_dim,
                        .k = p.pool.k,
                        .cells = p.pool.cells(pages, key_head, p.head_dim),
                        .scale = p.scale},
                       y, length, p.heads);
    }
  }
  stream.barrier();
}

template void attention_weights(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                                const AttentionWeightsParams<float, float>&);
template void attention_weights(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                                const AttentionWeightsParams<float, BFloat16>&);

}  // namespace decoding
