// Linear weights on their way to the CPU's engine: into the panels of kernels/linear/linear.h.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "bindings/model.h"
#include "bindings/tensor.h"
#include "kernels/linear/linear.h"

namespace decoding {
namespace {

using Lines = uint32_t __attribute__((vector_size(16)));

constexpr int kTile = 16;                     // lines of a row side by side: a cache line
constexpr int64_t kBytesOfAThread = 1 << 20;  // fewer do not pay for its start

// Rows of a weight, in lines of 4 bytes (g inputs), and the panels that take them.
struct Rows {
  const uint8_t* from;  // [rows, bytes]
  int64_t rows, bytes;  // of a row: not always a multiple of 4
  int64_t first;        // the output that row 0 is
  uint32_t* panels;     // [panels, lines, kPanel]
  int64_t lines;
};

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

// One row, from line `line` on.
void scatter(const uint8_t* row, int64_t bytes, int64_t line, int64_t lines, uint32_t* to) {
  for (; line < lines; ++line) {
    uint32_t value = 0;
    std::memcpy(&value, row + 4 * line, std::min<int64_t>(4, bytes - 4 * line));
    to[line * kPanel] = value;
  }
}

// The rows that panel `panel` takes, and zeros behind the last one.
void fill(const Rows& w, int64_t panel) {
  const int64_t begin = std::max(w.first, panel * kPanel) - w.first;
  const int64_t end = std::min(w.first + w.rows, (panel + 1) * kPanel) - w.first;
  const uint8_t* from = w.from + begin * w.bytes;
  const int64_t column = (w.first + begin) % kPanel, rows = end - begin;
  uint32_t* to = w.panels + panel * w.lines * kPanel;
  const int64_t tiled_rows = rows / 4 * 4, tiled_lines = w.bytes / (4 * kTile) * kTile;
  for (int64_t line = 0; line < tiled_lines; line += kTile) {
    for (int64_t row = 0; row < tiled_rows; row += 4) {
      for (int64_t i = line; i < line + kTile; i += 4) {
        transpose(from + row * w.bytes + 4 * i, w.bytes, to + i * kPanel + column + row);
      }
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t done = row < tiled_rows ? tiled_lines : 0;
    scatter(from + row * w.bytes, w.bytes, done, w.lines, to + column + row);
  }
  for (int64_t line = 0; line < w.lines; ++line) {
    std::fill(to + line * kPanel + column + rows, to + (line + 1) * kPanel, 0u);
  }
}

// Whether no exponent is all ones. T: an integer as wide as a number; exponent: its bits.
template <typename T>
bool is_finite(const uint8_t* numbers, int64_t count, T exponent) {
  const T least = exponent & -exponent;
  T carried = 0;
  for (int64_t i = 0; i < count; ++i) {
    T bits;
    std::memcpy(&bits, numbers + i * sizeof(T), sizeof(T));
    carried |= static_cast<T>((bits & exponent) + least);
  }
  return carried >> (8 * sizeof(T) - 1) == 0;
}

bool is_finite(const uint8_t* numbers, int64_t bytes, WeightKind kind) {
  switch (kind) {
    case WeightKind::float32:
      return is_finite<uint32_t>(numbers, bytes / 4, 0x7f800000u);
    case WeightKind::bfloat16:
      return is_finite<uint16_t>(numbers, bytes / 2, 0x7f80u);
    case WeightKind::float16:
      return is_finite<uint16_t>(numbers, bytes / 2, 0x7c00u);
    default:
      return true;
  }
}

// Fills the panels' outputs from `first` on; returns whether all numbers were finite. Rows come in
// order: those of the last panel behind them are zero until the next ones come.
bool fill_panels(const py::object& panels, const py::object& weight, int64_t first, int threads) {
  const auto from = TensorView::of(weight, "weight"), to = TensorView::of(panels, "panels");
  const auto kind = kind_of(from, "weight");
  CHECK(kind && from.type() == to.type(), "weight and panels must be of one type, got ",
        from.type(), " and ", to.type());
  CHECK(from.shape().size() == 2 && first >= 0, "weight must be [N, K]");
  const int64_t rows = from.size(0), inputs = from.size(1);
  std::vector<int64_t> shape = panel_shape(first + rows, inputs, *kind);
  CHECK(to.shape().size() == 3 && to.size(0) >= shape[0] && to.size(1) == shape[1] &&
            to.size(2) == shape[2],
        "panels must have room for ", first + rows, " outputs of ", inputs, " inputs");
  const int64_t bytes = inputs * 4 / panel_group(*kind);
  const Rows w{static_cast<const uint8_t*>(from.data()), rows,    bytes, first,
               static_cast<uint32_t*>(to.data()),        shape[1]};
  if (rows == 0) return true;
  const py::gil_scoped_release release;
  std::atomic<int64_t> next{first / kPanel};
  std::atomic<bool> finite{true};
  const auto work = [&] {
    for (int64_t panel; (panel = next++) < shape[0];) {
      const int64_t begin = std::max(first, panel * kPanel) - first;
      const int64_t end = std::min(first + rows, (panel + 1) * kPanel) - first;
      // First this, which reads the rows in order; then they are in the cache.
      if (!is_finite(w.from + begin * bytes, (end - begin) * bytes, *kind)) finite = false;
      fill(w, panel);
    }
  };
  std::vector<std::thread> others;
  const int64_t helpers = std::min<int64_t>(threads - 1, rows * bytes / kBytesOfAThread);
  for (int64_t i = 0; i < helpers; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  return finite;
}

}  // namespace

void bind_panels(py::module_& module) {
  module.def("fill_panels", &fill_panels, py::arg("panels"), py::arg("weight"), py::arg("first"),
             py::arg("threads"));
}

}  // namespace decoding
