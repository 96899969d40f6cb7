#include "kernels/attention/rotary.h"

#include "kernels/attention/attention.h"
#include "kernels/attention/cpu/sine_cosine.h"
#include "kernels/cpu/normalize.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace cpu {
namespace {

// How the pairs of a position turn: [size / 2], or, where pairs are neighbours, [size] with each
// pair's sine as (-s, s), so that a number, its neighbour and a place of the tables go together.
struct Turns {
  float sines[kMaxHeadDim], cosines[kMaxHeadDim];

  Turns(const Rotation& p, RotaryPlace place) {
    const float at = place.position;
    const float* frequencies = p.frequencies + place.table * (p.size / 2);
    for_vectors(p.size / 2, [&](int i, auto... count) {
      const SineCosine angle = sine_cosine(at * load(frequencies + i, count...));
      store(sines + i, p.factor * angle.sine, count...);
      store(cosines + i, p.factor * angle.cosine, count...);
    });
    if (!p.interleaved) return;
    for (int i = p.size / 2 - 1; i >= 0; --i) {
      sines[2 * i + 1] = sines[i], cosines[2 * i + 1] = cosines[i];
      sines[2 * i] = -sines[2 * i + 1], cosines[2 * i] = cosines[2 * i + 1];
    }
  }
};

// Pairs are i and i + half.
void turn_halves(const Turns& turns, float* x, int half) {
  for_vectors(half, [&](int i, auto... count) {
    const Floats sine = load(turns.sines + i, count...), cosine = load(turns.cosines + i, count...);
    const Floats a = load(x + i, count...), b = load(x + half + i, count...);
    store(x + i, fma(a, cosine, -(b * sine)), count...);
    store(x + half + i, fma(b, cosine, a * sine), count...);
  });
}

void turn_neighbours(const Turns& turns, float* x, int size) {
  for_vectors(size, [&](int i, auto... count) {
    const Floats own = load(x + i, count...);
    const Floats other = __builtin_shuffle(own, lane_ids() ^ 1);
    const Floats sine = load(turns.sines + i, count...), cosine = load(turns.cosines + i, count...);
    store(x + i, fma(own, cosine, other * sine), count...);
  });
}

// The heads [begin, end) of a row.
void rotate_heads(const RotateParams<float>& p, int row, int begin, int end) {
  const Rotation& rotation = p.rotation;
  float* x = p.x + int64_t{row} * p.stride;
  for (int head = begin; head < end; ++head) {
    const Norm& norm = head < p.heads ? rotation.q_norm : rotation.k_norm;
    float* own = x + head * p.head_dim;
    if (norm.gamma != nullptr) normalize(own, norm, own, p.head_dim);
  }
  if (rotation.frequencies == nullptr) return;
  const Turns turns(rotation, rotation.tables.place_of(rotation.at[row]));
  for (int head = begin; head < end; ++head) {
    float* own = x + head * p.head_dim;
    rotation.interleaved ? turn_neighbours(turns, own, rotation.size)
                         : turn_halves(turns, own, rotation.size / 2);
  }
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void rotate(cpu::Stream<isa>& stream, const RotateParams<T>& p) {
  const int heads = p.heads + p.kv_heads;
  const cpu::Range mine = stream.share(p.rows * heads);
  for (int i = mine.begin; i < mine.end;) {
    const int row = i / heads, head = i % heads, end = std::min(heads, head + mine.end - i);
    cpu::rotate_heads(p, row, head, end);
    i += end - head;
  }
  stream.barrier();
}

template void rotate(cpu::Stream<cpu::Isa::DECODING_ISA>&, const RotateParams<float>&);

}  // namespace decoding
