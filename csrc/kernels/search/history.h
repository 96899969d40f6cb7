// A row as its caller sees it: the prompt as given, padding included, then the tokens generated so
// far. Nothing is copied: tokens are read through the indirection table (decode.h).
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace decoding {

struct History {
  const int32_t* prompt;             // [width]
  const int32_t* tokens;             // [target, total_rows]
  const int32_t* cache_indirection;  // column of `tokens` in which the token of step j lies
  int32_t newest;                    // the last of the generated ones
  int width, total_rows, length;

  DECODING_EVERYWHERE int32_t operator[](int i) const {
    if (i < width) return prompt[i];
    if (i == length - 1) return newest;  // its step has not yet been entered into the table
    const int j = i - width + 1;
    return tokens[int64_t{j - 1} * total_rows + cache_indirection[j]];
  }

  // Whether the last `count` tokens are those.
  template <typename Tokens>
  DECODING_EVERYWHERE bool ends_with(const Tokens& last, int begin, int count) const {
    if (count > length) return false;
    for (int i = 1; i <= count; ++i) {  // most differ in the last one
      if ((*this)[length - i] != last[begin + count - i]) return false;
    }
    return true;
  }
};

}  // namespace decoding
