// One query per row. All beams of a sentence pass over a block of its shared keys and values
// before the next block is read. A block is 32 rows found by their offsets, whether they lie side
// by side or wherever the indirection table says, so both parts take the same path.
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cpu/online_softmax.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kBlock = 32;  // positions
constexpr int kBeams = 8;   // that pass over a block together

// The rows of one head's keys and values that a block holds.
struct Block {
  const float* k;
  const float* v;
  size_t offsets[kBlock];  // of each row, the same in k and in v
  int count;               // at least 1
};

struct Beam {
  alignas(64) float q[kMaxHeadDim];    // scaled
  alignas(64) float sum[kMaxHeadDim];  // of the weighted values
  OnlineSoftmax softmax;
};

// Lanes whose index has `bit` keep the sum of two neighbours of b, the others of a. Doing this for
// all bits turns kLanes vectors into one that holds the sum of each; every lane adds in the same
// order.
template <int bit>
Floats add_neighbours(Floats a, Floats b) {
  const Ints odd = (lane_ids() & bit) != 0;
  return (odd ? b : a) + __builtin_shuffle(odd ? a : b, lane_ids() ^ bit);
}

// q . k in `rows` neighbouring lanes, over and over, for the rows from `first` on; rows behind the
// last one repeat it.
template <int rows>
Floats dots(const float* q, const Block& block, int first, int dim) {
  if constexpr (rows > 4) {
    return add_neighbours<rows / 2>(dots<rows / 2>(q, block, first, dim),
                                    dots<rows / 2>(q, block, first + rows / 2, dim));
  } else {
    const auto row = [&](int i) {
      return block.k + block.offsets[std::min(first + i, block.count - 1)];
    };
    const float *k0 = row(0), *k1 = row(1), *k2 = row(2), *k3 = row(3);
    Floats sum0 = {}, sum1 = {}, sum2 = {}, sum3 = {};
    for_vectors(dim, [&](int d, auto... tail) {
      const Floats qs = load(q + d);
      sum0 = fma(qs, load(k0 + d, tail...), sum0);
      sum1 = fma(qs, load(k1 + d, tail...), sum1);
      sum2 = fma(qs, load(k2 + d, tail...), sum2);
      sum3 = fma(qs, load(k3 + d, tail...), sum3);
    });
    return add_neighbours<2>(add_neighbours<1>(sum0, sum1), add_neighbours<1>(sum2, sum3));
  }
}

// scores[i] = q . k[i], -inf behind the last row.
void score(const float* q, const Block& block, int dim, float* scores) {
  for (int i = 0; i < kBlock; i += kLanes) {
    Floats score = broadcast(-__builtin_inff());
    if (i < block.count) {
      score = lane_ids() + i < block.count ? dots<kLanes>(q, block, i, dim) : score;
    }
    store(scores + i, score);
  }
}

// sum[d] = sum[d] * rescale + the weighted rows of v, for `vectors` vectors of d. Even and odd
// rows are added up apart, which halves the wait of each addition for the one before.
template <int vectors, typename... Tail>
void accumulate(const Block& block, const float* weights, float rescale, int d, float* sum,
                Tail... tail) {
  Floats even[vectors], odd[vectors] = {};
  for (int v = 0; v < vectors; ++v) even[v] = load(sum + d + v * kLanes) * rescale;
  const auto add = [&](int i, Floats(&to)[vectors]) {
    const float* row = block.v + block.offsets[i] + d;
    for (int v = 0; v < vectors; ++v) {
      to[v] = fma(weights[i], load(row + v * kLanes, tail...), to[v]);
    }
  };
  int i = 0;
  for (; i + 2 <= block.count; i += 2) {
    add(i, even);
    add(i + 1, odd);
  }
  if (i < block.count) add(i, even);
  for (int v = 0; v < vectors; ++v) store(sum + d + v * kLanes, even[v] + odd[v]);
}

void attend(Beam& beam, const Block& block, int dim) {
  alignas(64) float weights[kBlock];
  score(beam.q, block, dim, weights);
  const float rescale = beam.softmax.weigh(weights, kBlock);
  constexpr int kWide = 4;
  int d = 0;
  for (; d + kWide * kLanes <= dim; d += kWide * kLanes) {
    accumulate<kWide>(block, weights, rescale, d, beam.sum);
  }
  for (; d + kLanes <= dim; d += kLanes) accumulate<1>(block, weights, rescale, d, beam.sum);
  if (d < dim) accumulate<1>(block, weights, rescale, d, beam.sum, dim - d);
}

// Calls attend(block) for `count` positions, block by block; offset(position) finds a row.
template <typename Offset, typename Attend>
void for_blocks(const float* k, const float* v, int count, Offset&& offset, Attend&& attend) {
  Block block{.k = k, .v = v, .offsets = {}, .count = 0};
  for (int position = 0; position < count; position += kBlock) {
    block.count = std::min(kBlock, count - position);
    for (int i = 0; i < block.count; ++i) block.offsets[i] = offset(position + i);
    attend(block);
  }
}

// Puts the new key and value of a slot in their place, then attends to the slot's history.
void attend_history(const DecodeAttentionParams<float>& p, Beam& beam, int head, size_t slot,
                    const float* k, const float* v) {
  const size_t dim = p.head_dim;
  const size_t slot_stride = dim * p.heads * p.target, first = dim * head * p.target;
  const auto offset = [&](size_t slot, int position) {
    return slot * slot_stride + first + position * dim;
  };
  const int position = p.now->position;
  const size_t own = offset(slot, position);
  for_vectors(p.head_dim, [&](int d, auto... tail) {
    store(p.self_k + own + d, load(k + d, tail...), tail...);
    store(p.self_v + own + d, load(v + d, tail...), tail...);
  });
  const size_t table = p.now->number % 2;
  const int32_t* slots = p.slots + (table * p.total_slots + slot) * p.target;
  for_blocks(
      p.self_k, p.self_v, position + 1,
      [&](int i) { return i == position ? own : offset(slots[i], i); },
      [&](const Block& block) { attend(beam, block, p.head_dim); });
}

// Beams [begin, end) of live sentence i, end - begin <= kBeams.
void attend(const DecodeAttentionParams<float>& p, int head, int i, int begin, int end) {
  const size_t dim = p.head_dim;
  const int count = end - begin;
  const auto input = [&](const float* rows, int b) {
    return rows + (static_cast<size_t>(i) * p.beams + begin + b) * p.stride + head * dim;
  };
  Beam beams[kBeams];
  for (int b = 0; b < count; ++b) {
    beams[b].softmax = {};
    for_vectors(p.head_dim, [&](int d, auto... tail) {
      store(beams[b].q + d, load(input(p.q, b) + d, tail...) * p.scale);
      store(beams[b].sum + d, Floats{});
    });
  }
  if (p.shared_k != nullptr) {
    const int32_t* row = p.shared_offsets + p.live[i];
    const size_t start = (static_cast<size_t>(head) * p.shared_capacity + row[0]) * dim;
    for_blocks(
        p.shared_k + start, p.shared_v + start, row[1] - row[0],
        [&](int position) { return position * dim; },
        [&](const Block& block) {
          for (int b = 0; b < count; ++b) attend(beams[b], block, p.head_dim);
        });
  }
  for (int b = 0; b < count; ++b) {
    if (p.k != nullptr) {
      const size_t slot = static_cast<size_t>(p.live[i]) * p.beams + begin + b;
      attend_history(p, beams[b], head, slot, input(p.k, b), input(p.v, b));
    }
    const float normaliser = beams[b].softmax.normaliser();
    float* y = p.y + ((static_cast<size_t>(i) * p.beams + begin + b) * p.heads + head) * dim;
    for_vectors(p.head_dim, [&](int d, auto... tail) {
      store(y + d, load(beams[b].sum + d) * normaliser, tail...);
    });
  }
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void store_shared(cpu::Stream<isa>& stream, const StoreSharedParams<T>& p) {
  const size_t dim = p.head_dim;
  const cpu::Range tokens = stream.share(p.tokens);
  for (int token = tokens.begin; token < tokens.end; ++token) {
    for (int head = 0; head < p.heads; ++head) {
      const size_t from = static_cast<size_t>(token) * p.stride + head * dim;
      const size_t to = (static_cast<size_t>(head) * p.capacity + token) * dim;
      __builtin_memcpy(p.shared_k + to, p.k + from, dim * sizeof(T));
      __builtin_memcpy(p.shared_v + to, p.v + from, dim * sizeof(T));
    }
  }
  stream.barrier();
}

template <typename T, cpu::Isa isa>
void decode_attention(cpu::Stream<isa>& stream, const DecodeAttentionParams<T>& p) {
  // Beams part only where sentences and heads alone would leave threads without work.
  const int live_count = p.now->live_count;
  int tile = std::min(p.beams, cpu::kBeams);
  while (tile > 1 && live_count * p.heads * ((p.beams + tile - 1) / tile) < 4 * stream.size()) {
    tile = (tile + 1) / 2;
  }
  const int tiles = (p.beams + tile - 1) / tile;
  // Heads are the outer loop: threads then have equal shares of every sentence, however long.
  const cpu::Range share = stream.share(p.heads * live_count * tiles);
  for (int item = share.begin; item < share.end; ++item) {
    const int sentence = item / tiles % live_count, begin = item % tiles * tile;
    cpu::attend(p, item / tiles / live_count, sentence, begin, std::min(begin + tile, p.beams));
  }
  stream.barrier();
}

template void store_shared(cpu::Stream<cpu::Isa::DECODING_ISA>&, const StoreSharedParams<float>&);
template void decode_attention(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                               const DecodeAttentionParams<float>&);

}  // namespace decoding
