// One query per row and head. A thread's work is a sequence of blocks of keys and values, whose
// rows are found by their offsets, in whatever pages they lie. While one block is attended to, the
// next is fetched from memory, be it another sentence's. Queries that have the same keys pass over
// them together: the heads that share a key head, and over what a sentence shares those of all its
// beams.
#include "kernels/attention/decode.h"

#include <cstdint>
#include <utility>

#include "kernels/attention/cpu/attend.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kQueries = 8;  // that pass over a block together

// The queries of an active sentence that share a key head are numbered, those of beam 0 first.
// These are [begin, end) of them, at most kQueries.
struct Item {
  int key_head, sentence, begin, end;
  int queries() const { return end - begin; }
};

// The history of an active row in one head of the pool.
template <typename C>
class CacheRow {
 public:
  CacheRow(const DecodeAttentionParams<float, C>& params, size_t row, size_t key_head)
      : p_(params),
        sentence_(p_.active[row / p_.beams]),
        position_(sentence_.position),
        cells_(p_.pool.cells(p_.self_pages.of(sentence_.id), key_head, p_.head_dim)),
        lanes_(p_.slots),
        new_(row * p_.stride + key_head * p_.head_dim),
        first_row_(sentence_.id * p_.slots),
        cache_row_(first_row_ + static_cast<int>(row % p_.beams)),
        indirection_(p_.cache_indirection +
                     (int64_t{sentence_.table()} * p_.total_rows + cache_row_) * p_.target) {}

  size_t offset(int position) const {
    const int row = position == position_ ? cache_row_ : indirection_[position];
    return cells_.offset(position * lanes_ + (row - first_row_));
  }

  // Whether `count` positions from `first` on, none of them the newest, lie where another row has
  // them too.
  bool shares(const CacheRow& other, int first, int count) const {
    return first + count <= position_ &&
           std::equal(indirection_ + first, indirection_ + first + count,
                      other.indirection_ + first);
  }

  // The new key and value go to their place.
  void put_new() const {
    const size_t to = offset(position_);
    for_vectors(p_.head_dim, [&](int d, auto... tail) {
      store(p_.pool.k + to + d, load(p_.k + new_ + d, tail...), tail...);
      store(p_.pool.v + to + d, load(p_.v + new_ + d, tail...), tail...);
    });
  }

 private:
  const DecodeAttentionParams<float, C>& p_;
  const ActiveSentence& sentence_;
  const int position_;
  const HeadCells cells_;
  const int lanes_;
  const size_t new_;                 // where the new key and value come from, in k and v
  const int first_row_, cache_row_;  // of the sentence; of the row
  const int32_t* indirection_;
};

// The work of one thread: items, one after the other.
template <typename C>
class WorkTile {
 public:
  // put_new: new keys and values are not in their place yet.
  WorkTile(const DecodeAttentionParams<float, C>& params, bool put_new)
      : p_(params),
        dim_(params.head_dim),
        bias_(params.bias.any() ? &params.bias : nullptr),
        group_(params.heads / params.kv_heads),
        put_new_(put_new) {}

  void add(const Item& item) {
    next_->item = item;
    next_->first = true;
    if (p_.shared_lengths != nullptr) add_shared(item);
    if (p_.k != nullptr) add_history(item);
    if (next_->first) add_nothing();
  }

  // Attends to what was added last.
  void finish() {
    next_->item = {};
    next_->first = true;
    add_nothing();
  }

 private:
  void add_shared(const Item& item) {
    const ActiveSentence& sentence = p_.active[item.sentence];
    const HeadCells cells =
        p_.pool.cells(p_.shared_pages.of(sentence.id), item.key_head, p_.head_dim);
    const int positions = p_.shared_lengths[sentence.id];
    const int distance = positions + sentence.position;
    for (int from = first_seen(distance); from < positions; from += kBlock) {
      add_block(0, item.queries(), std::min(kBlock, positions - from), distance - from,
                [&](int i) { return cells.offset(from + i); });
    }
  }

  // A past that the item's beams have in common is read once for all of them.
  void add_history(const Item& item) {
    const int first = item.begin / group_, end = (item.end + group_ - 1) / group_;
    const auto row_of = [&](int beam) {
      return CacheRow<C>(p_, item.sentence * p_.beams + beam, item.key_head);
    };
    for (int beam = first; put_new_ && beam < end; ++beam) row_of(beam).put_new();
    const int position = p_.active[item.sentence].position;
    for (int from = first_seen(position); from <= position; from += kBlock) {
      const int count = std::min(kBlock, position + 1 - from);
      bool common = true;
      for (int beam = first + 1; common && beam < end; ++beam) {
        common = row_of(beam).shares(row_of(first), from, count);
      }
      const int together = common ? end - first : 1;
      for (int beam = first; beam < end; beam += together) {
        const CacheRow<C> row = row_of(beam);
        add_block(std::max(item.begin, beam * group_) - item.begin,
                  std::min(item.end, (beam + together) * group_) - item.begin, count,
                  position - from, [&](int i) { return row.offset(from + i); });
      }
    }
  }

  // The first of the positions that a window shows to queries which the first of all is `distance`
  // away from.
  int first_seen(int distance) const {
    const int window = p_.bias.window;
    return window > 0 ? std::max(0, distance - window + 1) : 0;
  }

  // For queries [begin, end) of the item, `distance` away from the first of `count` rows; offset(i)
  // finds one.
  template <typename Offset>
  void add_block(int begin, int end, int count, int distance, Offset&& offset) {
    Block<C>& block = next_->block;
    block.k = p_.pool.k, block.v = p_.pool.v, block.begin = begin, block.end = end;
    block.count = count, block.distance = distance;
    for (int i = 0; i < count; ++i) block.offsets[i] = offset(i);
    std::fill(block.offsets + count, block.offsets + kBlock, block.offsets[count - 1]);
    advance();
  }

  void add_nothing() {
    next_->block.count = 0;
    advance();
  }

  // Attends to the block before the next one, which then takes its place.
  void advance() {
    attend(queries_, current_->block, next_->block, bias_, p_.head_dim);
    if (next_->first) {
      end(current_->item);
      begin(next_->item);
    }
    std::swap(current_, next_);
    next_->item = current_->item;
    next_->first = false;
  }

  void begin(const Item& item) {
    for (int j = 0; j < item.queries(); ++j) {
      const float* q = p_.q + row(item, j) * p_.stride + head(item, j) * dim_;
      queries_[j].head = head(item, j);
      queries_[j].softmax = {};
      for_vectors(p_.head_dim, [&](int d, auto... tail) {
        store(queries_[j].q + d, load(q + d, tail...) * p_.scale);
        store(queries_[j].sum + d, Floats{});
      });
    }
  }

  void end(const Item& item) const {
    for (int j = 0; j < item.queries(); ++j) {
      float* y = p_.y + (row(item, j) * p_.heads + head(item, j)) * dim_;
      const float normaliser = queries_[j].softmax.normaliser();
      for_vectors(p_.head_dim, [&](int d, auto... tail) {
        store(y + d, load(queries_[j].sum + d) * normaliser, tail...);
      });
    }
  }

  // Of an item's query j.
  size_t row(const Item& item, int j) const {
    return static_cast<size_t>(item.sentence) * p_.beams + (item.begin + j) / group_;
  }
  int head(const Item& item, int j) const {
    return item.key_head * group_ + (item.begin + j) % group_;
  }

  struct Stage {
    Item item;
    Block<C> block;
    bool first;  // of its item
  };

  const DecodeAttentionParams<float, C>& p_;
  const size_t dim_;
  const AttentionBias* bias_;  // null: none
  const int group_;            // query heads that share a key head
  const bool put_new_;
  Stage stages_[2]{};
  Stage *current_ = &stages_[0], *next_ = &stages_[1];
  Query queries_[kQueries];
};

template <typename C, Isa isa>
void put_all_new(Stream<isa>& stream, const DecodeAttentionParams<float, C>& p) {
  const Range mine = stream.share(p.state->active_count * p.beams * p.kv_heads);
  for (int i = mine.begin; i < mine.end; ++i) {
    CacheRow<C>(p, i / p.kv_heads, i % p.kv_heads).put_new();
  }
  stream.barrier();
}

template <typename T, typename C, Isa isa>
void attend(Stream<isa>& stream, const DecodeAttentionParams<T, C>& p) {
  const int sentences = p.state->active_count;
  if (p.rotary.any()) {
    apply_rotary(stream, RotaryParams<T>{.x = p.q,
                                         .rotary = p.rotary,
                                         .rows = sentences * p.beams,
                                         .heads = p.heads,
                                         .kv_heads = p.kv_heads,
                                         .head_dim = p.head_dim,
                                         .stride = p.stride});
  }
  const int group = p.heads / p.kv_heads, queries = p.beams * group;
  int tile = std::min(queries, kQueries);
  if (tile > group) tile -= tile % group;  // whole beams
  // Queries part only where sentences and key heads alone would leave threads without work.
  const int enough = stream.size() == 1 ? 1 : 4 * stream.size();
  while (tile > 1 && sentences * p.kv_heads * ((queries + tile - 1) / tile) < enough) {
    tile = (tile + 1) / 2;
  }
  // Where several items read a beam's history, none of them can be the one that writes it.
  const bool parted = p.k != nullptr && tile % group != 0;
  if (parted) put_all_new(stream, p);
  const int tiles = (queries + tile - 1) / tile;
  // Heads are the outer loop: threads then have equal shares of every sentence, however long.
  const Range items = stream.share(p.kv_heads * sentences * tiles);
  WorkTile<C> work(p, !parted);
  for (int i = items.begin; i < items.end; ++i) {
    const int begin = i % tiles * tile;
    work.add(
        {i / tiles / sentences, i / tiles % sentences, begin, std::min(begin + tile, queries)});
  }
  work.finish();
  stream.barrier();
}

}  // namespace
}  // namespace cpu

template <typename T, typename C, cpu::Isa isa>
void decode_attention(cpu::Stream<isa>& stream,
                      std::span<const DecodeAttentionParams<T, C>> parts) {
  for (const auto& p : parts) cpu::attend(stream, p);
}

template void decode_attention(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                               std::span<const DecodeAttentionParams<float, float>>);
template void decode_attention(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                               std::span<const DecodeAttentionParams<float, BFloat16>>);

}  // namespace decoding
