// One query per row. A thread's work is a sequence of blocks of keys and values, whose rows are
// found by their offsets, whether they lie side by side or wherever the indirection table says.
// While one block is attended to, the next is fetched from memory, be it another sentence's.
#include <cstdint>
#include <utility>

#include "kernels/attention.h"
#include "kernels/cpu/attend.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kBeams = 8;  // that pass over a block together

// One head of the beams [begin, end) of a live sentence, at most kBeams.
struct Item {
  int head, sentence, begin, end;
  int beams() const { return end - begin; }
};

// The items of one thread, one after the other.
template <typename C>
class Share {
 public:
  explicit Share(const DecodeAttentionParams<float, C>& params)
      : p_(params), dim_(params.head_dim) {}

  void add(const Item& item) {
    next_->item = item;
    next_->first = true;
    if (p_.shared_k != nullptr) add_shared(item);
    for (int b = 0; p_.k != nullptr && b < item.beams(); ++b) add_history(item, b);
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
    const int32_t* row = p_.shared_offsets + p_.live[item.sentence];
    const size_t start = (static_cast<size_t>(item.head) * p_.shared_capacity + row[0]) * dim_;
    add_blocks(p_.shared_k + start, p_.shared_v + start, 0, item.beams(), row[1] - row[0],
               [&](int i) { return i * dim_; });
  }

  // The new key and value of a slot are put in their place first.
  void add_history(const Item& item, int b) {
    const size_t own = static_cast<size_t>(p_.live[item.sentence]) * p_.beams + item.begin + b;
    const size_t slot_size = dim_ * p_.heads * p_.target, head = dim_ * item.head * p_.target;
    const int32_t* slots = p_.slots + (p_.now->number % 2 * p_.total_slots + own) * p_.target;
    const int position = p_.now->position;
    const auto offset = [&](int i) {
      return (i == position ? own : slots[i]) * slot_size + head + i * dim_;
    };
    const float *k = row(p_.k, item, b), *v = row(p_.v, item, b);
    for_vectors(p_.head_dim, [&](int d, auto... tail) {
      store(p_.self_k + offset(position) + d, load(k + d, tail...), tail...);
      store(p_.self_v + offset(position) + d, load(v + d, tail...), tail...);
    });
    add_blocks(p_.self_k, p_.self_v, b, b + 1, position + 1, offset);
  }

  // Of `positions` rows, for beams [begin, end); offset(position) finds a row.
  template <typename Offset>
  void add_blocks(const C* k, const C* v, int begin, int end, int positions, Offset&& offset) {
    for (int position = 0; position < positions; position += kBlock) {
      Block<C>& block = next_->block;
      block.k = k, block.v = v, block.begin = begin, block.end = end;
      block.count = std::min(kBlock, positions - position);
      for (int i = 0; i < block.count; ++i) block.offsets[i] = offset(position + i);
      std::fill(block.offsets + block.count, block.offsets + kBlock,
                block.offsets[block.count - 1]);
      advance();
    }
  }

  void add_nothing() {
    next_->block.count = 0;
    advance();
  }

  // Attends to the block before the next one, which then takes its place.
  void advance() {
    attend(beams_, now_->block, next_->block, p_.head_dim);
    if (next_->first) {
      end(now_->item);
      begin(next_->item);
    }
    std::swap(now_, next_);
    next_->item = now_->item;
    next_->first = false;
  }

  void begin(const Item& item) {
    for (int b = 0; b < item.beams(); ++b) {
      const float* q = row(p_.q, item, b);
      beams_[b].softmax = {};
      for_vectors(p_.head_dim, [&](int d, auto... tail) {
        store(beams_[b].q + d, load(q + d, tail...) * p_.scale);
        store(beams_[b].sum + d, Floats{});
      });
    }
  }

  void end(const Item& item) const {
    for (int b = 0; b < item.beams(); ++b) {
      const size_t row = static_cast<size_t>(item.sentence) * p_.beams + item.begin + b;
      float* y = p_.y + (row * p_.heads + item.head) * dim_;
      const float normaliser = beams_[b].softmax.normaliser();
      for_vectors(p_.head_dim, [&](int d, auto... tail) {
        store(y + d, load(beams_[b].sum + d) * normaliser, tail...);
      });
    }
  }

  const float* row(const float* rows, const Item& item, int b) const {
    const size_t row = static_cast<size_t>(item.sentence) * p_.beams + item.begin + b;
    return rows + row * p_.stride + item.head * dim_;
  }

  struct Work {
    Item item;
    Block<C> block;
    bool first;  // of its item
  };

  const DecodeAttentionParams<float, C>& p_;
  const size_t dim_;
  Work work_[2]{};
  Work *now_ = &work_[0], *next_ = &work_[1];
  Beam beams_[kBeams];
};

}  // namespace
}  // namespace cpu

template <typename T, typename C, cpu::Isa isa>
void decode_attention(cpu::Stream<isa>& stream, const DecodeAttentionParams<T, C>& p) {
  // Beams part only where sentences and heads alone would leave threads without work.
  const int live_count = p.now->live_count;
  int tile = std::min(p.beams, cpu::kBeams);
  while (tile > 1 && live_count * p.heads * ((p.beams + tile - 1) / tile) < 4 * stream.size()) {
    tile = (tile + 1) / 2;
  }
  const int tiles = (p.beams + tile - 1) / tile;
  // Heads are the outer loop: threads then have equal shares of every sentence, however long.
  const cpu::Range items = stream.share(p.heads * live_count * tiles);
  cpu::Share<C> share(p);
  for (int i = items.begin; i < items.end; ++i) {
    const int begin = i % tiles * tile;
    share.add(
        {i / tiles / live_count, i / tiles % live_count, begin, std::min(begin + tile, p.beams)});
  }
  share.finish();
  stream.barrier();
}

template void decode_attention(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                               const DecodeAttentionParams<float, float>&);
template void decode_attention(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                               const DecodeAttentionParams<float, BFloat16>&);

}  // namespace decoding
