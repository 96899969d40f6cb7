// An encoder alone on a GPU: its inputs go over in one copy, its states stay there.
#include <new>
#include <optional>
#include <set>

#include "engine/cuda/inputs.h"
#include "engine/cuda/product_memory.h"
#include "engine/encoder_session.h"
#include "engine/model/encoder_workspace.h"
#include "kernels/cuda/resources.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/types.h"
#include "kernels/linear/cuda/cublaslt/matmul.h"

namespace decoding {
namespace {

template <typename T>
class CudaEncoderSession : public EncoderSession {
 public:
  // The device must be the current one.
  CudaEncoderSession(const StackSpec& spec, const StackWeights& weights, int device,
                     bool deterministic, bool detect_overflow)
      : spec_(spec),
        weights_(weights),
        device_(cuda::Device::of(device)),
        matmul_(device_, nullptr, product_memory(weights), deterministic) {
    check_activations(spec, device_);
    if (detect_overflow) overflow_ = OverflowMemory<cuda::PinnedMemory>(spec.layers, 0);
  }

  ~CudaEncoderSession() override {
    last_use_.emplace(device_.id, std::nothrow);
    try {
      ended_.wait();  // what is launched uses what goes now
    } catch (const Error&) {
      // A lost GPU runs nothing.
    }
  }

  Arena plan(const Limits& limits) const override {
    Arena arena;
    workspace(arena, limits);
    return arena;
  }

  void bind(const Limits& limits, void* pool, size_t bytes) override {
    const cuda::UseDevice use(device_.id);
    ended_.wait();
    Arena arena(pool, bytes);
    w_ = workspace(arena, limits);
    matmul_.workspace(w_.products);
    const int64_t tokens = int64_t{limits.batch} * limits.source;
    Arena measured;
    SourceInputs(measured, limits.batch, tokens);
    staging_ = cuda::PinnedMemory(measured.bytes());
    Arena staged(staging_.data(), staging_.bytes());
    staged_ = SourceInputs(staged, limits.batch, tokens);
    limits_ = limits;
    overflow_.bind(0, tokens);
  }

  void encode(const Batch& batch, void* states) override {
    const cuda::UseDevice use(device_.id);
    CHECK(w_.products != nullptr, "encode() needs a bind() before it");
    check_encodable(batch, spec_, limits_);
    ended_.wait();  // the copy of the batch before
    staged_.fill(batch);
    const auto handle = static_cast<cudaStream_t>(batch.stream);
    CUDA_CHECK(cudaMemcpyAsync(w_.source.ids, staging_.data(), staging_.bytes(),
                               cudaMemcpyHostToDevice, handle));
    const PackedTokens tokens = source_tokens(w_.source, batch);
    if (warmed_up_.insert(bucket_of(tokens.count)).second) {
      cuda::Stream warm_up(handle, device_, matmul_, true);
      encode_states(pass(warm_up, tokens), tokens, overflow_.view(), static_cast<T*>(states));
    }
    cuda::Stream stream(handle, device_, matmul_);
    encode_states(pass(stream, tokens), tokens, overflow_.view(), static_cast<T*>(states));
    ended_.record(handle);
  }

  std::vector<TensorOverflow> overflow() const override {
    const cuda::UseDevice use(device_.id);
    ended_.wait();
    return overflow_.found();
  }

 private:
  StackPass<cuda::Stream, T> pass(cuda::Stream& stream, const PackedTokens& tokens) const {
    return {stream, spec_, weights_, w_.packed, tokens.count};
  }

  EncoderWorkspace<T> workspace(Arena& arena, const Limits& limits) const {
    return {arena, spec_, limits, static_cast<int64_t>(matmul_.bytes())};
  }

  std::optional<cuda::UseDevice> last_use_;  // of the destructor; the first, so it goes last
  const StackSpec spec_;
  const StackWeights weights_;
  const cuda::Device device_;
  cuda::Matmul matmul_;
  cuda::Event ended_;  // of the work launched last
  cuda::PinnedMemory staging_;
  SourceInputs staged_{};  // in staging_
  Limits limits_{};
  EncoderWorkspace<T> w_{};
  OverflowMemory<cuda::PinnedMemory> overflow_;
  std::set<int> warmed_up_;  // buckets of sizes whose products have been timed
};

}  // namespace

std::unique_ptr<EncoderSession> make_cuda_encoder_session(const StackSpec& spec,
                                                          const StackWeights& weights,
                                                          WeightKind kind, int device,
                                                          bool deterministic,
                                                          bool detect_overflow) {
  cuda::Device::of(device);
  const cuda::UseDevice use(device);
  switch (kind) {
    case WeightKind::float32:
      return std::make_unique<CudaEncoderSession<float>>(spec, weights, device, deterministic,
                                                         detect_overflow);
    case WeightKind::float16:
      return std::make_unique<CudaEncoderSession<cuda::half>>(spec, weights, device, deterministic,
                                                              detect_overflow);
    case WeightKind::bfloat16:
      return std::make_unique<CudaEncoderSession<cuda::bfloat16>>(spec, weights, device,
                                                                  deterministic, detect_overflow);
    default:
      throw Error("these weights have no CUDA engine");
  }
}

}  // namespace decoding
