// An encoder alone on the CPU: its pass runs on all threads of a team.
#include <cstddef>
#include <vector>

#include "engine/encoder_session.h"
#include "engine/model/encoder_workspace.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace {

template <typename T, cpu::Isa isa>
class CpuEncoderSession : public EncoderSession {
 public:
  CpuEncoderSession(const StackSpec& spec, const StackWeights& weights, int threads,
                    cpu::Features features, bool detect_overflow)
      : spec_(spec), weights_(weights), team_(threads), features_(features) {
    if (detect_overflow) overflow_ = OverflowMemory<std::vector<std::byte>>(spec.layers, 0);
  }

  Arena plan(const Limits& limits) const override {
    Arena arena;
    workspace(arena, limits);
    return arena;
  }

  void bind(const Limits& limits, void* pool, size_t bytes) override {
    Arena arena(pool, bytes);
    w_ = workspace(arena, limits);
    limits_ = limits;
    overflow_.bind(0, int64_t{limits.batch} * limits.source);
  }

  void encode(const Batch& batch, void* states) override {
    CHECK(w_.products != nullptr, "encode() needs a bind() before it");
    check_encodable(batch, spec_, limits_);
    w_.source.fill(batch);
    const PackedTokens tokens = source_tokens(w_.source, batch);
    team_.run([&](int rank) {
      cpu::Stream<isa> stream(team_, rank, features_);
      encode_states(
          StackPass<cpu::Stream<isa>, T>{stream, spec_, weights_, w_.packed, tokens.count}, tokens,
          overflow_.view(), static_cast<T*>(states));
    });
  }

  std::vector<TensorOverflow> overflow() const override { return overflow_.found(); }

 private:
  EncoderWorkspace<T> workspace(Arena& arena, const Limits& limits) const {
    return {arena, spec_, limits, linear_scratch(kScratchRows, spec_.widest_input())};
  }

  const StackSpec spec_;
  const StackWeights weights_;
  cpu::Team team_;
  const cpu::Features features_;
  Limits limits_{};
  EncoderWorkspace<T> w_{};
  OverflowMemory<std::vector<std::byte>> overflow_;
};

}  // namespace

std::unique_ptr<EncoderSession> make_cpu_encoder_session(const StackSpec& spec,
                                                         const StackWeights& weights, int threads,
                                                         const std::string& isa,
                                                         bool detect_overflow) {
  return cpu::with_isa(
      isa, [&]<cpu::Isa chosen>(cpu::Features features) -> std::unique_ptr<EncoderSession> {
        return std::make_unique<CpuEncoderSession<float, chosen>>(spec, weights, threads, features,
                                                                  detect_overflow);
      });
}

}  // namespace decoding
