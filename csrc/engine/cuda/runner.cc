// The runner on a GPU. The host only launches: what joins is staged in memory that the GPU reads,
// and what the GPU reports it writes to the host's.
#include "engine/runner.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "engine/cuda/cache_types.h"
#include "engine/cuda/inputs.h"
#include "engine/cuda/product_memory.h"
#include "engine/cuda/request_staging.h"
#include "engine/cuda/runner_memory.h"
#include "engine/cuda/steps.h"
#include "engine/cuda/text_reader.h"
#include "engine/host_pages.h"
#include "kernels/cuda/launch_order.h"
#include "kernels/cuda/types.h"

namespace decoding {
namespace {

constexpr int kAhead = 2;              // steps that may wait behind the one that runs
constexpr size_t kStaging = 32 << 20;  // bytes
constexpr int kPagesOfLaunch = 16;     // that are copied in one launch

template <typename T, typename C>
class CudaRunner : public Runner {
  using Class = CudaClass<T>;

 public:
  // The device must be the current one.
  CudaRunner(const ModelSpec& spec, const ModelWeights& weights, int device,
             std::shared_ptr<cuda::Collective> collective, bool deterministic, bool detect_overflow)
      : spec_(spec),
        weights_(weights),
        device_(cuda::Device::of(device)),
        matmul_(device_, nullptr, product_memory(weights), deterministic),
        collective_(std::move(collective)),
        requests_(spec_, staging_),
        steps_(spec_, weights_, device_, matmul_, collective_.get()),
        reader_(spec_, weights_, memory_, all_, staging_) {
    check_split<T>(spec, collective_.get());
    check_cache<C>(spec, device_);
    check_activations(spec.encoder ? *spec.encoder : spec.decoder, device_);
    if (detect_overflow) overflow_ = OverflowMemory<cuda::PinnedMemory>(spec);
  }

  ~CudaRunner() override {
    last_use_.emplace(device_.id, std::nothrow);
    if (handle_ == nullptr) return;
    cudaStreamSynchronize(handle_);  // what is launched uses what goes now; a lost GPU runs nothing
    cuda::LaunchOrder::of_process().forget(handle_);
    cudaStreamDestroy(handle_);
  }

  Arena plan(const RunnerLimits& limits) const override {
    Arena arena;
    const CudaRunnerMemory<T, C> measured(arena, spec_, limits, matmul_);
    return arena;
  }

  void bind(const RunnerLimits& limits, void* pool, size_t bytes) override {
    const cuda::UseDevice use(device_.id);
    if (handle_ == nullptr) {
      CUDA_CHECK(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking));
      staging_ = CudaStaging(kStaging);
    }
    CUDA_CHECK(cudaStreamSynchronize(handle_));  // steps of what was bound before
    steps_.clear();
    reader_.clear();
    Arena arena(pool, bytes);
    memory_ = CudaRunnerMemory<T, C>(arena, spec_, limits, matmul_);
    bind_overflow(overflow_, memory_.w, memory_.classes, spec_, rows_of(limits));
    all_ = places_of(limits);
    host_pages_ = HostPages<cuda::PinnedMemory>(memory_.cache.page_bytes());
    matmul_.workspace(memory_.products);
    const Workspace<T>& w = memory_.w;
    clear(memory_.scratch.arrivals, runner_arrivals(limits));
    clear_scratch(w);
    for (Class& c : memory_.classes) {
      c.take_host(limits.rows, limits.target + 1);
      clear(c.running, limits.rows);
    }
    clear(w.inputs.ids, all_.rows());  // places without a sentence read token 0
    clear(w.inputs.positions, all_.rows());
  }

  // The device stays the thread's current one: to come back from it would open another GPU.
  void begin() override { CUDA_CHECK(cudaSetDevice(device_.id)); }

  bool is_synchronous() const override { return false; }

  int open(int request_class, const Request& request) override {
    const cuda::UseDevice use(device_.id);
    Class& c = memory_.classes.at(request_class);
    CUDA_CHECK(cudaStreamSynchronize(handle_));
    steps_.forget(request_class);
    c.open(request, spec_.decoder.vocab);
    c.step.config = {c.search_config, c.configs, c.words};
    c.step.host_state = c.host_state;
    c.fill_report();
    c.captured_for = 0;
    const StepState state{1, 0};
    CUDA_CHECK(cudaMemcpyAsync(c.search_config, &c.config, sizeof(SearchConfig),
                               cudaMemcpyHostToDevice, handle_));
    CUDA_CHECK(
        cudaMemcpyAsync(c.w.inputs.state, &state, sizeof(state), cudaMemcpyHostToDevice, handle_));
    CUDA_CHECK(cudaStreamSynchronize(handle_));
    return c.limits.batch;
  }

  void read(std::span<const ReadPart> parts) override {
    const cuda::UseDevice use(device_.id);
    cuda::SplitStream stream = this->stream();
    reader_.read(stream, parts);
    clear_scratch(memory_.w);
  }

  void join(std::span<const Admitted* const> joining) override {
    const cuda::UseDevice use(device_.id);
    cuda::SplitStream stream = this->stream();
    for (const Admitted* admitted : joining) {
      staging_.renew(stream);
      overflow_.forget(class_of(admitted->slot).place_of(admitted->slot.sentence), 1);
      requests_.join(class_of(admitted->slot), *admitted);
    }
    staging_.renew(stream);
    staging_.send(stream);
    for (Class& c : memory_.classes) {
      if (c.joining.empty()) continue;
      const JoiningSentence* staged = staging_.put(c.joining.data(), c.joining.size());
      join_sentences(stream, c.join_params(staged));
      c.joining.clear();
      c.changed = true;
    }
    for (const Admitted* admitted : joining) reader_.read_prefix(stream, *admitted);
  }

  void stop(Slot slot) override {
    const cuda::UseDevice use(device_.id);
    const Class& c = class_of(slot);
    CUDA_CHECK(cudaMemsetAsync(c.w.inputs.stop_now + slot.sentence, 1, sizeof(int32_t), handle_));
  }

  void extend(std::span<const Extension> extensions) override {
    const cuda::UseDevice use(device_.id);
    cuda::SplitStream stream = this->stream();
    staging_.renew(stream);
    for (const Extension& extension : extensions) {
      const Admitted& admitted = *extension.admitted;
      requests_.own_pages(class_of(admitted.slot), admitted, extension.first);
    }
    staging_.send(stream);
  }

  bool pause(Slot slot) override {
    const cuda::UseDevice use(device_.id);
    Class& c = class_of(slot);
    auto [state, active] = fetch_active(c);
    if (c.has_ended(slot.sentence)) return false;
    std::erase_if(active, [&](const ActiveSentence& a) { return a.id == slot.sentence; });
    cuda::SplitStream stream = this->stream();
    staging_.renew(stream);
    requests_.active(c, state, active);
    requests_.running(c, slot.sentence, false);
    staging_.send(stream);
    return true;
  }

  void resume(const Admitted& admitted, int steps) override {
    const cuda::UseDevice use(device_.id);
    Class& c = class_of(admitted.slot);
    const int id = admitted.slot.sentence;
    const int before = admitted.request->own_before(spec_.encoder.has_value());
    auto [state, active] = fetch_active(c);
    active.push_back({id, steps + 1, before + steps});
    cuda::SplitStream stream = this->stream();
    staging_.renew(stream);
    requests_.active(c, state, active);
    requests_.own_pages(c, admitted, 0);
    requests_.running(c, id, true);
    staging_.send(stream);
  }

  void save(std::span<const int32_t> pages, std::span<const int32_t> to) override {
    copy_pages(pages, to,
               [&](void* there, void* host, size_t bytes) { staging_.copy(host, there, bytes); });
  }

  void restore(std::span<const int32_t> from, std::span<const int32_t> pages) override {
    copy_pages(pages, from,
               [&](void* there, void* host, size_t bytes) { staging_.copy(there, host, bytes); });
  }

  bool step() override {
    const cuda::UseDevice use(device_.id);
    if (!steps_.lay_out(memory_)) return false;
    events_[launched_ % events_.size()].wait();  // of the step before the last kAhead
    steps_.launch(handle_);
    events_[launched_++ % events_.size()].record(handle_);
    return true;
  }

  void ended(std::vector<Ended>& to) override {
    for (size_t i = 0; i < memory_.classes.size(); ++i) {
      Class& c = memory_.classes[i];
      std::erase_if(c.sentences, [&](int id) {
        if (!c.has_ended(id)) return false;
        to.push_back({{static_cast<int>(i), id}, c.report_of(id).fault});
        return true;
      });
    }
    check_exchanges();  // before what was found without a rank is looked at
    if (to.empty()) check_alive();
  }

  void await_ended(std::span<const Slot> slots) override {
    for (const Slot& slot : slots) {
      Class& c = class_of(slot);
      while (!c.has_ended(slot.sentence)) {
        check_exchanges();
        check_alive();
      }
      check_exchanges();
      std::erase(c.sentences, slot.sentence);
    }
  }

  void fetch(Slot slot, const Results& results) override {
    const Class& c = class_of(slot);
    const int steps = -c.reported_steps(slot.sentence);
    fetch_sentence(c.host_results(steps), slot.sentence, steps, 0,
                   c.from_first(slot.sentence, results));
  }

  int certain(Slot slot, const Results& results) override {
    const Class& c = class_of(slot);
    const int steps = c.reported_steps(slot.sentence);
    if (steps <= 0) return 0;  // its end reports all
    check_exchanges();
    const int finished = c.report_of(slot.sentence).finished_count[(steps - 1) % kReportedSteps];
    return fetch_certain(c.host_results(steps), slot.sentence, steps, finished,
                         c.from_first(slot.sentence, results));
  }

  void copy_stop_table(const int32_t* table, std::span<int32_t> to) const override {
    const cuda::UseDevice use(device_.id);
    CUDA_CHECK(cudaMemcpy(to.data(), table, to.size_bytes(), cudaMemcpyDeviceToHost));
  }

  std::shared_ptr<const int32_t> make_stop_table(std::span<const int32_t> table) const override {
    const cuda::UseDevice use(device_.id);
    const auto copy = std::make_shared<cuda::DeviceMemory>(table.size_bytes(), device_.id);
    CUDA_CHECK(cudaMemcpy(copy->data(), table.data(), table.size_bytes(), cudaMemcpyHostToDevice));
    return {copy, reinterpret_cast<const int32_t*>(copy->data())};
  }

  std::unique_lock<std::mutex> lock_launches() override {
    return cuda::LaunchOrder::of_process().lock(handle_);
  }

  std::vector<TensorOverflow> overflow() const override { return overflow_.found(); }
  std::string first_overflow(const Admitted& admitted) const override {
    const Class& c = class_of(admitted.slot);
    return overflow_.first(admitted.shared_pages,
                           admitted.request->shared(spec_.encoder.has_value()),
                           c.place_of(admitted.slot.sentence));
  }

 private:
  Class& class_of(Slot slot) { return memory_.classes[slot.request_class]; }
  const Class& class_of(Slot slot) const { return memory_.classes[slot.request_class]; }

  cuda::SplitStream stream() { return {handle_, device_, matmul_, collective_.get()}; }

  void clear(int32_t* numbers, int64_t count) {
    CUDA_CHECK(cudaMemsetAsync(numbers, 0, sizeof(int32_t) * count, handle_));
  }

  // What the steps expect to be 0, and a packed pass has had other things in.
  void clear_scratch(const Workspace<T>& w) {
    clear(w.split_counters, split_scratch(spec_, all_, matmul_.deterministic()).histories);
    const int vocab = spec_.decoder.vocab, padding = w.logits_stride - vocab;
    if (padding == 0) return;
    CUDA_CHECK(cudaMemset2DAsync(w.logits + vocab, sizeof(T) * w.logits_stride, 0,
                                 sizeof(T) * padding, all_.rows(), handle_));
  }

  // The active sentences of a class after all that was launched, whose ends are reported by then.
  std::pair<StepState, std::vector<ActiveSentence>> fetch_active(const Class& c) {
    const Inputs& in = c.w.inputs;
    StepState state;
    std::vector<ActiveSentence> active(c.limits.batch);
    CUDA_CHECK(cudaMemcpyAsync(&state, in.state, sizeof(state), cudaMemcpyDeviceToHost, handle_));
    CUDA_CHECK(cudaMemcpyAsync(active.data(), in.active, sizeof(ActiveSentence) * active.size(),
                               cudaMemcpyDeviceToHost, handle_));
    CUDA_CHECK(cudaStreamSynchronize(handle_));
    active.resize(state.active_count);
    return {state, active};
  }

  // Stages copies of pages and of those in the host's memory: copy(there, host, bytes).
  template <typename Copy>
  void copy_pages(std::span<const int32_t> pages, std::span<const int32_t> host_pages,
                  Copy&& copy) {
    const cuda::UseDevice use(device_.id);
    cuda::SplitStream stream = this->stream();
    for (size_t i = 0; i < pages.size(); ++i) {
      host_pages_.each_stretch(memory_.cache, pages[i], host_pages[i], copy);
      if ((i + 1) % kPagesOfLaunch > 0 && i + 1 < pages.size()) continue;
      staging_.renew(stream);
      staging_.send(stream);
    }
  }

  void check_exchanges() {
    if (collective_) collective_->check();
  }

  // A GPU that is lost would never say so by itself.
  void check_alive() {
    if (++polls_ % 1024 != 0) return;
    const cudaError_t state = cudaStreamQuery(handle_);
    CHECK(state == cudaSuccess || state == cudaErrorNotReady, "CUDA: ", cudaGetErrorString(state),
          cuda::advice(state));
  }

  std::optional<cuda::UseDevice> last_use_;  // of the destructor; the first, so it goes last
  const ModelSpec spec_;
  const ModelWeights& weights_;
  const cuda::Device device_;
  cuda::Matmul matmul_;
  const std::shared_ptr<cuda::Collective> collective_;
  cudaStream_t handle_ = nullptr;
  Limits all_{};
  CudaRunnerMemory<T, C> memory_;
  CudaStaging staging_;
  CudaRequestStaging<T> requests_;
  OverflowMemory<cuda::PinnedMemory> overflow_;
  HostPages<cuda::PinnedMemory> host_pages_;
  std::array<cuda::Event, kAhead> events_;  // of the steps launched last
  CudaSteps<T, C> steps_;
  CudaTextReader<T, C> reader_;
  int64_t launched_ = 0, polls_ = 0;
};

}  // namespace

std::unique_ptr<Runner> make_cuda_runner(const ModelSpec& spec, const ModelWeights& weights,
                                         WeightKind kind, WeightKind cache, int device,
                                         std::shared_ptr<cuda::Collective> collective,
                                         bool deterministic, bool detect_overflow) {
  cuda::Device::of(device);
  const cuda::UseDevice use(device);
  return for_cache_types(kind, cache, [&]<typename T, typename C>() -> std::unique_ptr<Runner> {
    return std::make_unique<CudaRunner<T, C>>(spec, weights, device, std::move(collective),
                                              deterministic, detect_overflow);
  });
}

}  // namespace decoding
