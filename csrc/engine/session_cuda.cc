// The session on a GPU. A call's inputs go over in one copy and its results come back in one go;
// between them the host only launches captured steps, and looks at one word of its own memory to
// see how far they have come.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "engine/decoder.h"
#include "engine/encoder.h"
#include "engine/faults.h"
#include "engine/results.h"
#include "engine/rules_cuda.h"
#include "engine/score.h"
#include "engine/session.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/resources.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/types.h"
#include "kernels/rows.h"
#include "kernels/select.h"

namespace decoding {

template <>
inline const char* type_name<uint8_t>() {
  return "uint8";
}
template <>
inline const char* type_name<cuda::half>() {
  return "float16";
}
template <>
inline const char* type_name<cuda::bfloat16>() {
  return "bfloat16";
}

namespace {

// Steps that may wait behind the one that runs; what is launched behind a search's end is computed
// in vain.
constexpr int kAhead = 2;
constexpr int kReads = 128;       // sizes of packed passes that are remembered
constexpr int kRowAlignment = 8;  // elements: of each row of logits, for accesses of 16 bytes

// The least of 1, 2, 3, 4, 6, 8, 12, ... that is not below `size`: sizes that steps are captured
// for.
int bucket_of(int size) {
  int power = 1;
  while (power < size) power *= 2;
  return size > 3 && size <= power / 4 * 3 ? power / 4 * 3 : power;
}

// What a GPU needs beside the workspace.
struct CudaBuffers {
  CudaRules rules;
  uint8_t* products;  // [kMatmulWorkspace]
  int32_t* tickets;   // [B * (K + 1) + 1], see select.h
};

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
        seen_(static_cast<volatile StepState*>(seen_memory_.data())) {}

  ~CudaSession() override {
    try {
      ended_.wait();  // what is launched uses what goes now
    } catch (const Error&) {
      // A lost GPU runs nothing.
    }
  }

  Arena plan(const Limits& limits) const override {
    Arena arena;
    CudaBuffers buffers;
    workspace(arena, limits, buffers);
    return arena;
  }

  void bind(const Limits& limits, void* pool, size_t bytes) override {
    const cuda::UseDevice use(device_.id);
    started_ = false;
    ended_.wait();
    graphs_.clear();
    reads_.clear();
    Arena measured;
    Inputs(measured, spec_, limits);
    staging_ = cuda::PinnedMemory(measured.bytes());
    Arena staging(staging_.data(), staging_.bytes());
    host_inputs_ = Inputs(staging, spec_, limits);
    const size_t trellis = sizeof(int32_t) * limits.target * limits.rows();
    host_tokens_ = cuda::PinnedMemory(trellis);
    host_parents_ = cuda::PinnedMemory(trellis);
    host_finished_ = cuda::PinnedMemory(sizeof(Hypothesis) * limits.rows());
    Arena arena(pool, bytes);
    w_ = workspace(arena, limits, buffers_);
    rules_memory_ = buffers_.rules.staging();
    matmul_.workspace(buffers_.products);
    limits_ = limits;
  }

  void start(const Batch& batch, const Rules& rules, const Search& search) override {
    const cuda::UseDevice use(device_.id);
    started_ = false;
    ended_.wait();  // steps of a call that was given up still write
    rules_ = rules;
    search_ = search;
    sentences_ = batch.sentences;
    beams_ = batch.beams;
    stream_ = static_cast<cudaStream_t>(batch.stream);
    CHECK(w_.logits != nullptr, "start() needs a bind() before it");
    check_fits(batch, rules_, search_, spec_, limits_);
    send_inputs(batch);
    read_sentences(batch);
    ended_.record(stream_);
    launched_ = 0;
    started_ = true;
  }

  bool step(int steps) override {
    const cuda::UseDevice use(device_.id);
    CHECK(started_, "step() needs a start() before it");
    for (int i = 0; i < steps && launched_ < rules_.max_new; ++i) {
      const int live_count = wait_for(launched_ - kAhead);
      if (live_count == 0) break;
      captured_step(live_count).launch(stream_);
      ++launched_;
    }
    ended_.record(stream_);
    return launched_ == rules_.max_new || seen_->live_count == 0;
  }

  void take(const Results& results) const override {
    const cuda::UseDevice use(device_.id);
    CHECK(started_, "take() needs a start() before it");
    fetch(host_tokens_, w_.tokens, sizeof(int32_t) * launched_ * limits_.rows());
    fetch(host_parents_, w_.parents, sizeof(int32_t) * launched_ * limits_.rows());
    fetch(host_finished_, w_.finished, sizeof(Hypothesis) * sentences_ * beams_);
    fetch(host_inputs_.length, w_.inputs.length, sizeof(int32_t) * sentences_ * beams_);
    fetch(host_inputs_.fault, w_.inputs.fault, sizeof(int32_t) * sentences_);
    fetch(seen_memory_, w_.inputs.state, sizeof(StepState));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    check_faults(host_inputs_.fault, host_inputs_.items, sentences_);
    const int taken = seen_->number - 1;
    CHECK(results.width >= taken, "results need ", taken, " columns, got ", results.width);
    const Trellis trellis{static_cast<const int32_t*>(host_tokens_.data()),
                          static_cast<const int32_t*>(host_parents_.data()), limits_.rows()};
    if (std::holds_alternative<Beam>(search_)) {
      take_finished(trellis, static_cast<const Hypothesis*>(host_finished_.data()), sentences_,
                    beams_, results);
    } else {
      take_rows(trellis, host_inputs_.length, taken, sentences_, beams_, results);
    }
  }

  void score(const Labelled& labelled, float* logprobs) override {
    const cuda::UseDevice use(device_.id);
    started_ = false;
    ended_.wait();  // steps of a call that was given up still write
    stream_ = static_cast<cudaStream_t>(labelled.source.stream);
    CHECK(w_.logits != nullptr, "score() needs a bind() before it");
    check_labelled(labelled, spec_, limits_);
    fill_labelled(host_inputs_, labelled, spec_);
    copy_inputs();
    if (rehearsed_labels_.insert(bucket_of(labelled.tokens())).second) {
      auto rehearsal = stream(true);
      read_labels(rehearsal, labelled);
    }
    auto stream = this->stream();
    read_labels(stream, labelled);
    fetch(logprobs, w_.logprobs, sizeof(float) * labelled.tokens());
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  int graph_nodes() const override { return nodes_; }
  std::string tuned() const override { return matmul_.report(); }

 private:
  // sentences, beams, tokens, most tokens of a sentence, prefix
  using ReadKey = std::tuple<int, int, int, int, int>;
  // sentences, beams, kind of search, candidates
  using StepKey = std::tuple<int, int, SearchKind, int>;

  Workspace<T> workspace(Arena& arena, const Limits& limits, CudaBuffers& buffers) const {
    const StackSpec& d = spec_.decoder;
    return Workspace<T>(
        arena, spec_, limits, kRowAlignment,
        [&](auto&) {
          buffers.rules = CudaRules(arena, d.vocab);
          buffers.products = arena.take<uint8_t>("products", {int64_t{cuda::kMatmulWorkspace}});
          buffers.tickets = arena.take<int32_t>("select_tickets",
                                                {int64_t{limits.batch} * (limits.beams + 1) + 1});
        },
        [&](auto& w) {
          w.tickets = arena.take<int32_t>("attention_tickets", {kTickets});
          w.partial = arena.take<float>("attention_partial",
                                        {partial_size(d.heads, d.head_dim, limits.beams)});
        });
  }

  cuda::Stream stream(bool rehearsal = false) { return {stream_, device_, matmul_, rehearsal}; }

  void fetch(void* to, const void* from, size_t bytes) const {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
  }
  void fetch(const cuda::PinnedMemory& to, const void* from, size_t bytes) const {
    fetch(to.data(), from, bytes);
  }

  void copy_inputs() {
    CUDA_CHECK(cudaMemcpyAsync(w_.inputs.source_ids, staging_.data(), staging_.bytes(),
                               cudaMemcpyHostToDevice, stream_));
  }

  void send_inputs(const Batch& batch) {
    fill_inputs(host_inputs_, batch, spec_, limits_);
    copy_inputs();
    buffers_.rules.send(rules_, search_, rules_memory_, stream_);
    seen_->number = 1;
    seen_->live_count = sentences_;
  }

  // Sizes that come again are worth a graph: launching kernels one by one takes the host longer
  // than a GPU needs to read a few sentences.
  void read_sentences(const Batch& batch) {
    const PackedTokens tokens =
        spec_.encoder ? source_tokens(w_.inputs, batch) : prompt_tokens(w_.inputs, batch);
    const int prefix = prefix_of(batch, spec_);
    rehearse(tokens, prefix);
    if (reads_.size() > kReads) reads_.clear();
    const ReadKey key{sentences_, beams_, tokens.count, tokens.longest, prefix};
    const auto [found, is_new] = reads_.try_emplace(key);
    std::optional<cuda::Graph>& graph = found->second;
    if (is_new) {
      auto stream = this->stream();
      return read(stream, tokens, prefix);
    }
    if (!graph) {
      graph = cuda::Graph::capture([&](cudaStream_t recorder) {
        cuda::Stream recording(recorder, device_, matmul_);
        read(recording, tokens, prefix);
      });
    }
    graph->launch(stream_);
  }

  void read(cuda::Stream& stream, const PackedTokens& tokens, int prefix) {
    const int64_t tickets = int64_t{limits_.batch} * (limits_.beams + 1) + 1;
    reset_slots(stream, {.slots = w_.slots,
                         .rows = limits_.rows(),
                         .beams = beams_,
                         .history = w_.history,
                         .prefix = prefix});
    clear(stream, buffers_.tickets, tickets);
    if (tokens.count > 0) packed(stream, tokens);
    clear(stream, w_.tickets, kTickets);  // where the packed pass had other things
    read_prefix(stream, spec_, weights_, w_, limits_, sentences_, prefix);
  }

  void packed(cuda::Stream& stream, const PackedTokens& tokens) {
    if (spec_.encoder) {
      encode(stream, spec_, weights_, w_, tokens, limits_.batch * limits_.source);
    } else {
      read_prompt(stream, spec_, weights_, w_, tokens, limits_.batch * (limits_.prompt - 1));
    }
  }

  void read_labels(cuda::Stream& stream, const Labelled& labelled) {
    if (spec_.encoder) packed(stream, source_tokens(w_.inputs, labelled.source));
    score_labels(stream, spec_, weights_, w_, limits_, forced_tokens(w_.inputs, labelled));
  }

  void clear(cuda::Stream& stream, int32_t* numbers, int64_t count) {
    CUDA_CHECK(cudaMemsetAsync(numbers, 0, sizeof(int32_t) * count, stream.handle()));
  }

  // Finds out how to compute the products of the packed pass, once for each size of it.
  void rehearse(const PackedTokens& tokens, int prefix) {
    if (tokens.count == 0 || !rehearsed_.insert({bucket_of(tokens.count), prefix > 0}).second) {
      return;
    }
    auto stream = this->stream(true);
    packed(stream, tokens);
    read_prefix(stream, spec_, weights_, w_, limits_, sentences_, std::min(prefix, 1));
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

  // A step for at least that many sentences. A smaller size is taken once it halves the work.
  const cuda::Graph& captured_step(int live_count) {
    const bool shrinks = launched_ > 0 && 2 * live_count <= captured_for_;
    if (launched_ == 0 || shrinks) {
      captured_for_ = std::min(bucket_of(live_count), limits_.batch);
    }
    const int m = candidates();
    const StepKey key{captured_for_, beams_, kind_of(search_), m};
    auto found = graphs_.find(key);
    if (found == graphs_.end()) {
      CUDA_CHECK(cudaStreamSynchronize(stream_));  // a rehearsal writes where steps do
      auto rehearsal = stream(true);
      one_step(rehearsal, captured_for_);
      found = graphs_
                  .emplace(key, cuda::Graph::capture([&](cudaStream_t recorder) {
                             cuda::Stream recording(recorder, device_, matmul_);
                             one_step(recording, captured_for_);
                           }))
                  .first;
    }
    nodes_ = found->second.nodes();
    return found->second;
  }

  int candidates() const {
    return std::holds_alternative<Beam>(search_) ? beam_candidates(rules_, beams_) : 1;
  }

  void one_step(cuda::Stream& stream, int sentences) {
    const StepRows rows{.now = w_.inputs.state,
                        .ids = w_.inputs.ids,
                        .at = w_.inputs.at,
                        .live = w_.inputs.live,
                        .slot_live = w_.inputs.live,
                        .sentences = sentences,
                        .beams = beams_};
    const Norm due = decoder_layers(stream, spec_, weights_, w_, limits_, rows);
    output_logits(stream, spec_, weights_, due, w_, rows.total());
    select<T>(stream, {.kind = kind_of(search_),
                       .logits = w_.logits,
                       .rules = buffers_.rules.rules(),
                       .eos = buffers_.rules.eos(),
                       .banned = buffers_.rules.banned(),
                       .forced_first = buffers_.rules.forced_first(),
                       .forced_last = buffers_.rules.forced_last(),
                       .first = w_.inputs.first,
                       .items = w_.inputs.items,
                       .now = w_.inputs.state,
                       .seen = static_cast<StepState*>(seen_memory_.data()),
                       .live = w_.inputs.live,
                       .sums = w_.inputs.sums,
                       .tokens = w_.tokens,
                       .parents = w_.parents,
                       .slots = w_.slots,
                       .length = w_.inputs.length,
                       .finished = w_.finished,
                       .finished_count = w_.inputs.finished_count,
                       .done = w_.inputs.done,
                       .fault = w_.inputs.fault,
                       .ids = w_.inputs.ids,
                       .at = w_.inputs.at,
                       .random_row = w_.inputs.random_row,
                       .group_max = w_.group_max,
                       .group_sum = w_.group_sum,
                       .lse = w_.lse,
                       .best = w_.best,
                       .tickets = buffers_.tickets,
                       .sentences = sentences,
                       .beams = beams_,
                       .m = candidates(),
                       .vocab = spec_.decoder.vocab,
                       .stride = w_.logits_stride,
                       .total_slots = limits_.rows(),
                       .history = w_.history});
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
  CudaBuffers buffers_{};
  cuda::PinnedMemory staging_, rules_memory_, host_tokens_, host_parents_, host_finished_;
  Inputs host_inputs_{};
  std::map<ReadKey, std::optional<cuda::Graph>> reads_;
  std::map<StepKey, cuda::Graph> graphs_;
  std::set<std::pair<int, bool>> rehearsed_;
  std::set<int> rehearsed_labels_;
  Rules rules_{};
  Search search_;
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
