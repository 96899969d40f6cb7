// Arm's dot product of bfloat16 pairs (BFDOT), written out in integers and double, and a product of
// matrices by it in the order of linear.h:
//
//   sum = odd(sum + odd(a0 b0 + a1 b1))
//
// where odd() rounds to float32 towards zero and, where that was inexact, makes the last bit 1.
// Subnormal numbers are 0. A panel's block of 64 pairs is added up apart.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace decoding {

inline float rounded_to_odd(double a, double b) {  // of a + b
  const double sum = a + b;
  const double from_a = sum - b, from_b = sum - from_a;
  const double rest = (a - from_a) + (b - from_b);  // what the double sum lacks (Knuth)
  if (sum == 0) return static_cast<float>(sum);
  float nearest = static_cast<float>(sum);
  const double error = (sum - static_cast<double>(nearest)) + rest;
  if (error == 0) return std::fabs(nearest) < 0x1p-126f ? std::copysign(0.0f, nearest) : nearest;
  // Towards zero: the neighbour, where the nearest lies beyond.
  if ((error < 0) == (sum > 0)) nearest = std::nextafter(nearest, 0.0f);
  uint32_t bits;
  std::memcpy(&bits, &nearest, sizeof bits);
  bits |= 1;
  std::memcpy(&nearest, &bits, sizeof bits);
  return std::fabs(nearest) < 0x1p-126f ? std::copysign(0.0f, nearest) : nearest;
}

inline float to_bfloat16(float x) {  // to the nearest, the even one of two
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}

// y = x W^T. x: [rows, K]; w: [outputs, K]; y: [rows, outputs].
inline std::vector<float> bfloat16_product(const std::vector<float>& x, const std::vector<float>& w,
                                           int rows, int outputs, int inputs) {
  constexpr int kBlock = 2 * 64;  // inputs
  std::vector<float> y(static_cast<size_t>(rows) * outputs);
  const auto at = [&](const std::vector<float>& of, int row, int k) {
    return k < inputs ? static_cast<double>(to_bfloat16(of[static_cast<size_t>(row) * inputs + k]))
                      : 0.0;
  };
  for (int r = 0; r < rows; ++r) {
    for (int n = 0; n < outputs; ++n) {
      float& total = y[static_cast<size_t>(r) * outputs + n];
      for (int begin = 0; begin < inputs; begin += kBlock) {
        float sum = 0.0f;
        for (int k = begin; k < std::min(begin + kBlock, inputs); k += 2) {
          const float pair =
              rounded_to_odd(at(x, r, k) * at(w, n, k), at(x, r, k + 1) * at(w, n, k + 1));
          sum = rounded_to_odd(sum, pair);
        }
        total += sum;
      }
    }
  }
  return y;
}

}  // namespace decoding
