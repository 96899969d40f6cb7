// The session on a GPU. A call's inputs go over in one copy and its results come back in one go;
// between them the host only launches captured steps, and polls one word of its own memory to
// see how far they have come.
#include "engine/session.h"

#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "engine/cuda/cache_types.h"
#include "engine/cuda/inputs.h"
#include "engine/cuda/product_memory.h"
#include "engine/cuda/select.h"
#include "engine/cuda/split_scratch.h"
#include "engine/cuda/transfers.h"
#include "engine/model/decoder.h"
#include "engine/search/state.h"
#include "kernels/cuda/resources.h"
#include "kernels/cuda/split_stream.h"
#include "kernels/cuda/types.h"
#include "kernels/linear/cuda/cublaslt/matmul.h"
#include "kernels/linear/cuda/tune_in_place.h"

namespace decoding {

namespace {

// Steps that may wait behind the one that runs; what is launched behind a search's end is computed
// in vain.
constexpr int kAhead = 2;

template <typename T, typename C>
class CudaSession : public Session {
 public:
  // The device must be the current one.
  CudaSession(const ModelSpec& spec, const ModelWeights& weights, int device,
              std::shared_ptr<cuda::Collective> collective, bool deterministic,
              bool detect_overflow)
      : spec_(spec),
        weights_(weights),
        device_(cuda::Device::of(device)),
        matmul_(device_, nullptr, product_memory(weights), deterministic),
        collective_(std::move(collective)),
        host_state_memory_(sizeof(StepState)),
        host_state_(static_cast<volatile StepState*>(host_state_memory_.data())),
        reader_(spec_, weights_, device_, matmul_, collective_.get()) {
    check_split<T>(spec, collective_.get());
    check_cache<C>(spec, device_);
    check_activations(spec.encoder ? *spec.encoder : spec.decoder, device_);
    if (detect_overflow) overflow_ = OverflowMemory<cuda::PinnedMemory>(spec);
  }

  ~CudaSession() override {
    last_use_.emplace(device_.id, std::nothrow);
    try {
      ended_.wait();  // what is launched uses what goes now
    } catch (const Error&) {
      // A lost GPU runs nothing.
    }
  }

  Arena plan(const Limits& limits) const override {
    Arena arena;
    Buffers buffers;
    workspace(arena, limits, buffers);
    return arena;
  }

  void bind(const Limits& limits, void* pool, size_t bytes) override {
    const cuda::UseDevice use(device_.id);
    started_ = false;
    ended_.wait();
    steps_.clear();
    check_reach(limits);
    Arena arena(pool, bytes);
    w_ = workspace(arena, limits, buffers_);
    overflow_.bind(pages_of(spec_, limits) * kPageSize, overflow_sentences(limits));
    w_.overflow = overflow_.view();
    transfers_ = CudaTransfers(spec_, limits);
    config_memory_ = buffers_.config.staging();
    matmul_.workspace(buffers_.products);
    reader_.bind(w_, buffers_.cache, buffers_.scratch.arrivals, limits);
    limits_ = limits;
  }

  void start(const Batch& batch, Request request) override {
    const cuda::UseDevice use(device_.id);
    started_ = false;
    ended_.wait();  // steps of a call that was given up still write
    request_ = std::move(request);
    stream_ = static_cast<cudaStream_t>(batch.stream);
    CHECK(w_.logits != nullptr, "start() needs a bind() before it");
    check_fits(batch, request_, spec_, limits_);
    CHECK(batch.shortlist == nullptr, "a shortlist works on the CPU alone");
    CHECK(!collective_ || limits_.attentions == 0, "a model that is split keeps no attention");
    overflow_.forget(0, limits_.batch);
    transfers_.send(w_.inputs, batch, request_, spec_, limits_, stream_);
    buffers_.config.send(request_, config_memory_, stream_);
    host_state_->number = 1;
    host_state_->active_count = request_.sentences();
    if (const auto* constrained = std::get_if<Constrained>(&request_.search)) {
      send_phrases(w_.phrases, constrained->phrases, batch, request_.rows_per_sentence, limits_,
                   stream_);
    }
    reader_.read(batch, request_.rows_per_sentence, stream_);
    ended_.record(stream_);
    key_ = step_key(request_, 0, is_fused(request_) ? SelectPart::all : SelectPart::candidates);
    longest_source_ = longest_source(batch);
    launched_ = 0;
    started_ = true;
  }

  bool step(int steps) override {
    const cuda::UseDevice use(device_.id);
    CHECK(started_, "step() needs a start() before it");
    const int last = std::min(launched_ + steps, request_.steps());
    const Step* passed = nullptr;  // whose pass has been launched, but no choice
    for (; launched_ < last; ++launched_) {
      if (passed == nullptr) {
        const int active_count = agreed(wait_for(launched_ - kAhead));
        if (active_count == 0) break;
        passed = &captured_step(size_for(active_count));
        passed->pass.launch(stream_);
      }
      // A pass is most of a step.
      const int active_count = agreed(wait_for(launched_ + 1 - kAhead));
      if (active_count == 0) break;
      if (launched_ + 1 < last && size_for(active_count) == captured_for_) {
        passed->choice_and_pass.launch(stream_);
      } else {
        passed->choice.launch(stream_);
        passed = nullptr;
      }
    }
    ended_.record(stream_);
    return launched_ == request_.steps() || agreed(host_state_->active_count) == 0;
  }

  // In parts nothing is captured: what comes between them takes longer than the launches.
  void compute() override {
    const cuda::UseDevice use(device_.id);
    CHECK(started_, "compute() needs a start() before it");
    captured_for_ = agreed(wait_for(launched_));
    auto stream = this->stream();
    pass(stream, captured_for_);
  }

  void process_logits(int stages) override {
    const cuda::UseDevice use(device_.id);
    CHECK(key_.processed, "process_logits() needs a request that is processed");
    auto stream = this->stream();
    process_scores(stream, w_, step_in_parts(), stages);
  }

  void select() override {
    const cuda::UseDevice use(device_.id);
    auto stream = this->stream();
    decoding::select(stream, w_, step_in_parts());
  }

  bool update(const uint8_t* ended) override {
    const cuda::UseDevice use(device_.id);
    auto stream = this->stream();
    decoding::update(stream, w_, step_in_parts(), ended);
    ++launched_;
    ended_.record(stream_);
    return agreed(wait_for(launched_)) == 0;
  }

  void stop_now() override {
    const cuda::UseDevice use(device_.id);
    CUDA_CHECK(cudaMemsetAsync(w_.inputs.stop_now, 1, sizeof(int32_t) * limits_.batch, stream_));
  }

  EngineState state() override {
    const cuda::UseDevice use(device_.id);
    CHECK(started_, "state() needs a start() before it");
    StepState state;
    CUDA_CHECK(
        cudaMemcpyAsync(&state, w_.inputs.state, sizeof(state), cudaMemcpyDeviceToHost, stream_));
    finish();
    return engine_state(w_, state, key_, request_, buffers_.scratch, spec_, limits_,
                        longest_source_);
  }

  void fetch(const Results& results) const override {
    const cuda::UseDevice use(device_.id);
    CHECK(started_, "fetch() needs a start() before it");
    if (collective_) finish();  // before what was found without a rank is looked at
    transfers_.fetch(w_, launched_, request_, stream_, [&](int b) {
      return decoding::first_overflow(overflow_, transfers_.inputs(), b, key_.guided, spec_,
                                      limits_);
    });
    transfers_.write(request_, results);
  }

  void score(const Labelled& labelled, LabelScore* found, float* attentions) override {
    const cuda::UseDevice use(device_.id);
    started_ = false;
    ended_.wait();  // steps of a call that was given up still write
    stream_ = static_cast<cudaStream_t>(labelled.source.stream);
    CHECK(w_.logits != nullptr, "score() needs a bind() before it");
    check_labelled(labelled, spec_, limits_);
    check_kept(w_.inputs, attentions);
    CHECK(!collective_ || attentions == nullptr, "a model that is split keeps no attention");
    transfers_.send(w_.inputs, labelled, spec_, limits_, stream_);
    reader_.score(labelled, stream_);
    if (found != nullptr) {
      CUDA_CHECK(cudaMemcpyAsync(found, w_.label_scores, sizeof(LabelScore) * labelled.tokens(),
                                 cudaMemcpyDeviceToHost, stream_));
    }
    if (attentions != nullptr) fetch_attentions(labelled, attentions);
    finish();
  }

  std::vector<TensorOverflow> overflow() const override {
    const cuda::UseDevice use(device_.id);
    ended_.wait();
    return overflow_.found();
  }
  std::string first_overflow(int sentence) const override {
    return first_overflow_of_labels(overflow_, transfers_.inputs(), sentence, spec_, limits_);
  }

  int graph_nodes() const override { return nodes_; }
  std::string tuned() const override { return matmul_.report(); }

 private:
  // Launches the copy to [labelled.tokens(), longest source].
  void fetch_attentions(const Labelled& labelled, float* to) const {
    const size_t width = longest_source(labelled.source), line = width * sizeof(float);
    const size_t step = sizeof(float) * limits_.rows() * limits_.source;  // from token to token
    for (int b = 0; b < labelled.sentences; ++b) {
      const int begin = labelled.offsets[b], count = labelled.offsets[b + 1] - begin;
      if (count == 0) continue;
      CUDA_CHECK(cudaMemcpy2DAsync(to + begin * width, line,
                                   w_.attentions + int64_t{b} * limits_.source, step, line, count,
                                   cudaMemcpyDeviceToHost, stream_));
    }
  }

  // What lies beside the workspace.
  struct Buffers {
    Cache<C> cache;
    CudaConfig config;
    StepScratch scratch;
    uint8_t* products = nullptr;
  };

  // A step is a pass through the decoder, and the choice of tokens. Where steps follow each other,
  // a graph begins with the choice and ends with the next step's pass: faster by some 4 us at 32
  // rows and more, it seems because a graph's second kernel starts late.
  struct Step {
    cuda::Graph pass, choice, choice_and_pass;
  };

  Workspace<T> workspace(Arena& arena, const Limits& limits, Buffers& buffers) const {
    const StackSpec& d = spec_.decoder;
    return Workspace<T>(
        arena, spec_, limits, kRowAlignment,
        [&](auto& w) {
          buffers.cache = Cache<C>(arena, spec_, limits);
          buffers.config = CudaConfig(arena, limits, d.vocab);
          StepScratch& scratch = buffers.scratch = StepScratch(arena, limits);
          scratch.arrivals = arena.take<int32_t>("select_arrivals", {select_arrivals(limits)});
          scratch.perturbed = arena.take<float>(
              "perturbed", {limits.controls > 0 ? limits.rows() : 0, w.logits_stride});
          buffers.products =
              arena.take<uint8_t>("products", {static_cast<int64_t>(matmul_.bytes())});
        },
        [&](auto& w) {
          const auto scratch = split_scratch(spec_, limits, matmul_.deterministic());
          take_split_scratch(arena, scratch, d.head_dim, w);
        });
  }

  // Decode attention counts the keys of a layer in 32 bits, by 16 bytes where it can; cells are
  // int32.
  void check_reach(const Limits& limits) const {
    constexpr int kWidth = 16 / sizeof(T);
    const StackSpec& d = spec_.decoder;
    const int64_t unit = d.head_dim % kWidth == 0 ? kWidth : 1;
    const int64_t most =
        std::min<int64_t>(int64_t{1} << 31, (int64_t{1} << 32) * unit / d.widest_kv_inner());
    const int64_t cells = pages_of(spec_, limits) * kPageSize;
    CHECK(cells < most, "batch ", limits.batch, " with ", limits.beams, " beams needs keys of ",
          cells, " positions; a GPU attends to less than ", most,
          ": batch, beams or lengths must be smaller");
  }

  // Waits until `steps` steps have ended; returns how many sentences went on then, or later. The
  // stream is asked now and then, since a GPU that is lost would never say so by itself.
  int wait_for(int steps) const {
    for (int polls = 1; host_state_->number - 1 < steps && host_state_->active_count > 0; ++polls) {
      if (polls % 4096 != 0) continue;
      const cudaError_t state = cudaStreamQuery(stream_);
      if (state == cudaErrorNotReady) continue;
      CHECK(state == cudaSuccess, "CUDA: ", cudaGetErrorString(state), cuda::advice(state));
      break;  // it has done all that was launched
    }
    return host_state_->active_count;
  }

  // Ranks must launch the same work, so they act on what the first to look has seen, or one of
  // the others: the GPU of each may have come further meanwhile.
  int agreed(int active_count) const {
    return collective_ ? static_cast<int>(collective_->max_of(active_count)) : active_count;
  }

  // Waits for all that was launched.
  void finish() const {
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    if (collective_) collective_->check();
  }

  // How many sentences the next step is made for. A smaller size is taken once it halves the work.
  int size_for(int active_count) const {
    const bool stays = launched_ > 0 && 2 * active_count > captured_for_;
    return stays ? captured_for_
                 : std::min(bucket_of(active_count), limits_.batch / (key_.guided ? 2 : 1));
  }

  const Step& captured_step(int sentences) {
    captured_for_ = sentences;
    const StepView step = view(sentences);
    const StepKey& key = step.key;
    auto found = steps_.find(key);
    if (found == steps_.end()) {
      CUDA_CHECK(cudaStreamSynchronize(stream_));  // a warm-up writes where steps do
      cuda::tune_in_place(stream(), [&](cuda::SplitStream& on) { pass(on, sentences); });
      const auto capture = [&](bool chooses, bool passes) {
        return cuda::Graph::capture([&](cudaStream_t recorder) {
          cuda::SplitStream recording(recorder, device_, matmul_, collective_.get());
          if (chooses) choose(recording, step);
          if (passes) pass(recording, sentences);
        });
      };
      found =
          steps_.emplace(key, Step{capture(false, true), capture(true, false), capture(true, true)})
              .first;
    }
    nodes_ = found->second.choice_and_pass.nodes();
    return found->second;
  }

  StepView view(int sentences) {
    StepView view = {.search = &request_.search,
                     .config = buffers_.config.view(),
                     .scratch = buffers_.scratch,
                     .key = key_,
                     .total_rows = limits_.rows(),
                     .vocab = spec_.decoder.vocab,
                     .host_state = static_cast<StepState*>(host_state_memory_.data())};
    view.key.sentences = sentences;
    return view;
  }

  StepView step_in_parts() {
    StepView step = view(captured_for_);
    step.key.part = SelectPart::candidates;
    return step;
  }

  cuda::SplitStream stream() { return {stream_, device_, matmul_, collective_.get()}; }

  void pass(cuda::SplitStream& stream, int sentences) {
    const Pass<cuda::SplitStream, T, C> pass{stream, spec_, weights_, w_, buffers_.cache, limits_};
    const StepRows rows = step_rows(pass, sentences, key_.beams, key_.guided);
    output_logits(pass, decoder_layers(pass, rows), rows.total());
    if (is_contrastive(request_.search)) keep_hidden(pass, rows);
  }

  // From the logits to what the next step reads.
  void choose(cuda::Stream& stream, const StepView& step) {
    if (step.key.processed) process_scores(stream, w_, step, kAllStages);
    decoding::select(stream, w_, step);
    if (step.key.part == SelectPart::candidates) decoding::update(stream, w_, step, nullptr);
  }

  std::optional<cuda::UseDevice> last_use_;  // of the destructor; the first, so it goes last
  const ModelSpec spec_;
  const ModelWeights weights_;
  const cuda::Device device_;
  cuda::Matmul matmul_;
  const std::shared_ptr<cuda::Collective> collective_;
  cuda::Event ended_;  // of the work launched last
  cuda::PinnedMemory host_state_memory_;
  volatile StepState* const host_state_;  // how far the GPU has come
  Limits limits_{};
  Workspace<T> w_{};
  Buffers buffers_{};
  OverflowMemory<cuda::PinnedMemory> overflow_;
  CudaReader<T, C> reader_;
  CudaTransfers transfers_;
  cuda::PinnedMemory config_memory_;
  std::map<StepKey, Step> steps_;
  Request request_;
  StepKey key_{};  // but for the sentences that a step is made for
  cudaStream_t stream_ = nullptr;
  int longest_source_ = 0, launched_ = 0, captured_for_ = 0, nodes_ = 0;
  bool started_ = false;
};

}  // namespace

std::unique_ptr<Session> make_cuda_session(const ModelSpec& spec, const ModelWeights& weights,
                                           WeightKind kind, WeightKind cache, int device,
                                           std::shared_ptr<cuda::Collective> collective,
                                           bool deterministic, bool detect_overflow) {
  cuda::Device::of(device);
  const cuda::UseDevice use(device);
  return for_cache_types(kind, cache, [&]<typename T, typename C>() -> std::unique_ptr<Session> {
    return std::make_unique<CudaSession<T, C>>(spec, weights, device, std::move(collective),
                                               deterministic, detect_overflow);
  });
}

}  // namespace decoding
