// Attention of a step: over what is shared, over a history of pages, with every bias.
#include <numeric>
#include <span>

#include "kernels/attention/decode.h"
#include "tests/aarch64/cases.h"

namespace decoding {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kDim = 20, kStride = (kHeads + 2 * kKvHeads) * kDim;
constexpr int kSentences = 2, kBeams = 3, kRows = kSentences * kBeams, kTarget = 12;
constexpr int kPages = 10, kShared = 2, kOwn = 3;  // pages: in all, of a source, of a history

// A pool of random keys and values, and lists of pages that lie apart in it.
template <typename C, cpu::Isa isa>
struct Cache {
  std::vector<C> k, v;
  std::vector<int32_t> shared{8, 1, 4, 9}, own{0, 5, 2, 7, 3, 6}, lengths{19, 30}, table;

  explicit Cache(Machine<isa>& machine)
      : k(machine.template numbers<C>(kKvHeads * kPages * kPageSize * kDim)),
        v(machine.template numbers<C>(k.size())),
        table(2 * kRows * kTarget) {
    for (size_t i = 0; i < table.size(); ++i) {  // some row of the same sentence
      const int row = static_cast<int>(i) / kTarget % kRows;
      table[i] = row / kBeams * kBeams + static_cast<int>(machine.word() % kBeams);
    }
  }
  PagePool<C> pool() { return {k.data(), v.data(), kPages}; }
};

template <typename C, cpu::Isa isa>
void decode(Machine<isa>& machine, const std::string& type) {
  Cache<C, isa> cache(machine);
  const std::vector<ActiveSentence> active{{0, 3, 5}, {1, 4, 11}};
  const StepState state{1, kSentences};
  const auto slopes = machine.numbers(kHeads), table = machine.numbers(kHeads * 9);
  const auto frequencies = machine.numbers(kDim / 2);
  const std::vector<int32_t> positions{24, 24, 24, 41, 41, 41};
  const auto x = machine.numbers(kRows * kStride, 3.0f);
  const auto attend = [&](const std::string& name, bool history, bool shared,
                          const AttentionBias& bias, const Rotary& rotary) {
    std::vector<float> rows = x, y(kRows * kHeads * kDim);
    Cache<C, isa> own = cache;
    DecodeAttentionParams<float, C> p{.state = &state,
                                      .q = rows.data(),
                                      .pool = own.pool(),
                                      .active = active.data(),
                                      .y = y.data(),
                                      .sentences = kSentences,
                                      .beams = kBeams,
                                      .heads = kHeads,
                                      .kv_heads = kKvHeads,
                                      .head_dim = kDim,
                                      .stride = kStride,
                                      .target = kTarget,
                                      .total_rows = kRows,
                                      .slots = kBeams,
                                      .scale = 0.3f,
                                      .bias = bias,
                                      .rotary = rotary};
    if (shared) {
      p.shared_pages = {own.shared.data(), kShared};
      p.shared_lengths = own.lengths.data();
    }
    if (history) {
      p.k = rows.data() + kHeads * kDim;
      p.v = p.k + kKvHeads * kDim;
      p.self_pages = {own.own.data(), kOwn};
      p.cache_indirection = own.table.data();
    }
    const std::span<const DecodeAttentionParams<float, C>> parts(&p, 1);
    machine.run([&](auto& stream) { decode_attention(stream, parts); });
    machine.answer("decode_attention/" + name + "/" + type, y);
    if (history) machine.answer("decode_attention/keys/" + name + "/" + type, own.k);
  };
  attend("cross", false, true, {}, {});
  attend("own", true, false, {}, {});
  attend("both", true, true, {.cap = 2.0f, .window = 20}, {});
  attend("slopes", true, true, {.slopes = slopes.data()}, {});
  attend("table", true, false, {.table = table.data(), .reach = 4}, {});
  attend("rotary", true, true, {},
         {.positions = positions.data(), .frequencies = frequencies.data(), .size = kDim});

  constexpr int kSteps = 4, kLongest = 30;
  std::vector<float> y(kSteps * kRows * kLongest);
  const AttentionWeightsParams<float, C> p{.state = &state,
                                           .q = x.data(),
                                           .pool = cache.pool(),
                                           .shared_pages = {cache.shared.data(), kShared},
                                           .shared_lengths = cache.lengths.data(),
                                           .active = active.data(),
                                           .y = y.data(),
                                           .sentences = kSentences,
                                           .beams = kBeams,
                                           .heads = kHeads,
                                           .kv_heads = kKvHeads,
                                           .head_dim = kDim,
                                           .stride = kStride,
                                           .total_rows = kRows,
                                           .longest = kLongest,
                                           .scale = 0.3f};
  machine.run([&](auto& stream) { attention_weights(stream, p); });
  machine.answer("attention_weights/" + type, y);
}

}  // namespace

template <cpu::Isa isa>
void decode_cases(Machine<isa>& machine) {
  decode<float>(machine, "float32");
  decode<BFloat16>(machine, "bfloat16");
}

DECODING_FOR_ISAS(decode_cases)

}  // namespace decoding
