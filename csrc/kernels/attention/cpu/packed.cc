// Queries stand in the lanes: a block of them is transposed once, scores are keys times queries,
// and the softmax needs nothing from a neighbouring lane. Then weights times values give rows
// again. Both products are those of kernels/cpu/tile.h. Blocks of keys begin at the sentence's
// first token, so a query's numbers depend neither on the sentence's place in the batch nor on the
// chunk that the query is read in: what it does not see of a block adds zeros.
#include "kernels/attention/packed.h"

#include <algorithm>
#include <cstdint>

#include "kernels/attention/cpu/bias.h"
#include "kernels/attention/cpu/online_softmax.h"
#include "kernels/attention/cpu/transpose.h"
#include "kernels/attention/head_dim.h"
#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/tile.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kBlock = 64;     // positions
constexpr int kQueries = 64;   // that pass over a block together
constexpr int kProducts = 64;  // of a score that are added up one after the other: long sums err

constexpr int whole_vectors(int count) { return (count + kLanes - 1) / kLanes * kLanes; }

// Queries of one sentence and head, with all that is kept of them between blocks of positions.
struct Queries {
  alignas(64) float q[kMaxHeadDim * kQueries];    // [dim, kQueries], scaled
  alignas(64) float sum[kQueries * kMaxHeadDim];  // [count, width], of the weighted values
  OnlineSoftmaxLanes softmax[kQueries / kLanes];
  float* y;  // of the first one, rows `stride` elements apart
  size_t stride;
  int count, dim, width;      // width: dim, padded to a whole number of registers
  const AttentionBias* bias;  // null: none

  // factors[i]: what makes y of query i's sums.
  void normalise(int from, int to, float* factors) const {
    for (int i = from; i < to; i += kLanes) store(factors + i, softmax[i / kLanes].normaliser());
  }
};

struct Block {
  // [count, width], rows `stride` elements apart: where they lie, or copies
  const float* keys;
  const float* values;
  size_t stride;
  alignas(64) float key_copy[kBlock * kMaxHeadDim];
  alignas(64) float value_copy[kBlock * kMaxHeadDim];
  alignas(64) float bias_line[kQueries + kBlock];  // by distance, from that of the first query to
                                                   // the last key
  int count;
};

// Calls use(begin, end) for groups of nearly as many rows, at most `most`.
template <typename Use>
void for_tiles(int begin, int end, int most, Use&& use) {
  const int rows = end - begin, tiles = (rows + most - 1) / most;
  for (int tile = 0; tile < tiles; ++tile) {
    use(begin + tile * rows / tiles, begin + (tile + 1) * rows / tiles);
  }
}

// Whether the values of positions from `first` on are finite.
bool has_finite_values(const Block& block, int first, int width) {
  Ints largest = {};  // as integers, because NaN is more than infinity there
  for (int i = std::max(0, first); i < block.count; ++i) {
    for (int d = 0; d < width; d += kLanes) {
      largest = max(largest, bits(abs(load(block.values + i * block.stride + d))));
    }
  }
  return !any(largest >= bits(broadcast(__builtin_inff())));
}

// scores[k][i] = keys[k] . q[i] for queries [from, to), but not those before the first vector of
// queries that see the key.
void score(const Queries& queries, int from, int to, const Block& block, int seen, float* scores) {
  const auto score_tiles = [&]<int rows>(int first, int last) {
    for_tiles(first, last, rows, [&](int begin, int end) {
      const int i = std::max(from, (begin - seen + 1) / kLanes * kLanes);
      if (i >= to) return;
      for (int d = 0; d < queries.dim; d += kProducts) {
        const Into<float> into{{scores + begin * kQueries + i, kQueries},
                               d == 0 ? Begin::yes : Begin::no};
        multiply_rows<Float32Dot, 0, rows>(end - begin,
                                           {block.keys + begin * block.stride + d, block.stride},
                                           {queries.q + d * kQueries + i, kQueries}, into,
                                           std::min(kProducts, queries.dim - d), to - i);
      }
    });
  };
  // Keys that few queries see come in taller tiles.
  constexpr int kFew = tile_vectors(kTallRows) * kLanes;
  const int wide = to - from <= kFew ? 0 : std::clamp(seen - 1 + to - kFew, 0, block.count);
  score_tiles.template operator()<kTileRows>(0, wide);
  score_tiles.template operator()<kTallRows>(wide, block.count);
}

// The scores of queries [from, to) become weights; factors[i]: for what query i has added up. The
// maxima come first, so that no exponential waits for them.
void weigh(Queries& queries, int from, int to, const Block& block, int seen, float* scores,
           float* factors) {
  // Keys that some lane of a vector of queries sees.
  const auto reach = [&](int i) { return std::clamp(seen + i + kLanes - 1, 0, block.count); };
  for (int i = from; i < to; i += kLanes) {
    float* column = scores + i;
    const int all = std::clamp(seen + i, 0, block.count), some = reach(i);
    if (queries.bias != nullptr) {
      for (int k = 0; k < some; ++k) {
        apply_bias(queries.bias->cap, block.bias_line + block.count - 1 - k + i,
                   column + k * kQueries, kLanes);
      }
    }
    for (int k = all; k < some; ++k) {
      float* at = column + k * kQueries;
      store(at, lane_ids() + (seen + i) > k ? load(at) : broadcast(-__builtin_inff()));
    }
    store(factors + i, queries.softmax[i / kLanes].raise(column, kQueries, some));
  }
  for (int i = from; i < to; i += kLanes) {
    queries.softmax[i / kLanes].weigh(scores + i, kQueries, reach(i), load(factors + i));
    for (int k = reach(i); k < block.count; ++k) store(scores + k * kQueries + i, Floats{});
  }
}

// Which blocks of its positions a block is; a query's sums begin with the first one, and become y
// with the last one.
struct BlockOrder {
  bool first, last;
};

// Takes the weighted values of queries into y.
struct IntoY {
  float* y;
  size_t stride;
  const float* sums;  // before this block, rows `width` elements apart; null: none
  int width, dim;
  const float* normalisers;

  void operator()(int r, int d, Floats sum) const {
    const Floats before = sums == nullptr ? Floats{} : load(sums + r * width + d);
    const Floats value = (before + sum) * normalisers[r];
    float* to = y + r * stride + d;
    d + kLanes <= dim ? store(to, value) : store(to, value, dim - d);
  }
};

// Lets queries [first, last) attend to a block, of which query i sees the positions before
// `seen` + i, as far as its window reaches.
void attend(Queries& queries, int first, int last, const Block& block, int seen, BlockOrder order) {
  alignas(64) float scores[kBlock * kQueries];  // [count, kQueries]
  alignas(64) float factors[kQueries];
  const int from = first / kLanes * kLanes, to = whole_vectors(last), width = queries.width;
  score(queries, from, to, block, seen, scores);
  weigh(queries, from, to, block, seen, scores, factors);
  if (!order.first) {
    for (int r = first; r < last; ++r) {
      float* sum = queries.sum + r * width;
      for (int d = 0; d < width; d += kLanes) store(sum + d, load(sum + d) * factors[r]);
    }
  }
  if (order.last) queries.normalise(from, to, factors);
  const auto add_values = [&](int begin, int end) {
    const auto multiply = [&](auto take) {
      multiply_rows(end - begin, TransposedView<const float>{scores + begin, kQueries},
                    {block.values, block.stride}, take, std::min(block.count, seen + end - 1),
                    width);
    };
    float* sums = queries.sum + begin * width;
    if (order.last) {
      multiply(IntoY{queries.y + begin * queries.stride, queries.stride,
                     order.first ? nullptr : sums, width, queries.dim, factors + begin});
    } else {
      multiply(
          Into<float>{{sums, static_cast<size_t>(width)}, order.first ? Begin::yes : Begin::no});
    }
  };
  // Queries of a tile share their reach, and what is not finite must not come to a query by a
  // weight of 0: its keys and values may be others' too, who begin with the same tokens.
  if (has_finite_values(block, seen + first, width)) {
    return for_tiles(first, last, kTileRows, add_values);
  }
  for (int r = first; r < last; ++r) add_values(r, r + 1);
}

// A sentence and a head: q and y begin at its first token.
template <typename Params, typename Keys>
struct Item {
  const Params& p;
  const float* q;
  Keys keys;
  float* y;
  int head;

  void read(Queries& queries, int begin) const {
    const size_t stride = p.stride;
    for (int i = 0; i < queries.count; i += kLanes) {
      for_vectors(p.head_dim, [&](int d, auto... tail) {
        Floats square[kLanes];
        for (int j = 0; j < kLanes; ++j) {
          const float* row = q + (begin + i + j) * stride + d;
          square[j] = i + j < queries.count ? load(row, tail...) * p.scale : Floats{};
        }
        transpose(square);
        for (int j = 0; j < kLanes; ++j) store(queries.q + (d + j) * kQueries + i, square[j]);
      });
      queries.softmax[i / kLanes] = {};
    }
  }

  void read(Block& block, int position, size_t width) const {
    block.count = std::min(kBlock, keys.length - position);
    if constexpr (requires { keys.rows.stride; }) {
      if (width == static_cast<size_t>(p.head_dim)) {
        const size_t first = keys.rows.offset(position);
        block.keys = keys.k + first, block.values = keys.v + first;
        block.stride = keys.rows.stride;
        return;
      }
    }
    block.keys = block.key_copy, block.values = block.value_copy;
    block.stride = width;
    for (int i = 0; i < block.count; ++i) {
      const size_t offset = keys.rows.offset(position + i);
      for_vectors(p.head_dim, [&](int d, auto... tail) {
        store(block.key_copy + i * width + d, load(keys.k + offset + d, tail...));
        store(block.value_copy + i * width + d, load(keys.v + offset + d, tail...));
      });
    }
  }

  // y of the first `count` queries, or 0 where there was nothing to add up.
  void write(const Queries& queries, int count) const {
    alignas(64) float factors[kQueries];
    queries.normalise(0, count, factors);
    for (int r = 0; r < count; ++r) {
      for_vectors(p.head_dim, [&](int d, auto... tail) {
        store(queries.y + r * queries.stride + d,
              load(queries.sum + r * queries.width + d) * factors[r], tail...);
      });
    }
  }
};

// Queries [begin, end) of an item, end - begin <= kQueries.
template <typename Params, typename Keys>
void attend(const Item<Params, Keys>& item, int begin, int end) {
  const auto& p = item.p;
  const int count = end - begin, window = p.bias.window;
  Queries queries;
  queries.count = count, queries.dim = p.head_dim, queries.width = whole_vectors(p.head_dim);
  queries.bias = p.bias.any() ? &p.bias : nullptr;
  queries.stride = static_cast<size_t>(p.heads) * p.head_dim;
  queries.y = item.y + begin * queries.stride;
  item.read(queries, begin);
  Block block;
  const int at = item.keys.first_query + begin;  // position of the first
  const int start = window > 0 ? std::max(0, at - window + 1) / kBlock * kBlock : 0;
  const int reach = p.causal ? at + count : item.keys.length;
  // Sums of queries that the first block is out of the window of, or of all without a key.
  const auto clear = [&](int first) {
    std::fill(queries.sum + first * queries.width, queries.sum + count * queries.width, 0.0f);
  };
  if (start >= reach) {
    clear(0);
    item.write(queries, count);
  }
  for (int position = start; position < reach; position += kBlock) {
    item.read(block, position, queries.width);
    if (queries.bias != nullptr) {
      const int lines = whole_vectors(count) + block.count - 1;
      bias_by_distance(p.bias, item.head, at + whole_vectors(count) - 1 - position, lines,
                       block.bias_line);
      std::reverse(block.bias_line, block.bias_line + lines);
    }
    // A query that sees nothing of the block need not meet it.
    const int first = p.causal ? std::max(0, position - at) : 0;
    const int last = window > 0 ? std::min(count, position + block.count + window - 1 - at) : count;
    const BlockOrder order{position == start, position + kBlock >= reach};
    if (order.first) clear(last);
    if (order.last) item.write(queries, first);
    attend(queries, first, last, block, p.causal ? at + 1 - position : kBlock, order);
  }
}

}  // namespace
}  // namespace cpu

template <typename T, typename Keys, cpu::Isa isa>
void packed_attention(cpu::Stream<isa>& stream, const PackedAttentionParams<T, Keys>& p) {
  // Work is dealt out like cards, so that long sentences and late, costly queries spread evenly.
  const int shared = p.heads / p.kv_heads;  // query heads that have the same keys
  int card = 0;
  for (int sentence = 0; sentence < p.sentences; ++sentence) {
    const size_t row = p.offsets[sentence];
    const int queries = p.offsets[sentence + 1] - p.offsets[sentence];
    for (int head = 0; head < p.heads; ++head, ++card) {
      const cpu::Item item{.p = p,
                           .q = p.q + row * p.stride + head * p.head_dim,
                           .keys = p.keys.of(p, sentence, head / shared),
                           .y = p.y + (row * p.heads + head) * p.head_dim,
                           .head = head};
      const int tiles = (queries + cpu::kQueries - 1) / cpu::kQueries;
      for (int tile = 0; tile < tiles; ++tile) {
        if ((card + tile) % stream.size() != stream.rank()) continue;
        const int begin = tile * cpu::kQueries;
        cpu::attend(item, begin, std::min(begin + cpu::kQueries, queries));
      }
    }
  }
  stream.barrier();
}

template void packed_attention(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                               const PackedAttentionParams<float>&);
template void packed_attention(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                               const PackedAttentionParams<float, PagedKeys<float>>&);
template void packed_attention(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                               const PackedAttentionParams<float, PagedKeys<BFloat16>>&);

}  // namespace decoding
