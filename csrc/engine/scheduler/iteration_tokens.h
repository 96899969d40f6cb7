// A histogram: how many tokens the iterations of a scheduler's loop have read and generated.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace decoding {

struct IterationTokens {
  // Of iterations with at most 1, 2, 4, ... 2^14 tokens, but more than those before; and with more.
  std::array<int64_t, 16> counts{};
  int64_t sum = 0;  // tokens

  // Nothing is counted of an iteration that has none.
  void add(int tokens) {
    if (tokens == 0) return;
    const size_t bucket = std::bit_width(static_cast<unsigned>(tokens - 1));
    ++counts[std::min(bucket, counts.size() - 1)];
    sum += tokens;
  }
};

}  // namespace decoding
