// The session on a GPU. A call's inputs go over in one copy and its results come back in one go;
// between them the host only launches captured steps, and looks at one word of its own memory to
// see how far they have come.
#include "engine/session.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/cuda/constraints.h"
#include "engine/cuda/inputs.h"
#include "engine/cuda/transfers.h"
#include "engine/cuda/update.h"
#include "engine/model/decoder.h"
#include "kernels/cuda/resources.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/types.h"
#include "kernels/linear/cuda/matmul.h"

namespace decoding {

namespace {

// Steps that may wait behind the one that runs; what is launched behind a search's end is computed
// in vain.
constexpr int kAhead = 2;
constexpr int kRowAlignment = 8;  // elements: of each row of logits, for accesses of 16 bytes

template <typename T>
class CudaSession : public Session {
 public:
  // The device must be the current one.
  CudaSession(const ModelSpec& spec, const ModelWeights& weights, int device)
      : spec_(spec),
        weights_(weights),
        device_(cuda::Device::of(device)),
        matmul_(device_, nullptr, cuda::kMatmulWorkspace),
        seen_memory_(sizeof(StepState)),
        seen_(static_cast<volatile StepState*>(seen_memory_.data())),
        reader_(spec_, weights_, device_, matmul_) {}

  ~CudaSession() override {
    try {
      ended_.wait();  // what is launched uses what goes now
    } catch (const Error&) {
      // A lost GPU runs nothing.
    }
  }

  Arena plan(const Limits& limits) const override {
    Arena arena;
    Cache<T> cache;
    CudaSearch search;
    uint8_t* products;
    workspace(arena, limits, cache, search, products);
    return arena;
  }

  void bind(const Limits& limits, void* pool, size_t bytes) override {
    const cuda::UseDevice use(device_.id);
    started_ = false;
    ended_.wait();
    steps_.clear();
    check_reach(limits);
    Arena arena(pool, bytes);
    uint8_t* products;
    w_ = workspace(arena, limits, cache_, cuda_search_, products);
    transfers_ = CudaTransfers(spec_, limits);
    rules_memory_ = cuda_search_.rules.staging(limits);
    matmul_.workspace(products);
    reader_.bind(w_, cache_, cuda_search_, limits);
    limits_ = limits;
  }

  void start(const Batch& batch, const Request& request) override {
    const cuda::UseDevice use(device_.id);
    started_ = false;
    ended_.wait();  // steps of a call that was given up still write
    sentences_ = batch.sentences - batch.shadows;
    beams_ = batch.beams;
    stream_ = static_cast<cudaStream_t>(batch.stream);
    CHECK(w_.logits != nullptr, "start() needs a bind() before it");
    check_fits(batch, request, spec_, limits_);
    CHECK(batch.shortlist == nullptr, "a shortlist works on the CPU alone");
    transfers_.send(w_.inputs, batch, spec_, limits_, groups_of(request.search), stream_);
    request_ = request;
    cuda_search_.rules.send(request_, batch.stop_table, w_, beams_, rules_memory_, stream_);
    seen_->number = 1;
    seen_->live_count = sentences_;
    if (const auto* constrained = std::get_if<Constrained>(&request_.search)) {
      send_phrases(w_.phrases, constrained->phrases, batch, limits_, stream_);
    }
    reader_.read(batch, stream_);
    ended_.record(stream_);
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
        const int live_count = wait_for(launched_ - kAhead);
        if (live_count == 0) break;
        passed = &captured_step(size_for(live_count));
        passed->pass.launch(stream_);
      }
      const int live_count = wait_for(launched_ + 1 - kAhead);  // a pass is most of a step
      if (live_count == 0) break;
      if (launched_ + 1 < last && size_for(live_count) == captured_for_) {
        passed->choice_and_pass.launch(stream_);
      } else {
        passed->choice.launch(stream_);
        passed = nullptr;
      }
    }
    ended_.record(stream_);
    return launched_ == request_.steps() || seen_->live_count == 0;
  }

  // In parts nothing is captured: what comes between them takes longer than the launches.
  void compute() override {
    const cuda::UseDevice use(device_.id);
    CHECK(started_, "compute() needs a start() before it");
    captured_for_ = wait_for(launched_);
    auto stream = this->stream();
    pass(stream, captured_for_);
  }

  void process(int stages) override {
    const cuda::UseDevice use(device_.id);
    CHECK(request_.processing, "process() needs controls");
    auto stream = this->stream();
    process_scores(stream, w_, cuda_search_, step_for(captured_for_), stages);
  }

  void pick() override {
    const cuda::UseDevice use(device_.id);
    auto stream = this->stream();
    decoding::pick(stream, w_, cuda_search_, step_in_parts());
  }

  bool accept(const uint8_t* ended) override {
    const cuda::UseDevice use(device_.id);
    auto stream = this->stream();
    decoding::accept(stream, w_, cuda_search_, step_in_parts(), ended);
    ++launched_;
    ended_.record(stream_);
    return wait_for(launched_) == 0;
  }

  void stop_now() override {
    const cuda::UseDevice use(device_.id);
    CUDA_CHECK(cudaMemsetAsync(w_.inputs.stop_now, 1, sizeof(int32_t), stream_));
  }

  void take(const Results& results) const override {
    const cuda::UseDevice use(device_.id);
    CHECK(started_, "take() needs a start() before it");
    const int places = request_.places(beams_);
    transfers_.fetch(w_, launched_, sentences_, beams_, places, stream_);
    transfers_.write(sentences_, beams_, places, results);
  }

  void score(const Labelled& labelled, float* logprobs) override {
    const cuda::UseDevice use(device_.id);
    started_ = false;
    ended_.wait();  // steps of a call that was given up still write
    stream_ = static_cast<cudaStream_t>(labelled.source.stream);
    CHECK(w_.logits != nullptr, "score() needs a bind() before it");
    check_labelled(labelled, spec_, limits_);
    transfers_.send(w_.inputs, labelled, spec_, stream_);
    reader_.score(labelled, stream_);
    CUDA_CHECK(cudaMemcpyAsync(logprobs, w_.logprobs, sizeof(float) * labelled.tokens(),
                               cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  int graph_nodes() const override { return nodes_; }
  std::string tuned() const override { return matmul_.report(); }

 private:
  // What a captured step depends on: sentences, beams, candidates of a row, strategy, kind, part,
  // processed, guided, warped, renormalized, draws
  using StepKey =
      std::tuple<int, int, int, size_t, SearchKind, SelectPart, bool, bool, bool, bool, bool>;

  // A step is a pass through the decoder, and the choice of tokens. Where steps follow each other,
  // a graph begins with the choice and ends with the next step's pass: faster by some 4 us at 32
  // rows and more, it seems because a graph's second kernel starts late.
  struct Step {
    cuda::Graph pass, choice, choice_and_pass;
  };

  Workspace<T> workspace(Arena& arena, const Limits& limits, Cache<T>& cache, CudaSearch& search,
                         uint8_t*& products) const {
    const StackSpec& d = spec_.decoder;
    return Workspace<T>(
        arena, spec_, limits, kRowAlignment,
        [&](auto& w) {
          cache = Cache<T>(arena, spec_, limits, w.history);
          search = CudaSearch(arena, limits, d.vocab, w.logits_stride);
          products = arena.take<uint8_t>("products", {int64_t{cuda::kMatmulWorkspace}});
        },
        [&](auto& w) {
          w.split_counters = arena.take<int32_t>("attention_split_counters", {kSplitCounters});
          w.partial = arena.take<float>("attention_partial", {partial_size(d.head_dim)});
        });
  }

  // Decode attention counts the keys of a layer in 32 bits, by 16 bytes where it can.
  void check_reach(const Limits& limits) const {
    constexpr int kWidth = 16 / sizeof(T);
    const StackSpec& d = spec_.decoder;
    const int64_t unit = d.head_dim % kWidth == 0 ? kWidth : 1;
    const int64_t most = (int64_t{1} << 32) * unit / d.widest_kv_inner();
    const int64_t own = int64_t{limits.rows()} * (limits.target + limits.prompt);
    const int64_t shared = int64_t{limits.batch} * std::max(limits.source, limits.prompt);
    CHECK(std::max(own, shared) < most, "batch ", limits.batch, " with ", limits.beams,
          " beams needs keys of ", std::max(own, shared), " positions; a GPU attends to less than ",
          most, ": batch, beams or lengths must be smaller");
  }

  // Waits until `steps` steps have ended; returns how many sentences went on then, or later. The
  // stream is asked now and then, since a GPU that is lost would never say so by itself.
  int wait_for(int steps) const {
    for (int looks = 1; seen_->number - 1 < steps && seen_->live_count > 0; ++looks) {
      if (looks % 4096 != 0) continue;
      const cudaError_t state = cudaStreamQuery(stream_);
      if (state == cudaErrorNotReady) continue;
      CHECK(state == cudaSuccess, "CUDA: ", cudaGetErrorString(state), cuda::advice(state));
      break;  // it has done all that was launched
    }
    return seen_->live_count;
  }

  // How many sentences the next step is made for. A smaller size is taken once it halves the work.
  int size_for(int live_count) const {
    const bool stays = launched_ > 0 && 2 * live_count > captured_for_;
    return stays ? captured_for_
                 : std::min(bucket_of(live_count), limits_.batch / (request_.guided() ? 2 : 1));
  }

  const Step& captured_step(int sentences) {
    captured_for_ = sentences;
    const CudaStep step = step_for(sentences);
    const StepKey key{
        sentences,      beams_,      step.candidates, request_.search.index(), step.kind, step.part,
        step.processed, step.guided, step.warped,     step.renormalized,       step.draws};
    auto found = steps_.find(key);
    if (found == steps_.end()) {
      CUDA_CHECK(cudaStreamSynchronize(stream_));  // a warm-up writes where steps do
      cuda::Stream warm_up(stream_, device_, matmul_, true);
      pass(warm_up, sentences);
      const auto capture = [&](bool chooses, bool passes) {
        return cuda::Graph::capture([&](cudaStream_t recorder) {
          cuda::Stream recording(recorder, device_, matmul_);
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

  CudaStep step_for(int sentences) {
    const auto& processing = request_.processing;
    return {.search = &request_.search,
            .kind = kind_of(request_.search),
            .part = is_fused(request_.search, beams_) ? SelectPart::all : SelectPart::pick,
            .processed = processing.has_value(),
            .guided = request_.guided(),
            .warped = processing && processing->warp,
            .renormalized = processing && processing->rules.renormalize,
            .draws = draws(request_.search),
            .seen = static_cast<StepState*>(seen_memory_.data()),
            .sentences = sentences,
            .beams = beams_,
            .candidates = row_candidates(request_, beams_),
            .vocab = spec_.decoder.vocab,
            .slots = limits_.rows(),
            .pad = request_.rules.pad};
  }

  CudaStep step_in_parts() {
    CudaStep step = step_for(captured_for_);
    step.part = SelectPart::pick;
    return step;
  }

  cuda::Stream stream() { return {stream_, device_, matmul_}; }

  void pass(cuda::Stream& stream, int sentences) {
    const Pass<cuda::Stream, T, T> pass{stream, spec_, weights_, w_, cache_, limits_};
    const StepRows rows = step_rows(pass, sentences, beams_, request_.guided());
    output_logits(pass, decoder_layers(pass, rows), rows.total());
    if (is_contrastive(request_.search)) keep_hidden(pass, rows);
  }

  // From the logits to what the next step reads.
  void choose(cuda::Stream& stream, const CudaStep& step) {
    if (step.processed) process_scores(stream, w_, cuda_search_, step, kAllStages);
    decoding::pick(stream, w_, cuda_search_, step);
    if (step.part == SelectPart::pick) decoding::accept(stream, w_, cuda_search_, step, nullptr);
  }

  const ModelSpec spec_;
  const ModelWeights weights_;
  const cuda::Device device_;
  cuda::Matmul matmul_;
  cuda::Event ended_;  // of the work launched last
  cuda::PinnedMemory seen_memory_;
  volatile StepState* const seen_;  // how far the GPU has come
  Limits limits_{};
  Workspace<T> w_{};
  Cache<T> cache_{};
  CudaSearch cuda_search_{};
  CudaReader<T> reader_;
  CudaTransfers transfers_;
  cuda::PinnedMemory rules_memory_;
  std::map<StepKey, Step> steps_;
  Request request_;
  cudaStream_t stream_ = nullptr;
  int sentences_ = 0, beams_ = 0, launched_ = 0, captured_for_ = 0, nodes_ = 0;
  bool started_ = false;
};

}  // namespace

std::unique_ptr<Session> make_cuda_session(const ModelSpec& spec, const ModelWeights& weights,
                                           WeightKind kind, int device) {
  cuda::Device::of(device);
  const cuda::UseDevice use(device);
  switch (kind) {
    case WeightKind::float32:
      return std::make_unique<CudaSession<float>>(spec, weights, device);
    case WeightKind::float16:
      return std::make_unique<CudaSession<cuda::half>>(spec, weights, device);
    case WeightKind::bfloat16:
      return std::make_unique<CudaSession<cuda::bfloat16>>(spec, weights, device);
  }
  throw Error("these weights have no CUDA engine");
}

}  // namespace decoding
