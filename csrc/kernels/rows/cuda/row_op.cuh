// The parts of operators over rows: y = store(f * weigh(load(x), c) + g), where c stems from
// one reduction over the row, and f and g from a second one. Layer norm: c is the mean, weigh
// subtracts it, f is one over the standard deviation. Softmax: c is the maximum, weigh takes
// exp(x - c), f is one over their sum.
//
// Load and store functors, so that a bias, a scale or a lookup costs no pass of its own, are
// OneFlow's idea (layer_norm.cuh, softmax.cuh).
#pragma once

#include "kernels/cuda/vector.cuh"
#include "kernels/rows/cuda/row_packed.cuh"
#include "kernels/rows/weight.h"

namespace decoding::cuda {

// Load, for kPack neighbouring columns at a time:
//   Columns columns(col)          what belongs to columns, the same for all rows
//   Raw fetch(row, col)           begins to load
//   values(row, col, raw, columns, x)    makes numbers of it
//   keep(row, col, x)             may be absent: writes them somewhere
// Center, with the reduction First and a number kSums of sums:
//   bool has_center()             whether c is not 0; else the first reduction falls away
//   float center(first)           c
//   weigh(x, c, sums)             turns x into what f multiplies, and adds to the sums
//   Line line(sums)               f and g
// Store:
//   Columns columns(col)
//   Raw fetch(row, col)           with kAdds: begins to load what is added
//   store(row, col, columns, raw, x)
//   keep(row, c, line)            may be absent: by one thread, writes what is known of the row
template <typename Load_, typename Center_, typename Store_>
struct RowOp {
  using Load = Load_;
  using Center = Center_;
  using Store = Store_;
  static constexpr int kPack = Load::kPack;
  Load load;
  Center center;
  Store store;
};

// f * x + g
struct Line {
  float f, g;
};

// Whether a Load or a Store has it.
template <typename Part>
constexpr bool kKeeps = requires { &Part::keep; };

struct Nothing {};

// `count` floats, zeros where there are none.
template <int count>
struct Floats {
  float values[count] = {};

  __device__ __forceinline__ static Floats load(const float* from, int col) {
    Floats floats;
    if (from == nullptr) return floats;
    constexpr int kStep = count < 4 ? count : 4;  // 16 bytes
#pragma unroll
    for (int i = 0; i < count; i += kStep) {
      const auto few = Vector<float, kStep>::load(from + col + i);
#pragma unroll
      for (int j = 0; j < kStep; ++j) floats.values[i + j] = few[j];
    }
    return floats;
  }
};

// Of a weight, or `otherwise` where it is null.
template <int count, typename T>
__device__ __forceinline__ Floats<count> load_weight(const Weight<const T>& weight, int col,
                                                     float otherwise) {
  if (weight.wide != nullptr) return Floats<count>::load(weight.wide, col);
  Floats<count> floats;
  if (weight.same != nullptr) {
    Packed<T, count>::load(weight.same + col).unpack(floats.values);
  } else {
#pragma unroll
    for (float& value : floats.values) value = otherwise;
  }
  return floats;
}

template <typename T>
bool aligned16(const Weight<T>& weight) {
  return aligned16<float>(weight.wide, 0) && aligned16<float>(weight.same, 0);
}

// Rows of T as they are.
template <typename T, int pack>
struct LoadRows {
  static constexpr int kPack = pack;
  using Columns = Nothing;
  using Raw = Packed<T, pack>;
  const T* x;  // [rows, cols]
  int cols;

  __device__ __forceinline__ Columns columns(int) const { return {}; }
  __device__ __forceinline__ Raw fetch(int row, int col) const {
    return Raw::load(x + int64_t{row} * cols + col);
  }
  __device__ __forceinline__ static void values(int, int, const Raw& raw, const Columns&,
                                                float (&x)[pack]) {
    raw.unpack(x);
  }
};

template <typename T, int pack>
struct StoreRows {
  static constexpr bool kAdds = false;
  using Columns = Nothing;
  using Raw = Nothing;
  T* y;  // [rows, cols]
  int cols;

  __device__ __forceinline__ Columns columns(int) const { return {}; }
  __device__ __forceinline__ Raw fetch(int, int) const { return {}; }
  __device__ __forceinline__ void store(int row, int col, const Columns&, const Raw&,
                                        const float (&x)[pack]) const {
    Packed<T, pack>::of(x).store(y + int64_t{row} * cols + col);
  }
};

}  // namespace decoding::cuda
