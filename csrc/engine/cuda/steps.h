// Steps of classes of requests. The rows of all classes lie one after the other; the choice of
// tokens, which each class makes alone, runs beside that of the others. Each mixture
// of classes and their sizes has a graph, once it has come a few times: most pass by while requests
// come and go, and to capture one takes as long as twenty steps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engine/cuda/inputs.h"
#include "engine/cuda/runner_memory.h"
#include "engine/cuda/select.h"
#include "kernels/cuda/resources.h"
#include "kernels/cuda/split_stream.h"
#include "kernels/linear/cuda/cublaslt/matmul.h"
#include "kernels/linear/cuda/tune_in_place.h"

namespace decoding {

// What it is made from must outlive it.
template <typename T, typename C>
class CudaSteps {
  using Class = CudaClass<T>;

 public:
  // collective: of the ranks that the model is split over; null: it is whole.
  CudaSteps(const ModelSpec& spec, const ModelWeights& weights, const cuda::Device& device,
            cuda::Matmul& matmul, cuda::Collective* collective)
      : spec_(spec), weights_(weights), device_(device), matmul_(matmul), collective_(collective) {}

  // Places the rows of every class with sentences; false: there is none. Wide searches come first,
  // whose attention takes longest.
  bool lay_out(CudaRunnerMemory<T, C>& memory) {
    memory_ = &memory;
    stepping_.clear();
    for (Class& c : memory.classes) {
      if (!c.sentences.empty()) stepping_.push_back(&c);
    }
    std::ranges::sort(stepping_, {},
                      [](Class* c) { return std::pair(-c->limits.beams, c->index()); });
    int64_t first = 0;
    for (Class* c : stepping_) {
      const int sentences = size_for(*c, stepping_.size() > 1);
      c->changed |= sentences != c->captured_for || first != c->first();
      c->captured_for = sentences;
      c->lay_out(memory.w, spec_, first, sentences);
      c->step.scratch = memory.scratch.of_class(c->index(), first, c->w.logits_stride);
      first += c->step.rows();
    }
    CHECK(first <= memory.rows, "a step of ", first, " rows has memory for ", memory.rows);
    return !stepping_.empty();
  }

  // The step of what has been laid out.
  void launch(cudaStream_t handle) {
    cuda::SplitStream stream(handle, device_, matmul_, collective_);
    for (Class* c : stepping_) {  // where rows have moved or come, they are filled in anew
      if (c->changed) fill_rows(stream, c->fill_params());
      c->changed = false;
    }
    find_products(handle);
    Step& step = known_step(handle);
    if (!step.graph && step.launches++ < kUncaptured) return record(one_after_the_other(stream));
    if (!step.graph) {
      step.graph =
          cuda::Graph::capture([&](cudaStream_t recorder) { record(side_by_side(recorder)); });
    }
    step.graph->launch(handle);
  }

  // Other memory is bound. Nothing may be running.
  void clear() { steps_.clear(); }

  // A class is opened for other requests. Nothing may be running.
  void forget(int request_class) {
    std::erase_if(steps_, [&](const auto& step) {
      return std::ranges::any_of(
          step.first, [&](const Place& place) { return place.request_class == request_class; });
    });
  }

 private:
  static constexpr size_t kSteps = 256;  // that are kept
  static constexpr int kUncaptured = 4;  // launches of a step before it is captured
  static constexpr int kFewRows = 64;    // products take as long for less

  // Of a class in a captured step.
  struct Place {
    int request_class, first, sentences;
    auto operator<=>(const Place&) const = default;
  };
  struct Step {
    int launches = 0;  // before it was captured
    std::optional<cuda::Graph> graph;
  };

  // How many sentences the next step is made for: at most twice those that run, which places_of()
  // counts on. A smaller size is taken once it halves the rows, or earlier where there are many,
  // since products take less time then; where several classes step, there are fewer sizes, since
  // each mixture has a graph of its own.
  static int size_for(const Class& c, bool several) {
    const int running = static_cast<int>(c.sentences.size());
    const bool many = c.captured_for * c.limits.beams > kFewRows;
    const int most = many ? bucket_of(running + running / 8) : 2 * running;
    if (running <= c.captured_for && c.captured_for <= most) return c.captured_for;
    int size = bucket_of(running);
    while (several && (size & (size - 1)) != 0) size = bucket_of(size + 1);
    return std::min(size, c.limits.batch);
  }

  int rows() const {
    return static_cast<int>(stepping_.back()->first()) + stepping_.back()->step.rows();
  }

  // The products of as many rows are timed when they first come.
  void find_products(cudaStream_t handle) {
    if (!warmed_up_.insert(rows()).second) return;
    CUDA_CHECK(cudaStreamSynchronize(handle));  // it writes where steps do
    cuda::tune_in_place({handle, device_, matmul_, collective_},
                        [&](const cuda::SplitStream& on) { pass(on); });
  }

  Step& known_step(cudaStream_t handle) {
    key_.clear();
    for (const Class* c : stepping_) {
      key_.push_back({c->index(), static_cast<int>(c->first()), c->captured_for});
    }
    if (steps_.size() >= kSteps && !steps_.contains(key_)) {
      CUDA_CHECK(cudaStreamSynchronize(handle));  // some of them may run
      steps_.clear();
    }
    return steps_[key_];
  }

  // A stream of each class that steps; the first one's is that of what all rows have in common.
  using Streams = std::vector<cuda::SplitStream>;

  Streams one_after_the_other(const cuda::SplitStream& stream) const {
    return Streams(stepping_.size(), stream);
  }

  Streams side_by_side(cudaStream_t first) {
    Streams streams{{first, device_, matmul_, collective_}};
    while (beside_.size() + 1 < stepping_.size()) beside_.emplace_back();
    for (size_t i = 1; i < stepping_.size(); ++i) {
      streams.emplace_back(beside_[i - 1].handle(), device_, matmul_, collective_);
    }
    return streams;
  }

  void pass(cuda::SplitStream stream) const {
    std::vector<StepPart<cuda::SplitStream, T, C>> parts;
    parts.reserve(stepping_.size());
    for (const Class* c : stepping_) {
      parts.push_back({{stream, spec_, weights_, c->w, memory_->cache, c->limits}, c->rows()});
    }
    const Norm norm = decoder_layers(StepParts<cuda::SplitStream, T, C>(parts));
    output_logits(parts.front().pass, norm, rows());
  }

  void record(Streams streams) const {
    pass(streams.front());
    for (const cuda::SplitStream& stream : streams) order(streams.front(), stream);
    for (size_t i = 0; i < stepping_.size(); ++i) choose(streams[i], *stepping_[i]);
    for (const cuda::SplitStream& stream : streams) order(stream, streams.front());
  }

  void choose(cuda::Stream& stream, const Class& c) const {
    if (c.step.key.processed) process_scores(stream, c.w, c.step, kAllStages);
    select(stream, c.w, c.step);
    if (c.step.key.part == SelectPart::candidates) update(stream, c.w, c.step, nullptr);
    report_sentences(stream, c.report);
  }

  const ModelSpec& spec_;
  const ModelWeights& weights_;
  const cuda::Device& device_;
  cuda::Matmul& matmul_;
  cuda::Collective* const collective_;
  CudaRunnerMemory<T, C>* memory_ = nullptr;
  std::map<std::vector<Place>, Step> steps_;
  std::vector<Class*> stepping_;         // in the order of their rows
  std::vector<Place> key_;               // of the present step
  std::set<int> warmed_up_;              // rows of steps whose products have been timed
  std::vector<cuda::OwnStream> beside_;  // for classes but the first, while a step is captured
};

}  // namespace decoding
