// The largest head that attention and rotary positions are built for.
#pragma once

namespace decoding {

constexpr int kMaxHeadDim = 256;

}  // namespace decoding
