// Attention over packed rows, rotary positions, and convolutions in the place of attention.
#include "kernels/attention/packed.h"
#include "kernels/attention/rotary.h"
#include "kernels/conv/depthwise.h"
#include "tests/aarch64/cases.h"

namespace decoding {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kDim = 20;
constexpr int kSize = (kHeads + 2 * kKvHeads) * kDim;  // of a row: q, k and v

template <cpu::Isa isa>
void packed(Machine<isa>& machine) {
  const std::vector<int32_t> offsets{0, 3, 40};
  const auto x = machine.numbers(40 * kSize, 3.0f), slopes = machine.numbers(kHeads);
  const auto table = machine.numbers(kHeads * 9);
  std::vector<float> y(40 * kHeads * kDim);
  const auto attend = [&](const std::string& name, bool causal, const AttentionBias& bias) {
    const PackedAttentionParams<float> p{
        .q = x.data(),
        .keys = {x.data() + kHeads * kDim, x.data() + (kHeads + kKvHeads) * kDim},
        .offsets = offsets.data(),
        .y = y.data(),
        .sentences = 2,
        .longest = 37,
        .heads = kHeads,
        .kv_heads = kKvHeads,
        .head_dim = kDim,
        .stride = kSize,
        .scale = 0.3f,
        .causal = causal,
        .bias = bias};
    machine.run([&](auto& stream) { packed_attention(stream, p); });
    machine.answer("packed_attention/" + name, y);
  };
  attend("whole", false, {});
  attend("causal", true, {});
  attend("cap and window", true, {.cap = 2.0f, .window = 9});
  attend("slopes", true, {.slopes = slopes.data()});
  attend("table", false, {.table = table.data(), .reach = 4});
}

// Keys are stored in pages first.
template <typename C, cpu::Isa isa>
void paged(Machine<isa>& machine, const std::string& type) {
  constexpr int kPages = 4, kTokens = 25;
  const std::vector<int32_t> offsets{0, 5, kTokens}, lengths{5, 20}, pages{2, 0, 3, 1};
  const auto x = machine.numbers(kTokens * kSize, 3.0f);
  std::vector<C> k(kKvHeads * kPages * kPageSize * kDim), v(k.size());
  std::vector<int32_t> cells(kTokens);
  for (int t = 0; t < kTokens; ++t) {
    const int sentence = t >= 5, place = t - offsets[sentence];
    cells[t] = pages[2 * sentence + place / kPageSize] * kPageSize + place % kPageSize;
  }
  const PagePool<C> pool{k.data(), v.data(), kPages};
  const StoreSharedParams<float, C> store{.k = x.data() + kHeads * kDim,
                                          .v = x.data() + (kHeads + kKvHeads) * kDim,
                                          .pool = pool,
                                          .cells = cells.data(),
                                          .tokens = kTokens,
                                          .heads = kKvHeads,
                                          .head_dim = kDim,
                                          .stride = kSize};
  machine.run([&](auto& stream) { store_shared(stream, store); });
  machine.answer("store_shared/" + type + "/k", k);
  machine.answer("store_shared/" + type + "/v", v);
  std::vector<float> y(kTokens * kHeads * kDim);
  const PackedAttentionParams<float, PagedKeys<C>> p{
      .q = x.data(),
      .keys = {pool, {pages.data(), 2}, lengths.data()},
      .offsets = offsets.data(),
      .y = y.data(),
      .sentences = 2,
      .longest = 20,
      .heads = kHeads,
      .kv_heads = kKvHeads,
      .head_dim = kDim,
      .stride = kSize,
      .scale = 0.3f,
      .causal = true};
  machine.run([&](auto& stream) { packed_attention(stream, p); });
  machine.answer("packed_attention/pages/" + type, y);
}

template <cpu::Isa isa>
void rotary(Machine<isa>& machine) {
  const std::vector<int32_t> positions{0, 1, 17, 900, 30000};
  const auto gamma = machine.numbers(kDim), frequencies = machine.numbers(kDim / 2);
  for (const bool interleaved : {false, true}) {
    auto x = machine.numbers(5 * kSize);
    const RotaryParams<float> p{.x = x.data(),
                                .rotary = {.positions = positions.data(),
                                           .q_norm = {gamma.data(), nullptr, 1e-6f, true},
                                           .k_norm = {gamma.data(), nullptr, 1e-6f, true},
                                           .frequencies = frequencies.data(),
                                           .factor = 1.2f,
                                           .size = kDim - 4,
                                           .interleaved = interleaved},
                                .rows = 5,
                                .heads = kHeads,
                                .kv_heads = kKvHeads,
                                .head_dim = kDim,
                                .stride = kSize};
    machine.run([&](auto& stream) { apply_rotary(stream, p); });
    machine.answer(interleaved ? "apply_rotary/interleaved" : "apply_rotary", x);
  }
}

template <cpu::Isa isa>
void depthwise(Machine<isa>& machine) {
  constexpr int kKernel = 5, kTokens = 14;
  const std::vector<int32_t> offsets{0, 3, kTokens};
  const auto x = machine.numbers(kTokens * kHeads * kDim);
  const auto weights = machine.numbers(kHeads * kKernel);
  const auto scores = machine.numbers(kTokens * kHeads * kKernel);
  std::vector<float> y(x.size());
  for (const bool dynamic : {false, true}) {
    DepthwiseWeights<float> w{weights.data(), nullptr, kKernel};
    if (dynamic) w = {nullptr, scores.data(), kKernel};
    const PackedDepthwiseParams<float> p{.x = x.data(),
                                         .weights = w,
                                         .offsets = offsets.data(),
                                         .y = y.data(),
                                         .sentences = 2,
                                         .longest = 11,
                                         .heads = kHeads,
                                         .head_dim = kDim,
                                         .causal = dynamic};
    machine.run([&](auto& stream) { packed_depthwise(stream, p); });
    machine.answer(dynamic ? "packed_depthwise/dynamic" : "packed_depthwise", y);
  }
}

template <typename C, cpu::Isa isa>
void decode_depthwise_of(Machine<isa>& machine, const std::string& type) {
  constexpr int kKernel = 5, kRing = 6, kRows = 4, kHistory = 9;
  const auto x = machine.numbers(kRows * kHeads * kDim);
  const auto weights = machine.numbers(kHeads * kKernel);
  std::vector<C> inputs = machine.template numbers<C>(kRows * kHeads * kRing * kDim);
  auto table = machine.ids(2 * kRows * kHistory, kRows);
  for (int i = 0; i < 2 * kRows; ++i) {  // the new inputs, which only their own row may read yet
    for (const int position : {7, 8}) table[i * kHistory + position] = i % kRows;
  }
  const std::vector<ActiveSentence> active{{0, 3, 7}, {1, 4, 8}};
  const StepState state{1, 2};
  std::vector<float> y(x.size());
  const DecodeDepthwiseParams<float, C> p{.state = &state,
                                          .x = x.data(),
                                          .weights = {weights.data(), nullptr, kKernel},
                                          .inputs = inputs.data(),
                                          .cache_indirection = table.data(),
                                          .active = active.data(),
                                          .y = y.data(),
                                          .sentences = 2,
                                          .beams = 2,
                                          .heads = kHeads,
                                          .head_dim = kDim,
                                          .ring = kRing,
                                          .slots = 2,
                                          .total_rows = kRows,
                                          .history = kHistory};
  machine.run([&](auto& stream) { decode_depthwise(stream, p); });
  machine.answer("decode_depthwise/" + type, y);
  machine.answer("decode_depthwise/inputs/" + type, inputs);
}

}  // namespace

template <cpu::Isa isa>
void attention_cases(Machine<isa>& machine) {
  packed(machine);
  paged<float>(machine, "float32");
  paged<BFloat16>(machine, "bfloat16");
  rotary(machine);
  depthwise(machine);
  decode_depthwise_of<float>(machine, "float32");
  decode_depthwise_of<BFloat16>(machine, "bfloat16");
}

DECODING_FOR_ISAS(attention_cases)

}  // namespace decoding
