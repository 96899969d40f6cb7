// Matrix products: every kind of weight, with rows that fill tiles and rows that do not, and sums
// longer than a block.
#include <atomic>

#include "kernels/linear/glu.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/pack.h"
#include "kernels/linear/vocab_projection.h"
#include "kernels/search/logits.h"
#include "tests/aarch64/bfloat16_dot.h"
#include "tests/aarch64/cases.h"

namespace decoding {
namespace {

constexpr Activation kActivations[] = {Activation::none, Activation::relu,
                                       Activation::gelu, Activation::gelu_tanh,
                                       Activation::silu, Activation::sigmoid};
const char* const kKindNames[] = {"float32", "float16", "bfloat16", "int8"};

// A weight in panels.
template <cpu::Isa isa>
struct Packed {
  std::vector<float> rows, scale;
  std::vector<int32_t> sums;
  std::vector<uint32_t> panels;
  LinearWeight weight;

  Packed(Machine<isa>& machine, WeightKind kind, int outputs, int inputs)
      : rows(machine.numbers(static_cast<size_t>(outputs) * inputs)),
        scale(outputs),
        sums(outputs) {
    const auto shape = panel_shape(outputs, inputs, kind);
    panels.resize(shape[0] * shape[1] * kPanel);
    std::atomic<bool> finite = true;
    const PackParams p{.rows = rows.data(),
                       .stored = WeightKind::float32,
                       .count = outputs,
                       .inputs = inputs,
                       .first = 0,
                       .panels = panels.data(),
                       .kind = kind,
                       .scale = scale.data(),
                       .sums = sums.data(),
                       .finite = &finite};
    machine.run([&](auto& stream) { pack(stream, p); });
    weight = {panels.data(), scale.data(), sums.data(), kind, outputs, inputs};
  }
};

// The parts of a product that some calls have: all, or none.
template <cpu::Isa isa>
void product(Machine<isa>& machine, WeightKind kind, int rows, int inputs, Activation activation,
             bool all) {
  constexpr int kOutputs = 70;
  const Packed<isa> w(machine, kind, kOutputs, inputs);
  const auto x = machine.numbers(rows * inputs), gamma = machine.numbers(inputs);
  const auto beta = machine.numbers(inputs), bias = machine.numbers(kOutputs);
  const auto residual = machine.numbers(rows * kOutputs);
  std::vector<float> normed(rows * inputs), y(rows * kOutputs);
  std::vector<uint8_t> scratch(linear_scratch(rows, inputs));
  LinearParams<float> p{.x = x.data(),
                        .weight = w.weight,
                        .y = y.data(),
                        .scratch = scratch.data(),
                        .rows = rows,
                        .activation = activation};
  if (all) {
    p.norm = {gamma.data(), beta.data(), 1e-5f, false};
    p.normed = normed.data();
    p.bias = bias.data();
    p.residual = residual.data();
  }
  machine.run([&](auto& stream) { linear(stream, p); });
  const std::string name = std::string(kKindNames[static_cast<int>(kind)]) + "/" +
                           std::to_string(rows) + "x" + std::to_string(inputs) + "/" +
                           std::to_string(static_cast<int>(activation)) + (all ? "/all" : "");
  machine.answer("linear/" + name, y);
  if (all) machine.answer("linear/normed/" + name, normed);
  if (isa == cpu::Isa::portable && kind == WeightKind::bfloat16 && !all) {
    // What the machine finds that multiplies bfloat16.
    print_answer("bfloat16_model", "linear/" + name,
                 bfloat16_product(x, w.rows, rows, kOutputs, inputs));
  }
}

template <cpu::Isa isa>
void gated(Machine<isa>& machine) {
  constexpr int kRows = 5, kOutputs = 74, kInputs = 20;
  const Packed<isa> w(machine, WeightKind::float32, kOutputs, kInputs);
  const auto x = machine.numbers(kRows * kInputs), bias = machine.numbers(kOutputs);
  std::vector<float> gated(kRows * kOutputs), y(kRows * kOutputs / 2);
  const LinearParams<float> p{.x = x.data(),
                              .weight = w.weight,
                              .bias = bias.data(),
                              .y = y.data(),
                              .gated = gated.data(),
                              .rows = kRows,
                              .activation = Activation::silu};
  machine.run([&](auto& stream) { linear(stream, p); });
  machine.answer("linear/gated", y);
  const auto wide = machine.numbers(kRows * kOutputs, 5.0f);
  for (const Activation activation : kActivations) {
    const GateParams<float> g{wide.data(), y.data(), kRows, kOutputs / 2, activation};
    machine.run([&](auto& stream) { gate(stream, g); });
    machine.answer("gate/" + std::to_string(static_cast<int>(activation)), y);
  }
}

template <cpu::Isa isa>
void projection(Machine<isa>& machine, WeightKind kind) {
  constexpr int kRows = 3, kVocab = 300, kInputs = 41, kBest = 4, kThreads = Machine<isa>::kThreads;
  const Packed<isa> w(machine, kind, kVocab, kInputs);
  const auto x = machine.numbers(kRows * kInputs), bias = machine.numbers(kVocab);
  const int32_t banned[] = {3, 130};
  std::vector<float> scan(2 * kRows * groups_of(kVocab)), lse(kRows);
  std::vector<Candidate> best(kRows * kBest), seen(kThreads * kRows * kBest);
  std::vector<uint8_t> scratch(linear_scratch(kRows, kInputs));
  const ProjectParams<float> p{.x = x.data(),
                               .weight = w.weight,
                               .bias = bias.data(),
                               .banned = banned,
                               .group_max = scan.data(),
                               .group_sum = scan.data() + kRows * groups_of(kVocab),
                               .lse = lse.data(),
                               .best = best.data(),
                               .seen = seen.data(),
                               .scratch = scratch.data(),
                               .rows = kRows,
                               .k = kBest,
                               .banned_count = 2};
  machine.run([&](auto& stream) { project(stream, p); });
  const std::string name = kKindNames[static_cast<int>(kind)];
  machine.answer("project/groups/" + name, scan);
  machine.answer("project/lse/" + name, lse);
  machine.answer("project/best/" + name, best);
}

}  // namespace

template <cpu::Isa isa>
void linear_cases(Machine<isa>& machine) {
  for (const WeightKind kind : {WeightKind::float32, WeightKind::bfloat16, WeightKind::int8}) {
    for (const int rows : {1, 2, 3, 5, 7, 14, 30}) {
      product(machine, kind, rows, 37, Activation::none, false);
      product(machine, kind, rows, 523, Activation::none, false);
    }
    if (kind == WeightKind::bfloat16) continue;  // those are float32's, behind the product
    for (const Activation activation : kActivations) {
      product(machine, kind, 4, 68, activation, true);
    }
    projection(machine, kind);
  }
  gated(machine);
}

DECODING_FOR_ISAS(linear_cases)

}  // namespace decoding
