// detect_overflow: the tensors that a model's blocks leave are looked at, for numbers that are not
// finite, and for how large the others become.
//
// What is found has memory of its own beside the pool. A request's first tensor that was not finite
// is found twice: where its source or prompt is read, at each token's cell of the cache, so that
// whoever finds the keys there again finds that too; and in its steps, by its sentence.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/spec.h"
#include "engine/model/inputs.h"
#include "kernels/rows/overflow.h"

namespace decoding {

// The tensors of a layer, in the order in which a pass makes them. The embeddings are the first
// layer's, a stack's output is the last one's. x is the residual stream behind a block.
enum class Site {
  embeddings,        // x
  self_projections,  // queries, keys and values, or what a convolution reads
  self_output,       // x
  cross_keys,        // and values, of the source
  cross_queries,
  cross_output,  // x
  feed_forward_inner,
  feed_forward_output,  // x
  output                // of the encoder, behind its last norm
};
constexpr int kSites = 9;

constexpr const char* kLogits = "logits";  // where everything before them was finite

// What one tensor had, of all rows so far.
struct TensorOverflow {
  std::string name;
  float largest;       // of the finite |x|
  int32_t not_finite;  // rows that held NaN or infinity
};

// Where passes write what they find; without counts they do not look.
struct OverflowView {
  OverflowCount* counts = nullptr;  // [layers of both stacks, kSites]
  int32_t* cells = nullptr;         // [pages * kPageSize]
  int32_t* sentences = nullptr;     // [B]; while labels are scored [B * labels], of each token
  int encoder_layers = 0;

  // The number of a tensor: 1 + its place among the counts.
  int number(bool is_encoder, int layer, Site site) const {
    return 1 + ((is_encoder ? 0 : encoder_layers) + layer) * kSites + static_cast<int>(site);
  }
};

// Looks at one tensor of the rows that `params` names, if at any.
template <typename T, typename Stream>
void look(Stream& stream, const OverflowView& view, int tensor, OverflowParams<T> params) {
  if (view.counts == nullptr) return;
  params.count = view.counts + tensor - 1;
  params.tensor = tensor;
  detect_overflow<T>(stream, params);
}

// The memory, and what it says. Memory: made for a number of bytes, which data() points to and
// passes write to; none: nothing is checked.
template <typename Memory>
class OverflowMemory {
 public:
  OverflowMemory() = default;
  // encoder, decoder: layers.
  OverflowMemory(int encoder, int decoder)
      : encoder_(encoder),
        layers_(encoder + decoder),
        counts_(zeros(sizeof(OverflowCount) * kSites * layers_)) {}
  explicit OverflowMemory(const ModelSpec& spec)
      : OverflowMemory(spec.encoder ? spec.encoder->layers : 0, spec.decoder.layers) {}

  bool is_on() const { return layers_ > 0; }

  // For other limits. cells: of the cache. Nothing may be running.
  void bind(int64_t cells, int64_t sentences) {
    if (!is_on()) return;
    cells_ = cells;
    first_ = zeros(sizeof(int32_t) * (cells + sentences));
  }

  // sentence: from which on sentences are counted.
  OverflowView view(int64_t sentence = 0) const {
    if (!is_on()) return {};
    return {counts(), firsts(), firsts() + cells_ + sentence, encoder_};
  }

  // Nothing has been found of these sentences in steps.
  void forget(int64_t sentence, int64_t count) {
    if (is_on()) std::fill_n(firsts() + cells_ + sentence, count, 0);
  }

  // The first tensor that was not finite; "" where none is checked. pages, shared: a request's
  // shared ones, and the positions in them. sentences: those in which its steps were found, from
  // `first`.
  std::string first(std::span<const int32_t> pages, int shared, int64_t first,
                    int64_t sentences = 1) const {
    if (!is_on()) return "";
    int32_t found = 0;
    const auto take = [&](int32_t tensor) {
      if (tensor != 0 && (found == 0 || tensor < found)) found = tensor;
    };
    for (int i = 0; i < shared; ++i) {
      take(firsts()[int64_t{pages[i / kPageSize]} * kPageSize + i % kPageSize]);
    }
    if (found == 0) {
      for (int64_t i = 0; i < sentences; ++i) take(firsts()[cells_ + first + i]);
    }
    return found != 0 ? name(found) : kLogits;
  }

  // Of the tensors that have been seen, in the order of the model.
  std::vector<TensorOverflow> found() const {
    std::vector<TensorOverflow> tensors;
    for (int i = 0; i < kSites * layers_; ++i) {
      OverflowCount& count = counts()[i];  // which a pass may be writing to
      const float largest = std::atomic_ref(count.largest).load(std::memory_order_relaxed);
      const int32_t not_finite = std::atomic_ref(count.not_finite).load(std::memory_order_relaxed);
      if (largest > 0 || not_finite > 0) tensors.push_back({name(i + 1), largest, not_finite});
    }
    return tensors;
  }

 private:
  static void* data(const Memory& memory) {
    return const_cast<void*>(static_cast<const void*>(memory.data()));
  }
  static Memory zeros(size_t bytes) {
    Memory memory(bytes);
    if (bytes > 0) std::memset(data(memory), 0, bytes);
    return memory;
  }
  OverflowCount* counts() const { return static_cast<OverflowCount*>(data(counts_)); }
  int32_t* firsts() const { return static_cast<int32_t*>(data(first_)); }

  std::string name(int32_t tensor) const {
    static constexpr const char* kNames[kSites] = {"embeddings",
                                                   "self-attention projections",
                                                   "self-attention output",
                                                   "cross-attention keys and values",
                                                   "cross-attention queries",
                                                   "cross-attention output",
                                                   "feed-forward inner activations",
                                                   "feed-forward output",
                                                   "output"};
    const int site = (tensor - 1) % kSites, at = (tensor - 1) / kSites;
    const bool is_encoder = at < encoder_;
    const std::string stack = is_encoder ? "encoder" : "decoder", what = kNames[site];
    const auto which = static_cast<Site>(site);
    if (which == Site::embeddings || which == Site::output) return stack + " " + what;
    const int layer = is_encoder ? at : at - encoder_;
    return stack + " layer " + std::to_string(layer) + ", " + what;
  }

  int encoder_ = 0, layers_ = 0;  // of the encoder, of both stacks
  Memory counts_, first_;
  int64_t cells_ = 0;
};

// Sentences of a session: while labels are scored each token has a place of its own.
inline int64_t overflow_sentences(const Limits& limits) {
  return int64_t{limits.batch} * std::max(1, limits.labels);
}

// Of a sentence of a session's search, whose inputs are on the host; with guidance it may be in
// what its unconditional one reads.
template <typename Memory>
std::string first_overflow(const OverflowMemory<Memory>& memory, const Inputs& in, int sentence,
                           bool guided, const ModelSpec& spec, const Limits& limits) {
  const size_t pages = shared_pages_of(spec, limits);
  const auto of = [&](int b) {
    return memory.first({in.shared_pages + b * pages, pages}, in.shared_lengths[b], b);
  };
  const std::string found = of(sentence);
  return guided && found == kLogits ? of(in.unconditional[sentence]) : found;
}

// Of a sentence whose labels have been scored.
template <typename Memory>
std::string first_overflow_of_labels(const OverflowMemory<Memory>& memory, const Inputs& in,
                                     int sentence, const ModelSpec& spec, const Limits& limits) {
  const size_t pages = shared_pages_of(spec, limits);
  const int begin = in.forced_offsets[sentence];
  return memory.first({in.shared_pages + sentence * pages, pages},
                      spec.encoder ? in.shared_lengths[sentence] : 0, begin,
                      in.forced_offsets[sentence + 1] - begin);
}

}  // namespace decoding
