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
  int count, dim, width;      // width: dim, padded to a whole number of registers
  const AttentionBias* bias;  // null: none
};

struct Block {
  const float* keys;  // [count, width], rows `stride` elements apart: where they lie, or a copy
  size_t stride;
  alignas(64) float copy[kBlock * kMaxHeadDim];
  alignas(64) float values[kBlock * kMaxHeadDim];  // [count, width]
  alignas(64) float bias_line[kQueries + kBlock];  // by distance, from that of the first query to
                                                   // the last key
  int count;
};

// Calls use(begin, end) for groups of nearly as many rows, at most kTileRows.
template <typename Use>
void for_tiles(int begin, int end, Use&& use) {
  const int rows = end - begin, tiles = (rows + kTileRows - 1) / kTileRows;
  for (int tile = 0; tile < tiles; ++tile) {
    use(begin + tile * rows / tiles, begin + (tile + 1) * rows / tiles);
  }
}

// Whether the values of positions from `first` on are finite.
bool has_finite_values(const Block& block, int first, size_t width) {
  Floats probe = {};
  for (size_t i = std::max(0, first) * width; i < block.count * width; i += kLanes) {
    probe = fma(load(block.values + i), Floats{}, probe);  // 0 times infinity or NaN is NaN
  }
  return !any(probe != probe);
}

// Lets queries [first, last) attend to a block, of which query i sees the positions before
// `seen` + i, as far as its window reaches.
void attend(Queries& queries, int first, int last, const Block& block, int seen) {
  alignas(64) float scores[kBlock * kQueries];  // [count, kQueries]
  alignas(64) float rescale[kQueries];
  const size_t width = queries.width;
  const int from = first / kLanes * kLanes, to = whole_vectors(last);
  // The first vector of queries that see a key.
  const auto begin_of = [&](int key) { return std::max(from, (key - seen + 1) / kLanes * kLanes); };
  for_tiles(0, block.count, [&](int begin, int end) {
    const int i = begin_of(begin);
    if (i >= to) return;
    for (int d = 0; d < queries.dim; d += kProducts) {
      multiply_rows(end - begin, {block.keys + begin * block.stride + d, block.stride},
                    {queries.q + d * kQueries + i, kQueries},
                    {scores + begin * kQueries + i, kQueries}, std::min(kProducts, queries.dim - d),
                    to - i, {}, d == 0 ? Begin::yes : Begin::no);
    }
  });
  for (int i = from; i < to; i += kLanes) {
    float* column = scores + i;
    const int all = std::clamp(seen + i, 0, block.count);  // keys that every lane sees
    const int some = std::clamp(seen + i + kLanes - 1, 0, block.count);
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
    store(rescale + i, queries.softmax[i / kLanes].weigh(column, kQueries, some));
    for (int k = some; k < block.count; ++k) store(column + k * kQueries, Floats{});
  }
  const auto add_values = [&](int begin, int end) {
    float* sums = queries.sum + begin * width;
    for (int r = begin; r < end; ++r) {
      float* sum = queries.sum + r * width;
      for (size_t d = 0; d < width; d += kLanes) store(sum + d, load(sum + d) * rescale[r]);
    }
    multiply_rows(end - begin, TransposedView<const float>{scores + begin, kQueries},
                  {block.values, width}, {sums, width}, std::min(block.count, seen + end - 1),
                  queries.width);
  };
  // Queries of a tile share their reach, and what is not finite must not come to a query by a
  // weight of 0: its keys and values may be others' too, who begin with the same tokens.
  if (has_finite_values(block, seen + first, width)) return for_tiles(first, last, add_values);
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
    std::fill_n(queries.sum, queries.count * queries.width, 0.0f);
  }

  void read(Block& block, int position, size_t width) const {
    block.count = std::min(kBlock, keys.length - position);
    bool in_place = false;
    if constexpr (requires { keys.rows.stride; }) {
      in_place = width == static_cast<size_t>(p.head_dim);
      block.keys = keys.k + keys.rows.offset(position), block.stride = keys.rows.stride;
    }
    if (!in_place) block.keys = block.copy, block.stride = width;
    for (int i = 0; i < block.count; ++i) {
      const size_t offset = keys.rows.offset(position + i);
      for_vectors(p.head_dim, [&](int d, auto... tail) {
        store(block.values + i * width + d, load(keys.v + offset + d, tail...));
        if (!in_place) store(block.copy + i * width + d, load(keys.k + offset + d, tail...));
      });
    }
  }

  void write(const Queries& queries, int begin) const {
    for (int r = 0; r < queries.count; ++r) {
      const float normaliser = queries.softmax[r / kLanes].normaliser()[r % kLanes];
      for_vectors(p.head_dim, [&](int d, auto... tail) {
        store(y + static_cast<size_t>(begin + r) * p.heads * p.head_dim + d,
              load(queries.sum + r * queries.width + d) * normaliser, tail...);
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
  item.read(queries, begin);
  Block block;
  const int at = item.keys.first_query + begin;  // position of the first
  const int start = window > 0 ? std::max(0, at - window + 1) / kBlock * kBlock : 0;
  const int reach = p.causal ? at + count : item.keys.length;
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
    if (first < last) attend(queries, first, last, block, p.causal ? at + 1 - position : kBlock);
  }
  item.write(queries, begin);
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
