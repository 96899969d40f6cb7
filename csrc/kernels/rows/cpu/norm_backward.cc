// Rows are cut into parts, whose number they alone decide; a thread takes some parts, and then some
// columns, whose totals it adds up in the order of the parts.
#include <algorithm>

#include "kernels/cpu/stream.h"
#include "kernels/rows/cpu/dropout_factors.h"
#include "kernels/rows/cpu/weight.h"
#include "kernels/rows/norm.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kParts = 64;
static_assert(kParts <= kNormLines);
enum Total { kGamma, kBeta, kBias, kTotals };

// The lines of one part's totals, [cols] each; null where they are not wanted.
template <typename R>
struct Lines {
  R* of[kTotals];
};

template <typename T>
Lines<Real<T>> lines_of(const NormBackwardParams<T>& p, int part) {
  const Weight<T> wanted[kTotals] = {p.dgamma, p.dbeta, p.dbias};
  Lines<Real<T>> lines;
  for (int t = 0; t < kTotals; ++t) {
    lines.of[t] = wanted[t] ? p.partial + (size_t(t) * kNormLines + part) * p.cols : nullptr;
  }
  return lines;
}

template <typename V>
void add_to(Real<std::remove_reference_t<decltype(V{}[0])>>* line, V values, int c, auto... count) {
  if (line != nullptr) store(line + c, load(line + c, count...) + values, count...);
}

template <typename T>
void backward_row(const NormBackwardParams<T>& p, int r, const Lines<Real<T>>& lines) {
  using Vector = Lanes<T>;
  const size_t at = static_cast<size_t>(r) * p.cols;
  const Vector mean = broadcast(p.mean != nullptr ? p.mean[r] : Real<T>(0));
  const Vector rstd = broadcast(p.rstd[r]);
  const auto z_of = [&](int c, auto... count) {
    return (load(p.s + at + c, count...) - mean) * rstd;
  };
  Vector sum_g = {}, sum_gz = {};
  for_vectors(p.cols, [&](int c, auto... count) {
    // Behind the last column dy is 0, so that g is.
    const Vector g = load(p.dy + at + c, count...) * load(p.gamma, 1, c, count...);
    sum_g += g;
    sum_gz = fma(g, z_of(c, count...), sum_gz);
  });
  const Vector mean_g = broadcast(p.mean != nullptr ? sum_of(sum_g) / p.cols : Real<T>(0));
  const Vector mean_gz = broadcast(sum_of(sum_gz) / p.cols);
  for_dropped_vectors<T>(p.dropout, at, p.cols, [&](int c, Vector factors, auto... count) {
    const Vector dy = load(p.dy + at + c, count...), z = z_of(c, count...);
    const Vector g = dy * load(p.gamma, 1, c, count...);
    Vector ds = rstd * (g - mean_g - z * mean_gz);
    if (p.dsum != nullptr) ds += load(p.dsum + at + c, count...);
    if (p.dresidual != nullptr) store(p.dresidual + at + c, ds, count...);
    const Vector dx = ds * factors;
    store(p.dx + at + c, dx, count...);
    add_to(lines.of[kGamma], dy * z, c, count...);
    add_to(lines.of[kBeta], dy, c, count...);
    add_to(lines.of[kBias], dx, c, count...);
  });
}

// The parts' lines into `to`, in columns of a range.
template <typename T>
void add_lines(const Real<T>* lines, int parts, int cols, Range range, const Weight<T>& to) {
  for_vectors(range.end - range.begin, [&](int i, auto... count) {
    const int c = range.begin + i;
    Lanes<T> sum = {};
    for (int part = 0; part < parts; ++part) sum += load(lines + size_t(part) * cols + c, count...);
    store(to, sum, c, count...);
  });
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void norm_backward(cpu::Stream<isa>& stream, const NormBackwardParams<T>& p) {
  const int parts = std::min(p.rows, cpu::kParts);
  const cpu::Range mine = stream.share(parts);
  for (int part = mine.begin; part < mine.end; ++part) {
    const auto lines = cpu::lines_of(p, part);
    for (Real<T>* line : lines.of) {
      if (line != nullptr) std::fill_n(line, p.cols, Real<T>(0));
    }
    const int64_t rows = p.rows;
    for (int r = rows * part / parts; r < rows * (part + 1) / parts; ++r) {
      cpu::backward_row(p, r, lines);
    }
  }
  stream.barrier();
  const Weight<T> totals[] = {p.dgamma, p.dbeta, p.dbias};
  for (int t = 0; t < cpu::kTotals; ++t) {
    if (!totals[t]) continue;
    cpu::add_lines(p.partial + size_t(t) * kNormLines * p.cols, parts, p.cols, stream.share(p.cols),
                   totals[t]);
  }
  stream.barrier();
}

#define INSTANTIATE(T) \
  template void norm_backward(cpu::Stream<cpu::Isa::DECODING_ISA>&, const NormBackwardParams<T>&);
DECODING_FOR_ELEMENTS(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
