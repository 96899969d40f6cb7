#include "kernels/attention/rotary.h"

#include "kernels/attention/cpu/sine_cosine.h"
#include "kernels/attention/head_dim.h"
#include "kernels/cpu/normalize.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace cpu {
namespace {

// Sines and cosines of a position's angles: [size / 2], or, where pairs are neighbours, [size] with
// each pair's sine as (-s, s), so that a number, its neighbour and a place of the tables go
// together.
struct AngleTable {
  float sines[kMaxHeadDim], cosines[kMaxHeadDim];

  AngleTable(const Rotary& p, RotaryPosition at) {
    const float position = at.position;
    const float* frequencies = p.frequencies + at.table * (p.size / 2);
    for_vectors(p.size / 2, [&](int i, auto... count) {
      const SineCosine angle = sine_cosine(position * load(frequencies + i, count...));
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
void rotate_halves(const AngleTable& angles, float* x, int half) {
  for_vectors(half, [&](int i, auto... count) {
    const Floats sine = load(angles.sines + i, count...),
                 cosine = load(angles.cosines + i, count...);
    const Floats a = load(x + i, count...), b = load(x + half + i, count...);
    store(x + i, fma(a, cosine, -(b * sine)), count...);
    store(x + half + i, fma(b, cosine, a * sine), count...);
  });
}

void rotate_neighbours(const AngleTable& angles, float* x, int size) {
  for_vectors(size, [&](int i, auto... count) {
    const Floats own = load(x + i, count...);
    const Floats other = __builtin_shuffle(own, lane_ids() ^ 1);
    const Floats sine = load(angles.sines + i, count...),
                 cosine = load(angles.cosines + i, count...);
    store(x + i, fma(own, cosine, other * sine), count...);
  });
}

// The heads [begin, end) of a row.
void rotate_heads(const RotaryParams<float>& p, int row, int begin, int end) {
  const Rotary& rotary = p.rotary;
  float* x = p.x + int64_t{row} * p.stride;
  for (int head = begin; head < end; ++head) {
    const Norm& norm = head < p.heads ? rotary.q_norm : rotary.k_norm;
    float* vector = x + head * p.head_dim;
    if (norm.gamma != nullptr) normalize(vector, norm, vector, p.head_dim);
  }
  if (rotary.frequencies == nullptr) return;
  const AngleTable angles(rotary, rotary.tables.unpack(rotary.positions[row]));
  for (int head = begin; head < end; ++head) {
    float* vector = x + head * p.head_dim;
    rotary.interleaved ? rotate_neighbours(angles, vector, rotary.size)
                       : rotate_halves(angles, vector, rotary.size / 2);
  }
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void apply_rotary(cpu::Stream<isa>& stream, const RotaryParams<T>& p) {
  const int heads = p.heads + p.kv_heads;
  const cpu::Range mine = stream.share(p.rows * heads);
  for (int i = mine.begin; i < mine.end;) {
    const int row = i / heads, head = i % heads, end = std::min(heads, head + mine.end - i);
    cpu::rotate_heads(p, row, head, end);
    i += end - head;
  }
  stream.barrier();
}

template void apply_rotary(cpu::Stream<cpu::Isa::DECODING_ISA>&, const RotaryParams<float>&);

}  // namespace decoding
