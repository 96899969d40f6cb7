// The runner on a GPU. The host only launches: what joins is staged in memory that the GPU reads,
// and what the GPU has to tell it writes to the host's.
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
#include "engine/cuda/request_class.h"
#include "engine/cuda/staging.h"
#include "engine/cuda/steps.h"
#include "engine/cuda/text_reader.h"
#include "engine/host_pages.h"
#include "kernels/cuda/launch_order.h"
#include "kernels/cuda/types.h"

namespace decoding {
namespace {

constexpr int kRowAlignment = 8;       // elements: of each row of logits, for accesses of 16 bytes
constexpr int kAhead = 2;              // steps that may wait behind the one that runs
constexpr int kPlaces = 2;             // of a pass, for each row
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
    CudaRunnerMemory<T, C> memory;
    take(arena, limits, memory);
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
    take(arena, limits, memory_);
    bind_overflow(overflow_, memory_.w, memory_.classes, spec_, limits_of(limits));
    limits_ = limits;
    all_ = limits_of(limits, kPlaces);
    host_pages_ = HostPages<cuda::PinnedMemory>(memory_.cache.page_bytes());
    matmul_.workspace(memory_.products);
    const Workspace<T>& w = memory_.w;
    clear(memory_.scratch.arrivals, arrivals_of(limits));
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
      stage_joining(*admitted);
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
    const Class& c = memory_.classes[slot.request_class];
    CUDA_CHECK(cudaMemsetAsync(c.w.inputs.stop_now + slot.sentence, 1, sizeof(int32_t), handle_));
  }

  void extend(std::span<const Extension> extensions) override {
    const cuda::UseDevice use(device_.id);
    cuda::SplitStream stream = this->stream();
    staging_.renew(stream);
    for (const Extension& extension : extensions) {
      stage_own_pages(*extension.admitted, extension.first);
    }
    staging_.send(stream);
  }

  bool pause(Slot slot) override {
    const cuda::UseDevice use(device_.id);
    Class& c = memory_.classes[slot.request_class];
    auto [state, active] = fetch_active(c);
    if (c.has_ended(slot.sentence)) return false;
    std::erase_if(active, [&](const ActiveSentence& a) { return a.id == slot.sentence; });
    cuda::SplitStream stream = this->stream();
    staging_.renew(stream);
    stage_active(c, state, active);
    stage_one(c.running + slot.sentence, 0);
    staging_.send(stream);
    std::erase(c.sentences, slot.sentence);
    return true;
  }

  void resume(const Admitted& admitted, int steps) override {
    const cuda::UseDevice use(device_.id);
    Class& c = memory_.classes[admitted.slot.request_class];
    const int id = admitted.slot.sentence;
    const int before = admitted.request->own_before(spec_.encoder.has_value());
    auto [state, active] = fetch_active(c);
    active.push_back({id, steps + 1, before + steps});
    cuda::SplitStream stream = this->stream();
    staging_.renew(stream);
    stage_active(c, state, active);
    stage_own_pages(admitted, 0);
    stage_one(c.running + id, 1);
    staging_.send(stream);
    c.sentences.push_back(id);
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
      Class& c = memory_.classes[slot.request_class];
      while (!c.has_ended(slot.sentence)) {
        check_exchanges();
        check_alive();
      }
      check_exchanges();
      std::erase(c.sentences, slot.sentence);
    }
  }

  void fetch(Slot slot, const Results& results) override {
    const Class& c = memory_.classes[slot.request_class];
    const int steps = -c.reported_steps(slot.sentence);
    fetch_sentence(c.host_results(steps), slot.sentence, steps, 0,
                   c.from_first(slot.sentence, results));
  }

  int certain(Slot slot, const Results& results) override {
    const Class& c = memory_.classes[slot.request_class];
    const int steps = c.reported_steps(slot.sentence);
    if (steps <= 0) return 0;  // its end tells all
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
    const Class& c = memory_.classes[admitted.slot.request_class];
    return overflow_.first(admitted.shared_pages,
                           admitted.request->shared(spec_.encoder.has_value()),
                           c.place_of(admitted.slot.sentence));
  }

 private:
  // All rows, as sentences of one row. A pass has more: each class may have nearly as many places
  // again for sentences that have ended, or are yet to come.
  static Limits limits_of(const RunnerLimits& limits, int places = 1) {
    return {.batch = places * limits.rows,
            .beams = 1,
            .source = limits.source,
            .prompt = limits.prompt,
            .target = limits.target,
            .candidates = limits.candidates,
            .controls = 1,  // for the scores of processed requests
            .tokens = limits.tokens,
            .pages = limits.pages,
            .input_rows = limits.classes * limits.rows};
  }

  void take(Arena& arena, const RunnerLimits& limits, CudaRunnerMemory<T, C>& memory) const {
    const Limits all = limits_of(limits, kPlaces);
    memory.w = Workspace<T>(
        arena, spec_, all, kRowAlignment,
        [&](auto& w) {
          memory.cache = Cache<C>(arena, spec_, all);
          StepScratch& scratch = memory.scratch = StepScratch(arena, all);
          scratch.arrivals = arena.take<int32_t>("select_arrivals", {arrivals_of(limits)});
          scratch.perturbed = arena.take<float>("perturbed", {all.rows(), w.logits_stride});
          memory.products =
              arena.take<uint8_t>("products", {static_cast<int64_t>(matmul_.bytes())});
          memory.classes.clear();
          memory.classes.reserve(limits.classes);
          for (int i = 0; i < limits.classes; ++i) {
            arena.prefixed("class " + std::to_string(i) + ": ", [&] {
              memory.classes.emplace_back(arena, spec_, i, limits_of(limits), limits.words);
            });
          }
        },
        [&](auto& w) {
          const auto scratch = split_scratch(spec_, all, matmul_.deterministic());
          take_split_scratch(arena, scratch, spec_.decoder.head_dim, w);
        });
  }

  static int64_t arrivals_of(const RunnerLimits& limits) {
    return select_arrivals(limits_of(limits, kPlaces)) + limits.classes - 1;
  }

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

  void stage_one(int32_t* to, int32_t value) { staging_.stage(to, &value, 1); }

  // What a request brings to its class.
  void stage_joining(const Admitted& admitted) {
    Class& c = memory_.classes[admitted.slot.request_class];
    const int id = admitted.slot.sentence;
    const bool has_encoder = spec_.encoder.has_value();
    overflow_.forget(c.place_of(id), 1);
    stage_config(c, id, admitted.request->request);
    const Inputs& in = c.w.inputs;
    staging_.stage(in.shared_pages + int64_t{id} * shared_pages_of(spec_, c.limits),
                   admitted.shared_pages);
    stage_own_pages(admitted, 0);
    stage_one(in.shared_lengths + id, admitted.request->shared(has_encoder));
    stage_one(c.running + id, 1);
    stage_one(c.steps + id, 0);
    c.joining.push_back(joining_sentence(admitted, has_encoder));
    c.report.reports[id] = {};
    c.sentences.push_back(id);
  }

  // Those from `first` on.
  void stage_own_pages(const Admitted& admitted, int first) {
    const Class& c = memory_.classes[admitted.slot.request_class];
    const int64_t list = int64_t{admitted.slot.sentence} * self_pages_of(spec_, c.limits);
    staging_.stage(c.w.inputs.self_pages + list + first, admitted.own_pages.data() + first,
                   admitted.own_pages.size() - first);
  }

  // The active sentences of a class after all that was launched, whose ends have been told by then.
  std::pair<StepState, std::vector<ActiveSentence>> fetch_active(const Class& c) {
    const Inputs& in = c.w.inputs;
    StepState state;
    std::vector<ActiveSentence> active(c.limits.batch);
    CUDA_CHECK(cudaMemcpyAsync(&state, in.state, sizeof(state), cudaMemcpyDeviceToHost, handle_));
    CUDA_CHECK(cudaMemcpyAsync(active.data(), in.active, sizeof(ActiveSentence) * active.size(),
                               cudaMemcpyDeviceToHost, handle_));
    CUDA_CHECK(cudaStreamSynchronize(handle_));
    active.resize(state.live_count);
    return {state, active};
  }

  void stage_active(Class& c, StepState state, const std::vector<ActiveSentence>& active) {
    state.live_count = static_cast<int32_t>(active.size());
    staging_.stage(c.w.inputs.state, &state, 1);
    staging_.stage(c.w.inputs.active, active);
    c.changed = true;
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

  void stage_config(const Class& c, int id, const Request& request) {
    std::vector<int32_t> words(request.words.size());
    const int32_t first = id * limits_.words;
    const SentenceConfig config = place_config(request, first, words.data() - first);
    staging_.stage(c.configs + id, &config, 1);
    staging_.stage(c.words + first, words);
  }

  void check_exchanges() {
    if (collective_) collective_->check();
  }

  // A GPU that is lost would never say so by itself.
  void check_alive() {
    if (++looks_ % 1024 != 0) return;
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
  RunnerLimits limits_{};
  Limits all_{};
  CudaRunnerMemory<T, C> memory_;
  CudaStaging staging_;
  OverflowMemory<cuda::PinnedMemory> overflow_;
  HostPages<cuda::PinnedMemory> host_pages_;
  std::array<cuda::Event, kAhead> events_;  // of the steps launched last
  CudaSteps<T, C> steps_;
  CudaTextReader<T, C> reader_;
  int64_t launched_ = 0, looks_ = 0;
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
