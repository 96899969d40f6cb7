// Embeddings of training, and their gradient: a thread takes the ids that begin in its share of an
// order, and adds up all rows of one before it goes on to the next.
#include <algorithm>

#include "kernels/cpu/stream.h"
#include "kernels/rows/cpu/dropout_factors.h"
#include "kernels/rows/embed.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kColumns = 256;  // whose sums are kept at once

template <typename T>
void embed_row(const TrainingEmbedParams<T>& p, int64_t r) {
  const size_t hidden = p.hidden;
  const T* token = p.token_table + p.ids[r] * hidden;
  const T* position = p.position_table;
  if (position != nullptr)
    position += (p.positions != nullptr ? p.positions[r] : r % p.length) * hidden;
  const Lanes<T> scale = broadcast(static_cast<Real<T>>(p.scale));
  const auto embed = [&](int c, Lanes<T> factors, auto... count) {
    const Lanes<T> shift = position != nullptr ? load(position + c, count...) : Lanes<T>{};
    const Lanes<T> y = fma(scale, load(token + c, count...), shift);
    store(p.y + r * hidden + c, y * factors, count...);
  };
  for_dropped_vectors<T>(p.dropout, r * hidden, p.hidden, embed);
}

// The rows of one id, places `begin` to `end` of the order.
template <typename T>
void add_rows(const EmbedBackwardParams<T>& p, int begin, int end) {
  const size_t hidden = p.hidden;
  T* to = p.dtable + p.ids[begin] * hidden;
  for (int first = 0; first < p.hidden; first += kColumns) {
    const int cols = std::min(kColumns, p.hidden - first);
    Real<T> sums[kColumns] = {};
    for (int i = begin; i < end; ++i) {
      const size_t at = p.order[i] * hidden + first;
      for_dropped_vectors<T>(p.dropout, at, cols, [&](int c, Lanes<T> factors, auto... count) {
        const Lanes<T> dy = load(p.dy + at + c, count...);
        store(sums + c, fma(dy, factors, load(sums + c, count...)), count...);
      });
    }
    const Lanes<T> scale = broadcast(static_cast<Real<T>>(p.scale));
    for_vectors(cols, [&](int c, auto... count) {
      store(to + first + c, load(sums + c, count...) * scale, count...);
    });
  }
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void training_embed(cpu::Stream<isa>& stream, const TrainingEmbedParams<T>& p) {
  const cpu::Range rows = stream.share(p.rows);
  for (int r = rows.begin; r < rows.end; ++r) cpu::embed_row(p, r);
  stream.barrier();
}

template <typename T, cpu::Isa isa>
void embed_backward(cpu::Stream<isa>& stream, const EmbedBackwardParams<T>& p) {
  const cpu::Range mine = stream.share(p.rows);
  int begin = mine.begin;
  while (begin > 0 && begin < mine.end && p.ids[begin] == p.ids[begin - 1]) ++begin;
  while (begin < mine.end) {
    const int64_t id = p.ids[begin];
    int end = begin + 1;
    while (end < p.rows && p.ids[end] == id) ++end;
    if (id >= 0 && id < p.vocab && id != p.ignored) cpu::add_rows(p, begin, end);
    begin = end;
  }
  stream.barrier();
}

#define INSTANTIATE(T)                                               \
  template void training_embed(cpu::Stream<cpu::Isa::DECODING_ISA>&, \
                               const TrainingEmbedParams<T>&);       \
  template void embed_backward(cpu::Stream<cpu::Isa::DECODING_ISA>&, const EmbedBackwardParams<T>&);
DECODING_FOR_ELEMENTS(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
