// Contrastive search, rows or sentences shared over the threads. The contract is in contrastive.h.
#include "kernels/search/contrastive.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/stream.h"
#include "kernels/search/shared/contrastive.h"

namespace decoding {
namespace {

using cpu::Floats;

float dot(const float* a, const float* b, int size) {
  Floats sum = {};
  cpu::for_vectors(size, [&](int c, auto... count) {
    sum = cpu::fma(cpu::load(a + c, count...), cpu::load(b + c, count...), sum);
  });
  return cpu::sum_of(sum);
}

template <typename T>
float similarity(const ContrastParams<T>& p, const ActiveSentence& sentence, int row) {
  const T* own = p.x + int64_t{row} * p.size;
  const float length = std::sqrt(dot(own, own, p.size));
  float most = -INFINITY;
  const auto compare = [&](const T* other) {
    const float others = std::sqrt(dot(other, other, p.size));
    most = std::max(most, dot(own, other, p.size) / (length * others));
  };
  if (p.prompt != nullptr) {
    for (int t = p.prompt_offsets[sentence.id]; t < p.prompt_offsets[sentence.id + 1]; ++t) {
      compare(p.prompt + int64_t{t} * p.size);
    }
  }
  const int slot = sentence.id * p.slots + row % p.beams;
  const int32_t* slots =
      p.cache_indirection + (int64_t{sentence.table()} * p.total_rows + slot) * p.history;
  for (int t = 0; t < sentence.position; ++t) {
    compare(p.hidden + (int64_t{slots[t]} * p.history + t) * p.size);
  }
  return most;
}

}  // namespace

template <typename T, cpu::Isa isa>
void contrast(cpu::Stream<isa>& stream, const ContrastParams<T>& p) {
  const cpu::Range mine = stream.share(p.state->active_count * p.beams);
  for (int row = mine.begin; row < mine.end; ++row) {
    const ActiveSentence& sentence = p.active[row / p.beams];
    p.similarity[row] = similarity(p, sentence, row);
    const int64_t slot = sentence.id * p.slots + row % p.beams;
    std::copy_n(p.x + int64_t{row} * p.size, p.size,
                p.hidden + (slot * p.history + sentence.position) * p.size);
  }
  stream.barrier();
}

template <cpu::Isa isa>
void contrast_step(cpu::Stream<isa>& stream, const ContrastStepParams& p) {
  const cpu::Range mine = stream.share(p.search.state->active_count);
  for (int i = mine.begin; i < mine.end; ++i) {
    if (contrast_sentence(p, i)) BeamSentence(p.search, i).inherit(0, 1);
  }
  stream.barrier();
}

template void contrast(cpu::Stream<cpu::Isa::DECODING_ISA>&, const ContrastParams<float>&);
template void contrast_step(cpu::Stream<cpu::Isa::DECODING_ISA>&, const ContrastStepParams&);

}  // namespace decoding
