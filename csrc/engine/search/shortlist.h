// A call's shortlist (kernels/linear/shortlist.h) in the memory of the plan.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/arena.h"
#include "core/spec.h"
#include "engine/model/weights.h"
#include "engine/model/workspace.h"
#include "engine/search/batch.h"
#include "kernels/linear/shortlist.h"

namespace decoding {

// Room for `limits.shortlist` tokens.
struct ShortlistMemory {
  int32_t* tokens = nullptr;   // [shortlist]
  uint32_t* panels = nullptr;  // see GatherOutputsParams
  float* scale = nullptr;      // [shortlist]
  int32_t* sums = nullptr;     // [shortlist]
  float* bias = nullptr;       // [shortlist]
  float* logits = nullptr;     // [R, shortlist], where something asks for all logits

  ShortlistMemory() = default;
  ShortlistMemory(Arena& a, const Limits& limits, const LinearWeight& output) {
    if (limits.shortlist == 0) return;
    const int64_t most = limits.shortlist, group = panel_group(output.kind);
    tokens = a.take<int32_t>("shortlist", {most});
    panels = a.take<uint32_t>("shortlist.panels", {(most + kPanel - 1) / kPanel,
                                                   (output.inputs + group - 1) / group, kPanel});
    scale = a.take<float>("shortlist.scale", {output.scale != nullptr ? most : 0});
    sums = a.take<int32_t>("shortlist.sums", {output.sums != nullptr ? most : 0});
    bias = a.take<float>("shortlist.bias", {most});
    logits = a.take<float>("shortlist.logits", {limits.rows(), most});
  }
};

// The outputs that a call's steps choose from: all, or those of its shortlist.
struct Outputs {
  Linear linear;
  const int32_t* tokens = nullptr;  // [linear.weight.outputs], ascending; null: all of them

  int count() const { return linear.weight.outputs; }

  // Those of `ids` that there are, ascending.
  std::vector<int32_t> find(std::vector<int32_t> ids) const {
    std::sort(ids.begin(), ids.end());
    if (tokens == nullptr) return ids;
    std::vector<int32_t> found;
    for (const int32_t id : ids) {
      const int32_t* at = std::lower_bound(tokens, tokens + count(), id);
      if (at != tokens + count() && *at == id) found.push_back(static_cast<int32_t>(at - tokens));
    }
    return found;
  }
};

// What the batch's shortlist leaves of `all`; its weights are still to be gathered. The batch must
// have been checked (batch.h).
inline Outputs shortlisted(const Linear& all, const Batch& batch, const ShortlistMemory& memory) {
  if (batch.shortlist == nullptr) return {all};
  std::copy_n(batch.shortlist, batch.shortlisted, memory.tokens);
  Outputs part = {all, memory.tokens};
  LinearWeight& weight = part.linear.weight;
  weight.outputs = batch.shortlisted;
  weight.data = memory.panels;
  if (weight.scale != nullptr) weight.scale = memory.scale;
  if (weight.sums != nullptr) weight.sums = memory.sums;
  if (all.bias != nullptr) part.linear.bias = memory.bias;
  return part;
}

template <typename Stream>
void gather_shortlist(Stream& stream, const Linear& all, const Outputs& part,
                      const ShortlistMemory& memory) {
  if (part.tokens == nullptr) return;
  gather_outputs(stream, {.weight = all.weight,
                          .bias = all.bias,
                          .tokens = part.tokens,
                          .panels = memory.panels,
                          .scale = memory.scale,
                          .sums = memory.sums,
                          .bias_gathered = memory.bias,
                          .count = part.count()});
}

}  // namespace decoding
