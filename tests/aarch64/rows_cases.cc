// Operators on rows, as inference has them.
#include <limits>

#include "kernels/rows/embed.h"
#include "kernels/rows/logprobs.h"
#include "kernels/rows/norm.h"
#include "kernels/rows/overflow.h"
#include "kernels/rows/soft_cap.h"
#include "tests/aarch64/cases.h"

namespace decoding {
namespace {

constexpr int kRows = 5, kCols = 77;

template <cpu::Isa isa>
void norms(Machine<isa>& machine) {
  const auto x = machine.numbers(kRows * kCols, 4.0f), residual = machine.numbers(kRows * kCols);
  const auto gamma = machine.numbers(kCols), beta = machine.numbers(kCols);
  std::vector<float> y(kRows * kCols);
  for (const bool rms : {false, true}) {
    const LayerNormParams<float> p{.x = x.data(),
                                   .norm = {gamma.data(), rms ? nullptr : beta.data(), 1e-5f, rms},
                                   .y = y.data(),
                                   .rows = kRows,
                                   .cols = kCols,
                                   .residual = rms ? nullptr : residual.data()};
    machine.run([&](auto& stream) { layer_norm(stream, p); });
    machine.answer(rms ? "layer_norm/rms" : "layer_norm", y);
  }
}

template <typename T, cpu::Isa isa>
void embeddings(Machine<isa>& machine, WeightKind kind, const std::string& type) {
  constexpr int kVocab = 70;
  const auto tokens = machine.template numbers<T>(kVocab * kCols);
  const auto positions = machine.numbers(kRows * kCols), gamma = machine.numbers(kCols);
  const auto ids = machine.ids(kRows, kVocab), places = machine.ids(kRows, kRows);
  std::vector<float> y(kRows * kCols);
  const EmbedParams<float> p{.ids = ids.data(),
                             .positions = places.data(),
                             .tokens = {tokens.data(), kind, false},
                             .position_table = positions.data(),
                             .norm = {gamma.data(), nullptr, 1e-5f, true},
                             .y = y.data(),
                             .rows = kRows,
                             .hidden = kCols,
                             .scale = 8.7f};
  machine.run([&](auto& stream) { embed(stream, p); });
  machine.answer("embed/" + type, y);
}

template <cpu::Isa isa>
void of_logits(Machine<isa>& machine) {
  constexpr int kVocab = 1030, kStride = 1040;
  auto x = machine.numbers(kRows * kStride, 6.0f);
  std::vector<int32_t> labels = machine.ids(kRows, kVocab);
  labels[2] = kIgnored;
  std::vector<LabelScore> y(kRows);
  const LabelLogprobsParams<float> p{x.data(), labels.data(), y.data(), kRows, kVocab, kStride};
  machine.run([&](auto& stream) { label_logprobs(stream, p); });
  machine.answer("label_logprobs", y);
  const CapParams<float> cap{x.data(), kRows, kVocab, kStride, 3.0f};
  machine.run([&](auto& stream) { soft_cap(stream, cap); });
  machine.answer("soft_cap", x);
}

template <cpu::Isa isa>
void overflows(Machine<isa>& machine) {
  auto x = machine.numbers(kRows * kCols, 4.0f);
  x[kCols + 3] = std::numeric_limits<float>::infinity();
  std::vector<int32_t> first(kRows);
  OverflowCount count{};
  const OverflowParams<float> p{.x = x.data(),
                                .count = &count,
                                .first = first.data(),
                                .rows = kRows,
                                .cols = kCols,
                                .tensor = 7};
  machine.run([&](auto& stream) { detect_overflow(stream, p); });
  machine.answer("detect_overflow", first);
  const auto rows = static_cast<float>(count.not_finite);
  machine.answer("detect_overflow/count", std::vector<float>{count.largest, rows});
}

}  // namespace

template <cpu::Isa isa>
void rows_cases(Machine<isa>& machine) {
  norms(machine);
  embeddings<float>(machine, WeightKind::float32, "float32");
  embeddings<BFloat16>(machine, WeightKind::bfloat16, "bfloat16");
  of_logits(machine);
  overflows(machine);
}

DECODING_FOR_ISAS(rows_cases)

}  // namespace decoding
