// How a GPU reads a call's sentences, all that stands before the first step: the packed pass, and
// an encoder-decoder's prompt. Sizes that come again are worth a graph: launching kernels one by
// one takes the host longer than a GPU needs to read a few sentences.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "engine/cuda/split_scratch.h"
#include "engine/model/decoder.h"
#include "engine/model/encoder.h"
#include "engine/model/score.h"
#include "kernels/cuda/resources.h"
#include "kernels/cuda/split_stream.h"
#include "kernels/linear/cuda/cublaslt/matmul.h"
#include "kernels/search/update.h"

namespace decoding {

constexpr int kRowAlignment = 8;  // elements: of each row of logits, for accesses of 16 bytes

// The least of 1, 2, 3, 4, 6, 8, 12, ... that is not below `size`.
inline int bucket_of(int size) {
  int power = 1;
  while (power < size) power *= 2;
  return size > 3 && size <= power / 4 * 3 ? power / 4 * 3 : power;
}

// Counters of the blocks that arrive, see kernels/search/select.h.
inline int64_t select_arrivals(const Limits& limits) {
  return int64_t{limits.batch} * (limits.beams + 1) + 1;
}

// What it is made from must outlive it.
template <typename T, typename C>
class CudaReader {
 public:
  // collective: null where the model is whole.
  CudaReader(const ModelSpec& spec, const ModelWeights& weights, const cuda::Device& device,
             cuda::Matmul& matmul, cuda::Collective* collective)
      : spec_(spec), weights_(weights), device_(device), matmul_(matmul), collective_(collective) {}

  void bind(const Workspace<T>& w, const Cache<C>& cache, int32_t* arrivals, const Limits& limits) {
    graphs_.clear();
    w_ = w;
    cache_ = cache;
    arrivals_ = arrivals;
    limits_ = limits;
  }

  // The inputs have been sent. beams: of each sentence.
  void read(const Batch& batch, int beams, cudaStream_t stream) {
    const Sentences sentences = {
        spec_.encoder ? source_tokens(w_.inputs.source, batch) : prompt_tokens(w_.inputs, batch),
        batch.sentences, beams, prefix_of(batch, spec_)};
    warm_up(sentences, stream);
    if (graphs_.size() > kSizes) graphs_.clear();
    const auto [found, is_new] = graphs_.try_emplace(sentences.size());
    if (is_new) return read(sentences, stream);
    std::optional<cuda::Graph>& graph = found->second;
    if (!graph) {
      graph = cuda::Graph::capture([&](cudaStream_t recorder) { read(sentences, recorder); });
    }
    graph->launch(stream);
  }

  // What score() reads, and what it asks for. The inputs have been sent.
  void score(const Labelled& labelled, cudaStream_t handle) {
    if (warmed_up_labels_.insert(bucket_of(labelled.tokens())).second) {
      cuda::SplitStream warm_up(handle, device_, matmul_, collective_, true);
      score(labelled, warm_up);
    }
    cuda::SplitStream stream(handle, device_, matmul_, collective_);
    score(labelled, stream);
  }

 private:
  static constexpr int kSizes = 128;  // that are remembered

  struct Sentences {
    PackedTokens tokens;
    int count, beams;
    int prefix;  // positions of the prompt that are read one by one

    auto size() const { return std::tuple(count, beams, tokens.count, tokens.longest, prefix); }
  };
  using Size = decltype(std::declval<Sentences>().size());

  void read(const Sentences& sentences, cudaStream_t handle) {
    cuda::SplitStream stream(handle, device_, matmul_, collective_);
    reset_cache_indirection(stream, {.cache_indirection = w_.cache_indirection,
                                     .rows = limits_.rows(),
                                     .beams = sentences.beams,
                                     .history = w_.history,
                                     .prefix = sentences.prefix});
    clear(stream, arrivals_, select_arrivals(limits_));
    // The history is fetched whole, also where sentences ended early.
    clear(stream, w_.tokens, int64_t{limits_.target} * limits_.rows());
    clear(stream, w_.parents, int64_t{limits_.target} * limits_.rows());
    if (sentences.tokens.count > 0) packed(stream, sentences.tokens);
    // Where the packed pass had other things.
    clear(stream, w_.split_counters,
          split_scratch(spec_, limits_, matmul_.deterministic()).histories);
    clear_padding(stream);
    read_prefix(pass(stream), sentences.count, sentences.beams, sentences.prefix);
  }

  void score(const Labelled& labelled, cuda::SplitStream& stream) {
    if (spec_.encoder) packed(stream, source_tokens(w_.inputs.source, labelled.source));
    read_labelled(pass(stream), labelled);
  }

  Pass<cuda::SplitStream, T, C> pass(cuda::SplitStream& stream) const {
    return {stream, spec_, weights_, w_, cache_, limits_};
  }

  void packed(cuda::SplitStream& stream, const PackedTokens& tokens) {
    if (spec_.encoder) {
      encode(pass(stream), tokens);
    } else {
      read_prompt(pass(stream), tokens);
    }
  }

  // Finds out how to compute the products of the pass, once for each bucket of sizes.
  void warm_up(const Sentences& sentences, cudaStream_t handle) {
    const PackedTokens& tokens = sentences.tokens;
    const std::pair about(bucket_of(tokens.count), sentences.prefix > 0);
    if (tokens.count == 0 || !warmed_up_.insert(about).second) return;
    cuda::SplitStream stream(handle, device_, matmul_, collective_, true);
    packed(stream, tokens);
    read_prefix(pass(stream), sentences.count, sentences.beams, std::min(sentences.prefix, 1));
  }

  static void clear(cuda::Stream& stream, int32_t* numbers, int64_t count) {
    CUDA_CHECK(cudaMemsetAsync(numbers, 0, sizeof(int32_t) * count, stream.handle()));
  }

  // Behind each row of logits, which the choice of tokens reads and drops.
  void clear_padding(cuda::Stream& stream) {
    const int vocab = spec_.decoder.vocab, padding = w_.logits_stride - vocab;
    if (padding == 0) return;
    CUDA_CHECK(cudaMemset2DAsync(w_.logits + vocab, sizeof(T) * w_.logits_stride, 0,
                                 sizeof(T) * padding, limits_.rows(), stream.handle()));
  }

  const ModelSpec& spec_;
  const ModelWeights& weights_;
  const cuda::Device& device_;
  cuda::Matmul& matmul_;
  cuda::Collective* const collective_;
  Workspace<T> w_{};
  Cache<C> cache_{};
  int32_t* arrivals_ = nullptr;
  Limits limits_{};
  std::map<Size, std::optional<cuda::Graph>> graphs_;  // none: the size came once
  std::set<std::pair<int, bool>> warmed_up_;
  std::set<int> warmed_up_labels_;
};

}  // namespace decoding
