// How a GPU reads the texts of requests that come and go: parts of sources and prompts between two
// steps, packed, and an encoder-decoder's own prompts. Parts of decoder-only models' prompts are
// padded to one of a few sizes, each with a graph once it has come again: to launch kernels one by
// one takes the host longer than a GPU needs for some hundred tokens. Sources, which are read
// whole, come in too many sizes: with graphs 2,048 of them at once took longer.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "engine/cuda/staging.h"
#include "engine/cuda/steps.h"
#include "engine/model/encoder.h"
#include "engine/packed_parts.h"
#include "kernels/cuda/resources.h"

namespace decoding {

// What it is made from must outlive it.
template <typename T, typename C>
class CudaTextReader {
 public:
  // all: the rows of all classes, as sentences of one row.
  CudaTextReader(const ModelSpec& spec, const ModelWeights& weights,
                 const CudaRunnerMemory<T, C>& memory, const Limits& all, CudaStaging& staging)
      : spec_(spec), weights_(weights), memory_(memory), all_(all), staging_(staging) {}

  // Other memory is bound.
  void clear() { graphs_.clear(); }

  void read(cuda::SplitStream& stream, std::span<const ReadPart> parts) {
    staging_.renew(stream);
    PackedParts packed(parts, spec_, shared_pages_of(spec_, all_));
    if (!spec_.encoder) packed.pad(padded(packed.size()));
    const PackedTokens tokens =
        packed.place(memory_.w.inputs, spec_,
                     [&](const int32_t* to, const auto& numbers) { staging_.stage(to, numbers); });
    staging_.send(stream);
    if (timed_.insert(timed_size(tokens.count)).second) {
      cuda::SplitStream warm_up = stream.warm_up();
      PackedTokens more = tokens;
      more.count = timed_size(tokens.count);
      read_parts(pass(warm_up), more, packed.whole());
    }
    const auto work = [&](cuda::SplitStream& on) { read_parts(pass(on), tokens, packed.whole()); };
    if (spec_.encoder) return work(stream);
    replay(stream, {packed.size(), packed.whole()}, work);
  }

  // The decoder's prompt but for its last token, of an encoder-decoder, by the first row.
  void read_prefix(cuda::SplitStream& stream, const Admitted& admitted) {
    const int prefix = admitted.request->own_before(spec_.encoder.has_value());
    if (prefix == 0) return;
    const CudaClass<T>& c = memory_.classes[admitted.slot.request_class];
    const std::vector<int32_t>& prompt = admitted.request->prompt;
    const RotaryTables tables = rotary_tables(spec_.decoder);
    const int length = static_cast<int>(prompt.size());
    const Inputs& in = memory_.w.inputs;
    std::vector<int32_t> positions;
    std::vector<ActiveSentence> active;
    for (int i = 0; i < prefix; ++i) {
      positions.push_back(tables.pack(i, length));
      active.push_back({admitted.slot.sentence, 0, i});
    }
    const StepState state{0, 1};
    staging_.renew(stream);
    staging_.stage(in.prompt_ids, prompt);
    staging_.stage(in.prompt_positions, positions);
    staging_.stage(in.prompt_active, active);
    staging_.stage(memory_.w.all_state, &state, 1);
    staging_.send(stream);
    Workspace<T> w = c.w;
    w.step = memory_.w.step;
    w.partial = memory_.w.partial;
    w.split_counters = memory_.w.split_counters;
    const auto pass = [&](cuda::SplitStream& on) {
      return Pass<cuda::SplitStream, T, C>{on, spec_, weights_, w, memory_.cache, c.limits};
    };
    const auto row = [&](int i) {
      return StepRows{.state = memory_.w.all_state,
                      .ids = in.prompt_ids + i,
                      .positions = in.prompt_positions + i,
                      .active = in.prompt_active + i,
                      .sentences = 1,
                      .beams = 1,
                      .slots = c.limits.beams,
                      .first_input = c.first_input()};
    };
    if (!std::exchange(prefix_timed_, true)) {
      cuda::SplitStream warm_up = stream.warm_up();
      decoder_layers(pass(warm_up), row(0));
    }
    for (int i = 0; i < prefix; ++i) decoder_layers(pass(stream), row(i));
  }

 private:
  static constexpr size_t kSizes = 128;     // that are remembered
  using Key = std::pair<PackedSize, bool>;  // the flag: whether all texts are whole

  Pass<cuda::SplitStream, T, C> pass(cuda::SplitStream& stream) const {
    return {stream, spec_, weights_, memory_.w, memory_.cache, all_};
  }

  template <typename Work>
  void replay(cuda::SplitStream& stream, const Key& key, Work&& work) {
    if (graphs_.size() > kSizes) graphs_.clear();
    const auto [found, is_new] = graphs_.try_emplace(key);
    if (is_new) return work(stream);
    std::optional<cuda::Graph>& graph = found->second;
    if (!graph) {
      graph = cuda::Graph::capture([&](cudaStream_t handle) {
        cuda::SplitStream recorder(handle, stream.device(), stream.matmul(), stream.collective());
        work(recorder);
      });
    }
    graph->launch(stream.handle());
  }

  // At most an eighth more tokens. Blocks of texts that there are not end at once: as many as twice
  // the texts, and a quarter more of their length, cost next to nothing.
  PackedSize padded(const PackedSize& size) const {
    const auto round = [](int of, int step, int most) {  // to few sizes, up to `most` of a step
      while (most * step < of) step *= 2;
      return (of + step - 1) / step * step;
    };
    return {.texts = std::min(round(size.texts, 1, 1), all_.batch),
            .tokens = std::min(round(size.tokens, 16, 16), all_.tokens),
            .longest = round(size.longest, 64, 8)};
  }

  // For how many tokens the products of a reading are timed: few sizes, as readings have many.
  int timed_size(int tokens) const {
    int size = 16;
    while (size < tokens) size *= 4;
    return std::min(size, all_.tokens);
  }

  const ModelSpec& spec_;
  const ModelWeights& weights_;
  const CudaRunnerMemory<T, C>& memory_;
  const Limits& all_;
  CudaStaging& staging_;
  std::map<Key, std::optional<cuda::Graph>> graphs_;  // none: the size came once
  std::set<int> timed_;        // sizes of readings whose products have been timed
  bool prefix_timed_ = false;  // likewise
};

}  // namespace decoding
