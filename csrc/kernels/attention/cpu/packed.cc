// A block of keys is transposed and a block of values copied onto the stack once for many queries;
// both products then are those of kernels/cpu/tile.h. Blocks begin at the sentence's first
// token, so a query's numbers depend neither on the sentence's place in the batch nor on the chunk
// that the query is read in: what it does not see of a block adds zeros.
#include "kernels/attention/packed.h"

#include <cstdint>

#include "kernels/attention/cpu/bias.h"
#include "kernels/attention/cpu/online_softmax.h"
#include "kernels/attention/head_dim.h"
#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/tile.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kBlock = 64;    // positions
constexpr int kQueries = 96;  // that pass over a block together

// Turns a square of registers around its diagonal: rows and lanes that differ in one bit of their
// index change places, bit by bit.
void transpose(Floats (&rows)[kLanes]) {
#pragma GCC unroll 4
  for (int bit = 1; bit < kLanes; bit *= 2) {
    const Ints odd = (lane_ids() & bit) != 0;
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i & bit) continue;
      const Floats low = rows[i], high = rows[i + bit];
      rows[i] = odd ? __builtin_shuffle(high, lane_ids() ^ bit) : low;
      rows[i + bit] = odd ? high : __builtin_shuffle(low, lane_ids() ^ bit);
    }
  }
}

constexpr int whole_vectors(int count) { return (count + kLanes - 1) / kLanes * kLanes; }

// to[d][i] = rows[i][d] for i < count, zero up to a whole number of vectors, of i and of d.
template <typename C>
void transpose_block(const C* const* rows, int count, int dim, float* to) {
  for (int i = 0; i < count; i += kLanes) {
    for_vectors(dim, [&](int d, auto... tail) {
      Floats square[kLanes];
      for (int j = 0; j < kLanes; ++j) {
        square[j] = i + j < count ? load(rows[i + j] + d, tail...) : Floats{};
      }
      transpose(square);
      for (int j = 0; j < kLanes; ++j) store(to + (d + j) * kBlock + i, square[j]);
    });
  }
}

// Queries of one sentence and head, with all that is kept of them between blocks of positions.
// Their vectors are padded to `width` elements, a whole number of registers.
struct Queries {
  alignas(64) float q[kQueries * kMaxHeadDim];    // scaled
  alignas(64) float sum[kQueries * kMaxHeadDim];  // of the weighted values
  OnlineSoftmax softmax[kQueries];
  int count, dim, width;
  const AttentionBias* bias;  // null: none
};

struct Block {
  alignas(64) float keys[kMaxHeadDim * kBlock];    // [dim, kBlock]
  alignas(64) float values[kBlock * kMaxHeadDim];  // [kBlock, width]
  alignas(64) float bias_line[kQueries + kBlock];  // of the last query's scores; those of each
                                                   // query before it begin one number further on
  int count;
};

// Lets the `rows` queries from `begin` on attend to a block, of which query r sees the first
// `seen` + r positions, as far as its window reaches.
void attend(Queries& queries, int begin, int rows, const Block& block, int seen) {
  const size_t width = queries.width;
  const int columns = whole_vectors(block.count);
  alignas(64) float scores[kTileRows * kBlock] = {};
  float* sums = queries.sum + begin * width;
  multiply_rows(rows, {queries.q + begin * width, width}, {block.keys, kBlock}, {scores, kBlock},
                queries.dim, columns);
  for (int r = 0; r < rows; ++r) {
    const int visible = std::min(seen + r, block.count);
    float* row = scores + r * kBlock;
    if (queries.bias != nullptr) {
      const float* line = block.bias_line + queries.count - 1 - (begin + r);
      apply_bias(queries.bias->cap, line, row, columns);
    }
    for (int i = 0; i < columns; i += kLanes) {
      store(row + i, lane_ids() + i < visible ? load(row + i) : broadcast(-__builtin_inff()));
    }
    const float rescale = queries.softmax[begin + r].weigh(row, columns);
    for (size_t d = r * width; d < (r + 1) * width; d += kLanes) {
      store(sums + d, load(sums + d) * rescale);
    }
  }
  multiply_rows(rows, {scores, kBlock}, {block.values, width}, {sums, width}, block.count,
                queries.width);
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
    const size_t stride = p.stride, width = queries.width;
    for (int r = 0; r < queries.count; ++r) {
      queries.softmax[r] = {};
      for_vectors(p.head_dim, [&](int d, auto... tail) {
        store(queries.q + r * width + d, load(q + (begin + r) * stride + d, tail...) * p.scale);
        store(queries.sum + r * width + d, Floats{});
      });
    }
  }

  void read(Block& block, int position, size_t width) const {
    block.count = std::min(kBlock, keys.length - position);
    decltype(keys.k) rows[kBlock];
    for (int i = 0; i < block.count; ++i) {
      const size_t offset = keys.rows.offset(position + i);
      rows[i] = keys.k + offset;
      for_vectors(p.head_dim, [&](int d, auto... tail) {
        store(block.values + i * width + d, load(keys.v + offset + d, tail...));
      });
    }
    transpose_block(rows, block.count, p.head_dim, block.keys);
  }

  void write(const Queries& queries, int begin) const {
    for (int r = 0; r < queries.count; ++r) {
      const float normaliser = queries.softmax[r].normaliser();
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
      bias_by_distance(p.bias, item.head, at + count - 1 - position,
                       count + whole_vectors(block.count), block.bias_line);
    }
    // A query that sees nothing of the block must not meet it.
    const int first = p.causal ? std::max(0, position - at) : 0;
    const int last = window > 0 ? std::min(count, position + block.count + window - 1 - at) : count;
    const int tiles = (last - first + kTileRows - 1) / kTileRows;
    for (int tile = 0; tile < tiles; ++tile) {
      const int top = first + tile * (last - first) / tiles;
      const int bottom = first + (tile + 1) * (last - first) / tiles;
      const int seen = p.causal ? at + top + 1 - position : block.count;
      attend(queries, top, bottom - top, block, seen);
    }
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
    for (int begin = 0; begin < queries; begin += cpu::kQueries) {
      for (int head = 0; head < p.heads; ++head, ++card) {
        if (card % stream.size() != stream.rank()) continue;
        const cpu::Item item{.p = p,
                             .q = p.q + row * p.stride + head * p.head_dim,
                             .keys = p.keys.of(p, sentence, head / shared),
                             .y = p.y + (row * p.heads + head) * p.head_dim,
                             .head = head};
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
