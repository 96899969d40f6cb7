// A call's rules on their way to the GPU, where captured steps find them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/arena.h"
#include "engine/model/workspace.h"
#include "engine/search/request.h"
#include "kernels/cuda/resources.h"
#include "kernels/search/select.h"

namespace decoding {

template <>
inline const char* type_name<SelectRules>() {
  return "rules";
}
template <>
inline const char* type_name<ProcessRules>() {
  return "rules";
}
template <>
inline const char* type_name<WarpRules>() {
  return "rules";
}
template <>
inline const char* type_name<BeamRules>() {
  return "rules";
}
template <>
inline const char* type_name<Ends>() {
  return "rules";
}

inline SearchKind kind_of(const Search& search) {
  if (beam_of(search) != nullptr) return SearchKind::beam;
  return std::holds_alternative<Sampling>(search) ? SearchKind::sampling : SearchKind::greedy;
}

// What has been done to processed scores is not done again.
inline SelectRules select_rules(const Request& request, const int32_t* stop_table) {
  const Rules& rules = request.rules;
  const bool processed = request.processing.has_value();
  const auto count = [](const std::vector<int32_t>& ids) { return static_cast<int>(ids.size()); };
  const Beam* beam = beam_of(request.search);
  return {.min_new = processed ? 0 : rules.min_new,
          .pad = rules.pad,
          .eos_count = count(rules.eos),
          .banned_count = processed ? 0 : count(rules.banned),
          .forced_last_count = processed ? 0 : count(rules.forced_last),
          .renormalize = processed ? 0 : rules.renormalize,
          // A contrastive search asks for the log-sum-exp of what it chooses from.
          .processed = processed && !is_contrastive(request.search),
          .stop_table = stop_table,
          .length_penalty = beam != nullptr ? beam->length_penalty : 0.0,
          .early_stopping = beam != nullptr ? beam->early_stopping : EarlyStopping::no};
}

class CudaRules {
 public:
  CudaRules() = default;
  // lists: ids of end, banned and forced tokens; each may hold the vocabulary.
  CudaRules(Arena& arena, int vocab) : vocab_(vocab) {
    const char* names[kLists] = {"eos", "banned", "forced_last"};
    rules_ = arena.take<SelectRules>("rules", {1});
    process_ = arena.take<ProcessRules>("process_rules", {1});
    warp_ = arena.take<WarpRules>("warp_rules", {1});
    beam_ = arena.take<BeamRules>("beam_rules", {1});
    ends_ = arena.take<Ends>("ends", {1});
    for (int i = 0; i < kLists; ++i) lists_[i] = arena.take<int32_t>(names[i], {vocab});
  }

  // Memory to send from, which must stay until the copies have ended.
  cuda::PinnedMemory staging(const Limits& limits) const {
    return cuda::PinnedMemory(sizeof(SelectRules) + sizeof(ProcessRules) + sizeof(WarpRules) +
                              sizeof(BeamRules) + sizeof(Ends) + sizeof(float) +
                              sizeof(int32_t) * (kLists * vocab_ + limits.controls));
  }

  template <typename T>
  void send(const Request& request, const int32_t* stop_table, const Workspace<T>& w, int beams,
            const cuda::PinnedMemory& staging, cudaStream_t stream) const {
    auto* from = static_cast<std::byte*>(staging.data());
    const auto put = [&](auto* to, const auto* items, size_t count) {
      std::memcpy(from, items, count * sizeof(*items));
      copy(to, from, count * sizeof(*items), stream);
      from += count * sizeof(*items);
    };
    const SelectRules rules = select_rules(request, stop_table);
    put(rules_, &rules, 1);
    const BeamRules beam = beam_rules(request, beams);
    put(beam_, &beam, 1);
    const Ends ends{.eos = eos(),
                    .stop_now = w.inputs.stop_now,
                    .eos_count = rules.eos_count,
                    .stop_table = stop_table,
                    .stop_first = w.inputs.stop_first,
                    .stop_states = w.stop_states};
    put(ends_, &ends, 1);
    if (const auto* contrastive = std::get_if<Contrastive>(&request.search)) {
      put(w.alpha, &contrastive->alpha, 1);
    }
    if (request.processing) {
      put(process_, &request.processing->rules, 1);
      if (request.processing->warp) put(warp_, &*request.processing->warp, 1);
    }
    int32_t* const* to = lists_;
    for (const auto* list :
         {&request.rules.eos, &request.rules.banned, &request.rules.forced_last}) {
      put(*to++, list->data(), list->size());
    }
    if (request.processing) {
      put(w.words, request.processing->words.data(), request.processing->words.size());
    }
  }

  const ProcessRules* process() const { return process_; }
  const WarpRules* warp() const { return warp_; }
  const SelectRules* rules() const { return rules_; }
  const BeamRules* beam() const { return beam_; }
  const Ends* ends() const { return ends_; }
  const int32_t* eos() const { return lists_[0]; }
  const int32_t* banned() const { return lists_[1]; }
  const int32_t* forced_last() const { return lists_[2]; }

 private:
  static constexpr int kLists = 3;

  static void copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    if (bytes == 0) return;
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
  }

  int vocab_ = 0;
  SelectRules* rules_ = nullptr;     // [1]
  ProcessRules* process_ = nullptr;  // [1]
  WarpRules* warp_ = nullptr;        // [1]
  BeamRules* beam_ = nullptr;        // [1]
  Ends* ends_ = nullptr;             // [1]
  int32_t* lists_[kLists] = {};      // [V] each
};

}  // namespace decoding
