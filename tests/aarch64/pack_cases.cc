// Weights on their way to the engine: every type that they are stored in and multiplied in.
#include <atomic>
#include <numeric>

#include "kernels/linear/linear.h"
#include "kernels/linear/pack.h"
#include "kernels/linear/shortlist.h"
#include "tests/aarch64/cases.h"

namespace decoding {
namespace {

constexpr int kOutputs = 70, kInputs = 37;
constexpr WeightKind kKinds[] = {WeightKind::float32, WeightKind::bfloat16, WeightKind::int8};

template <typename T, cpu::Isa isa>
void pack_stored(Machine<isa>& machine, WeightKind stored, const std::string& name) {
  const std::vector<T> rows = machine.template numbers<T>(kOutputs * kInputs);
  std::atomic<bool> finite = true;
  for (const WeightKind kind : kKinds) {
    const auto shape = panel_shape(kOutputs, kInputs, kind);
    std::vector<uint32_t> panels(shape[0] * shape[1] * kPanel);
    std::vector<float> scale(kOutputs);
    std::vector<int32_t> sums(kOutputs);
    const PackParams p{.rows = rows.data(),
                       .stored = stored,
                       .count = kOutputs,
                       .inputs = kInputs,
                       .first = 0,
                       .panels = panels.data(),
                       .kind = kind,
                       .scale = scale.data(),
                       .sums = sums.data(),
                       .finite = &finite};
    machine.run([&](auto& stream) { pack(stream, p); });
    const std::string suffix = name + "/" + std::to_string(static_cast<int>(kind));
    machine.answer("pack/panels/" + suffix, panels);
    machine.answer("pack/scale/" + suffix, scale);
    machine.answer("pack/sums/" + suffix, sums);
    if (kind != WeightKind::int8) continue;
    std::vector<uint8_t> numbers(kOutputs * quantized_stride(kInputs));
    const InterleaveParams in_rows{panels.data(), kOutputs, kInputs,
                                   reinterpret_cast<int8_t*>(numbers.data())};
    machine.run([&](auto& stream) { interleave(stream, in_rows); });
    machine.answer("interleave/" + name, numbers);
  }
  for (const WeightKind kind : {WeightKind::float32, WeightKind::float16, WeightKind::bfloat16}) {
    std::vector<uint16_t> to(2 * rows.size());
    const ConvertParams p{rows.data(), stored, static_cast<int64_t>(rows.size()),
                          to.data(),   kind,   &finite};
    machine.run([&](auto& stream) { convert(stream, p); });
    machine.answer("convert/" + name + "/" + std::to_string(static_cast<int>(kind)), to);
  }
  std::vector<double> lengths(2 * Machine<isa>::kThreads);
  const SquaresParams p{rows.data(), stored,         kOutputs,
                        kInputs,     lengths.data(), lengths.data() + Machine<isa>::kThreads};
  machine.run([&](auto& stream) { squares(stream, p); });
  machine.answer("squares/" + name, lengths);
}

template <cpu::Isa isa>
void shortlist(Machine<isa>& machine) {
  constexpr int kCount = 67;
  const auto shape = panel_shape(kOutputs, kInputs, WeightKind::int8);
  const auto numbers = machine.ids(shape[0] * shape[1] * kPanel, 1 << 30);
  const auto scale = machine.numbers(kOutputs), bias = machine.numbers(kOutputs);
  const auto sums = machine.ids(kOutputs, 1000);
  std::vector<int32_t> tokens(kCount);
  std::iota(tokens.begin(), tokens.end(), 2);
  std::vector<uint32_t> panels(shape[0] * shape[1] * kPanel);
  std::vector<float> scale_to(kCount), bias_to(kCount);
  std::vector<int32_t> sums_to(kCount);
  const GatherOutputsParams p{
      {numbers.data(), scale.data(), sums.data(), WeightKind::int8, kOutputs, kInputs},
      bias.data(),
      tokens.data(),
      panels.data(),
      scale_to.data(),
      sums_to.data(),
      bias_to.data(),
      kCount};
  machine.run([&](auto& stream) { gather_outputs(stream, p); });
  machine.answer("gather_outputs/panels", panels);
  machine.answer("gather_outputs/scale", scale_to);
  machine.answer("gather_outputs/sums", sums_to);
  machine.answer("gather_outputs/bias", bias_to);
  const auto x = machine.numbers(3 * kCount);
  std::vector<float> y(3 * kOutputs);
  const SpreadLogitsParams spread{x.data(), tokens.data(), y.data(), 3, kCount, kOutputs};
  machine.run([&](auto& stream) { spread_logits(stream, spread); });
  machine.answer("spread_logits", y);
}

}  // namespace

template <cpu::Isa isa>
void pack_cases(Machine<isa>& machine) {
  pack_stored<float>(machine, WeightKind::float32, "float32");
  pack_stored<BFloat16>(machine, WeightKind::bfloat16, "bfloat16");
  pack_stored<Float16>(machine, WeightKind::float16, "float16");
  shortlist(machine);
}

DECODING_FOR_ISAS(pack_cases)

}  // namespace decoding
