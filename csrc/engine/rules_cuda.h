// A call's rules on their way to the GPU, where captured steps find them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/arena.h"
#include "engine/search.h"
#include "kernels/cuda/resources.h"
#include "kernels/select.h"

namespace decoding {

template <>
inline const char* type_name<SelectRules>() {
  return "rules";
}

inline SearchKind kind_of(const Search& search) {
  if (std::holds_alternative<Beam>(search)) return SearchKind::beam;
  return std::holds_alternative<Sampling>(search) ? SearchKind::sampling : SearchKind::greedy;
}

inline SelectRules select_rules(const Rules& rules, const Search& search) {
  const auto count = [](const std::vector<int32_t>& ids) { return static_cast<int>(ids.size()); };
  SelectRules to{.max_new = rules.max_new,
                 .min_new = rules.min_new,
                 .pad = rules.pad,
                 .eos_count = count(rules.eos),
                 .banned_count = count(rules.banned),
                 .forced_first_count = count(rules.forced_first),
                 .forced_last_count = count(rules.forced_last),
                 .renormalize = rules.renormalize,
                 .seed = 0,
                 .temperature = 1.0f,
                 .top_k = 0,
                 .top_p = 1.0f,
                 .length_penalty = 0.0,
                 .early_stopping = EarlyStopping::no};
  if (const auto* sampling = std::get_if<Sampling>(&search)) {
    to.seed = sampling->seed;
    to.temperature = sampling->temperature;
    to.top_k = sampling->top_k;
    to.top_p = sampling->top_p;
  }
  if (const auto* beam = std::get_if<Beam>(&search)) {
    to.length_penalty = beam->length_penalty;
    to.early_stopping = beam->early_stopping;
  }
  return to;
}

class CudaRules {
 public:
  CudaRules() = default;
  // lists: ids of end, banned, and forced first and last tokens; each may hold the vocabulary.
  CudaRules(Arena& arena, int vocab) : vocab_(vocab) {
    const char* names[kLists] = {"eos", "banned", "forced_first", "forced_last"};
    rules_ = arena.take<SelectRules>("rules", {1});
    for (int i = 0; i < kLists; ++i) lists_[i] = arena.take<int32_t>(names[i], {vocab});
  }

  // Memory to send from, which must stay until the copies have ended.
  cuda::PinnedMemory staging() const {
    return cuda::PinnedMemory(sizeof(SelectRules) + kLists * sizeof(int32_t) * vocab_);
  }

  void send(const Rules& rules, const Search& search, const cuda::PinnedMemory& staging,
            cudaStream_t stream) const {
    auto* from = static_cast<SelectRules*>(staging.data());
    *from = select_rules(rules, search);
    copy(rules_, from, sizeof(SelectRules), stream);
    auto* ids = reinterpret_cast<int32_t*>(from + 1);
    int32_t* const* to = lists_;
    for (const auto* list : {&rules.eos, &rules.banned, &rules.forced_first, &rules.forced_last}) {
      std::copy(list->begin(), list->end(), ids);
      copy(*to++, ids, sizeof(int32_t) * list->size(), stream);
      ids += vocab_;
    }
  }

  const SelectRules* rules() const { return rules_; }
  const int32_t* eos() const { return lists_[0]; }
  const int32_t* banned() const { return lists_[1]; }
  const int32_t* forced_first() const { return lists_[2]; }
  const int32_t* forced_last() const { return lists_[3]; }

 private:
  static constexpr int kLists = 4;

  static void copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    if (bytes == 0) return;
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
  }

  int vocab_ = 0;
  SelectRules* rules_ = nullptr;  // [1]
  int32_t* lists_[kLists] = {};   // [V] each
};

}  // namespace decoding
