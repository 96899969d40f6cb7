#include "kernels/linear/pack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/stream.h"
#include "kernels/linear/linear.h"

namespace decoding {
namespace cpu {
namespace {

using Lines = uint32_t __attribute__((vector_size(16)));

constexpr int kTile = 16;      // lines of 4 bytes that are converted at a time
constexpr int kChunk = 4096;   // numbers that are read twice, the second time from the cache
constexpr float kSteps = 127;  // of int8 to either side of 0

// How the numbers of a type are stored: their absolute values grow as these integers do.
struct Float32 {
  using Bits = int32_t;
  static constexpr Bits kInfinity = 0x7f800000, kSign = INT32_MIN;
  static float value(Bits bits) { return std::bit_cast<float>(bits); }
};
struct Brain16 {
  using Bits = int16_t;
  static constexpr Bits kInfinity = 0x7f80, kSign = INT16_MIN;
  static float value(Bits bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};
struct Half16 {
  using Bits = int16_t;
  static constexpr Bits kInfinity = 0x7c00, kSign = INT16_MIN;
  static float value(Bits bits) {  // of a finite one: its exponent counts from 15, not from 127
    const uint32_t half = static_cast<uint16_t>(bits);
    const float magnitude = std::bit_cast<float>((half & 0x7fff) << 13) * 0x1p112f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | (half & 0x8000) << 16);
  }
};

template <typename Use>
void with_stored(WeightKind kind, Use&& use) {
  if (kind == WeightKind::float32) return use.template operator()<Float32>();
  if (kind == WeightKind::bfloat16) return use.template operator()<Brain16>();
  use.template operator()<Half16>();
}

// The largest absolute value of a row, as it is stored.
template <typename From>
typename From::Bits largest(const typename From::Bits* row, int64_t count) {
  typename From::Bits most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<typename From::Bits>(row[i] & ~From::kSign);
    most = magnitude > most ? magnitude : most;
  }
  return most;
}

template <typename From>
float scale_of(typename From::Bits most) {
  const float scale = From::value(most) / kSteps;
  return scale == 0 ? 1 : scale;
}

// The least absolute value that To cannot hold: infinity, or what it rounds to that.
template <typename From, typename To>
constexpr typename From::Bits beyond() {
  using Bits = typename From::Bits;
  constexpr bool kWide = sizeof(Bits) == 4, kBrain = std::is_same_v<From, Brain16>;
  if (std::is_same_v<To, Float16> && kWide) return static_cast<Bits>(0x477ff000);  // 65520
  if (std::is_same_v<To, Float16> && kBrain) return static_cast<Bits>(0x4780);     // 65536
  if (std::is_same_v<To, uint16_t> && kWide) return static_cast<Bits>(0x7f7f8000);
  return From::kInfinity;
}

inline void convert(float x, float, float& to) { to = x; }
inline void convert(float x, float,
                    uint16_t& to) {  // bfloat16, to the nearest, the even one of two
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  to = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline void convert(float x, float, Float16& to) {  // likewise
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff, normal = magnitude - (112 << 23);
  const float least = std::bit_cast<float>(magnitude) + 0.5f;  // its last bit is a half's
  const uint32_t rounded = magnitude < 0x38800000 ? std::bit_cast<uint32_t>(least)
                                                  : (normal + 0xfff + (normal >> 13 & 1)) >> 13;
  to.bits = static_cast<uint16_t>(sign | (rounded & 0x7fff));
}
inline void convert(float x, float scale, int8_t& to) {
  const float quotient = x / scale;  // beyond 127 where the scale has few bits
  const float steps = quotient < -kSteps ? -kSteps : quotient > kSteps ? kSteps : quotient;
  to = static_cast<int8_t>(std::bit_cast<uint32_t>(steps + 0x1.8p23f));  // its last bits: rounded
}

template <typename From, typename To>
[[gnu::always_inline]] inline void convert(const typename From::Bits* from, int count, float scale,
                                           To* to) {
  for (int i = 0; i < count; ++i) convert(From::value(from[i]), scale, to[i]);
}

// Four lines of each of four rows, to where the rows are neighbours.
void transpose(const uint8_t* from, int64_t stride, uint32_t* to) {
  Lines a, b, c, d;
  std::memcpy(&a, from, 16);
  std::memcpy(&b, from + stride, 16);
  std::memcpy(&c, from + 2 * stride, 16);
  std::memcpy(&d, from + 3 * stride, 16);
  const Lines ab = __builtin_shuffle(a, b, Lines{0, 4, 1, 5});
  const Lines cd = __builtin_shuffle(c, d, Lines{0, 4, 1, 5});
  const Lines ab_high = __builtin_shuffle(a, b, Lines{2, 6, 3, 7});
  const Lines cd_high = __builtin_shuffle(c, d, Lines{2, 6, 3, 7});
  const Lines to_0 = __builtin_shuffle(ab, cd, Lines{0, 1, 4, 5});
  const Lines to_1 = __builtin_shuffle(ab, cd, Lines{2, 3, 6, 7});
  const Lines to_2 = __builtin_shuffle(ab_high, cd_high, Lines{0, 1, 4, 5});
  const Lines to_3 = __builtin_shuffle(ab_high, cd_high, Lines{2, 3, 6, 7});
  std::memcpy(to, &to_0, 16);
  std::memcpy(to + kPanel, &to_1, 16);
  std::memcpy(to + 2 * kPanel, &to_2, 16);
  std::memcpy(to + 3 * kPanel, &to_3, 16);
}

// `lines` of the panel's outputs from `column` to its last; a row begins each `stride` bytes.
void store(const void* rows, int64_t stride, int column, int lines, uint32_t* panel) {
  const auto* from = static_cast<const uint8_t*>(rows);
  for (; column < kPanel; ++column, from += stride) {
    if (lines == kTile && column + 4 <= kPanel) {
      for (int i = 0; i < kTile; i += 4)
        transpose(from + 4 * i, stride, panel + i * kPanel + column);
      column += 3, from += 3 * stride;
      continue;
    }
    for (int i = 0; i < lines; ++i) std::memcpy(panel + i * kPanel + column, from + 4 * i, 4);
  }
}

// The rows that one panel takes, and zeros behind the last one.
template <typename From, typename To>
void pack_panel(const PackParams& p, int64_t panel) {
  using Bits = typename From::Bits;
  constexpr int kGroup = 4 / sizeof(To), kInputs = kTile * kGroup;
  constexpr bool kQuantised = std::is_same_v<To, int8_t>;
  constexpr bool kSame = sizeof(To) == sizeof(Bits) && !std::is_same_v<From, Half16>;
  const int64_t begin = std::max(p.first, panel * kPanel), output = panel * kPanel;
  const int rows = static_cast<int>(std::min(p.first + p.count, output + kPanel) - begin);
  const int column = static_cast<int>(begin - output);
  const Bits* from = static_cast<const Bits*>(p.rows) + (begin - p.first) * p.inputs;
  float scale[kPanel];
  int32_t sums[kPanel] = {};
  bool finite = true;
  for (int row = 0; row < rows; ++row) {  // reads in order; then the rows are in the cache
    const Bits most = largest<From>(from + row * p.inputs, p.inputs);
    finite &= most < beyond<From, To>();
    scale[row] = scale_of<From>(most);
  }
  if (!finite) *p.finite = false;
  alignas(64) To tile[kPanel][kInputs] = {};
  const int64_t all = (p.inputs + kGroup - 1) / kGroup;  // lines
  uint32_t* to = static_cast<uint32_t*>(p.panels) + panel * all * kPanel;
  for (int64_t line = 0; line < all; line += kTile, to += kTile * kPanel, from += kInputs) {
    const int lines = static_cast<int>(std::min<int64_t>(kTile, all - line));
    const bool whole = p.inputs - line * kGroup >= kInputs;
    if (kSame && whole && column + rows == kPanel) {
      store(from, p.inputs * sizeof(Bits), column, lines, to);
      continue;
    }
    if (!whole) std::memset(tile, 0, sizeof(tile));
    for (int row = 0; row < rows; ++row) {
      const Bits* numbers = from + row * p.inputs;
      if (whole) {  // a count that the compiler knows
        convert<From>(numbers, kInputs, scale[row], tile[row]);
      } else {
        convert<From>(numbers, static_cast<int>(p.inputs - line * kGroup), scale[row], tile[row]);
      }
      if constexpr (kQuantised) {
        for (const int8_t number : tile[row]) sums[row] += number;
      }
    }
    store(tile, sizeof(tile[0]), column, lines, to);
  }
  if constexpr (kQuantised) {
    std::memcpy(p.scale + begin, scale, rows * sizeof(float));
    std::memcpy(p.sums + begin, sums, rows * sizeof(int32_t));
  }
}

// The inputs of kTile lines, of all outputs of a panel: lines of 4 inputs, 16 inputs a group.
void interleave_tile(const InterleaveParams& p, int64_t panel, int64_t line) {
  constexpr int kGroup = 4;  // lines
  const int64_t all = (p.inputs + kGroup - 1) / kGroup, output = panel * kPanel;
  const int64_t stride = quantized_stride(static_cast<int>(p.inputs));
  const auto count = std::min<int64_t>(kPanel, p.outputs - output);
  const uint32_t* panel_lines = p.panels + panel * all * kPanel;
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t at = line; at < std::min(line + kTile, all); at += kGroup) {
      uint32_t in[kGroup] = {};
      for (int i = 0; i < kGroup && at + i < all; ++i) in[i] = panel_lines[(at + i) * kPanel + n];
      const auto low = [](uint32_t a, uint32_t b) { return (a & 0xFFFF) | b << 16; };
      const auto high = [](uint32_t a, uint32_t b) { return a >> 16 | (b & 0xFFFF0000); };
      const uint32_t out[] = {low(in[0], in[2]), high(in[0], in[2]), low(in[1], in[3]),
                              high(in[1], in[3])};
      std::memcpy(p.rows + (output + n) * stride + 4 * at, out, sizeof(out));
    }
  }
}

template <typename From, typename To>
void convert_chunk(const ConvertParams& p, int64_t chunk) {
  const int64_t begin = chunk * kChunk;
  const int count = static_cast<int>(std::min<int64_t>(kChunk, p.count - begin));
  const auto* from = static_cast<const typename From::Bits*>(p.numbers) + begin;
  if (largest<From>(from, count) >= beyond<From, To>()) *p.finite = false;
  convert<From>(from, count, 1, static_cast<To*>(p.to) + begin);
}

template <typename From>
double squares_of(const typename From::Bits* row, int64_t count) {
  constexpr int kSums = 32;  // added side by side
  float sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int j = 0; j < kSums; ++j) {
      const float x = From::value(row[i + j]);
      sums[j] += x * x;
    }
  }
  double total = 0;
  for (; i < count; ++i) total += static_cast<double>(From::value(row[i])) * From::value(row[i]);
  for (const float sum : sums) total += sum;
  return total;
}

}  // namespace
}  // namespace cpu

template <cpu::Isa isa>
void pack(cpu::Stream<isa>& stream, const PackParams& p) {
  const int64_t begin = p.first / kPanel, end = (p.first + p.count + kPanel - 1) / kPanel;
  const cpu::Range mine = stream.share(static_cast<int>(end - begin));
  cpu::with_stored(p.stored, [&]<typename From>() {
    for (int64_t panel = begin + mine.begin; panel < begin + mine.end; ++panel) {
      if (p.kind == WeightKind::float32) {
        cpu::pack_panel<From, float>(p, panel);
      } else if (p.kind == WeightKind::bfloat16) {
        cpu::pack_panel<From, uint16_t>(p, panel);
      } else {
        cpu::pack_panel<From, int8_t>(p, panel);
      }
    }
  });
  stream.barrier();
}

template <cpu::Isa isa>
void interleave(cpu::Stream<isa>& stream, const InterleaveParams& p) {
  const cpu::Range mine = stream.share(static_cast<int>((p.outputs + kPanel - 1) / kPanel));
  for (int panel = mine.begin; panel < mine.end; ++panel) {
    for (int64_t line = 0; 4 * line < p.inputs; line += cpu::kTile) {
      cpu::interleave_tile(p, panel, line);
    }
  }
  stream.barrier();
}

template <cpu::Isa isa>
void convert(cpu::Stream<isa>& stream, const ConvertParams& p) {
  const int64_t chunks = (p.count + cpu::kChunk - 1) / cpu::kChunk;
  const cpu::Range mine = stream.share(static_cast<int>(chunks));
  cpu::with_stored(p.stored, [&]<typename From>() {
    for (int chunk = mine.begin; chunk < mine.end; ++chunk) {
      if (p.kind == WeightKind::float32) {
        cpu::convert_chunk<From, float>(p, chunk);
      } else if (p.kind == WeightKind::float16) {
        cpu::convert_chunk<From, Float16>(p, chunk);
      } else {
        cpu::convert_chunk<From, uint16_t>(p, chunk);
      }
    }
  });
  stream.barrier();
}

template <cpu::Isa isa>
void squares(cpu::Stream<isa>& stream, const SquaresParams& p) {
  const cpu::Range mine = stream.share(static_cast<int>(p.count));
  double length = 0, steps = 0;
  cpu::with_stored(p.stored, [&]<typename From>() {
    for (int row = mine.begin; row < mine.end; ++row) {
      const auto* numbers = static_cast<const typename From::Bits*>(p.rows) + row * p.inputs;
      const double step = From::value(cpu::largest<From>(numbers, p.inputs)) / cpu::kSteps;
      steps += step * step;
      length += cpu::squares_of<From>(numbers, p.inputs);
    }
  });
  p.length[stream.rank()] = length;
  p.steps[stream.rank()] = steps;
  stream.barrier();
}

template void pack(cpu::Stream<cpu::Isa::DECODING_ISA>&, const PackParams&);
template void interleave(cpu::Stream<cpu::Isa::DECODING_ISA>&, const InterleaveParams&);
template void convert(cpu::Stream<cpu::Isa::DECODING_ISA>&, const ConvertParams&);
template void squares(cpu::Stream<cpu::Isa::DECODING_ISA>&, const SquaresParams&);

}  // namespace decoding
