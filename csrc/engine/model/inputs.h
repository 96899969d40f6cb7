// What the host writes before the first step: a call's sentences, and where its search begins. All
// of it lies at the head of the pool, so that a GPU receives it in one copy.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "core/arena.h"
#include "core/spec.h"
#include "engine/model/cache.h"
#include "engine/search/batch.h"
#include "kernels/search/beam.h"
#include "kernels/search/config.h"
#include "kernels/search/step.h"

namespace decoding {

template <>
inline const char* type_name<float>() {
  return "float32";
}
template <>
inline const char* type_name<int32_t>() {
  return "int32";
}

inline StepState* take_state(Arena& a, const char* name) {
  static_assert(sizeof(StepState) == 2 * sizeof(int32_t));
  return reinterpret_cast<StepState*>(a.take<int32_t>(name, {2}));
}
inline ActiveSentence* take_active(Arena& a, const char* name, int64_t sentences) {
  static_assert(sizeof(ActiveSentence) == 3 * sizeof(int32_t));
  return reinterpret_cast<ActiveSentence*>(a.take<int32_t>(name, {sentences, 3}));
}

// What an encoder reads.
struct SourceInputs {
  int32_t* ids;        // [B * S], packed
  int32_t* positions;  // [B * S], positions
  int32_t* offsets;    // [B + 1]

  SourceInputs() = default;
  SourceInputs(Arena& a, int64_t batch, int64_t tokens) {
    ids = a.take<int32_t>("source_ids", {tokens});
    positions = a.take<int32_t>("source_positions", {tokens});
    offsets = a.take<int32_t>("source_offsets", {batch + 1});
  }

  // The batch must have been checked (batch.h).
  void fill(const Batch& batch) const {
    const int tokens = batch.source_offsets[batch.sentences];
    std::copy_n(batch.source_offsets, batch.sentences + 1, offsets);
    std::copy_n(batch.source, tokens, ids);
    std::copy_n(batch.source_positions, tokens, positions);
  }
};

struct Inputs {
  SourceInputs source;
  // The prompts but for their last tokens. Decoder-only: packed. Encoder-decoder: read position by
  // position, [prompt - 1, sentences].
  int32_t* prompt_ids;            // [B * (prompt - 1)], or shared_tokens()
  int32_t* prompt_positions;      // as many
  int32_t* prompt_offsets;        // [B + 1], where packed
  ActiveSentence* prompt_active;  // [prompt - 1, sentences], where read position by position
  int32_t* sentence_ids;          // [B], index of each sentence in the caller's batch
  int32_t* stop_first;            // [B], the stop automaton's state behind each prompt
  int32_t* unconditional;      // [B], with guidance the sentence that follows each, see guidance.h
  int32_t* unconditional_ids;  // [B], what that one reads first
  int32_t* prompt_lengths;  // [B], tokens of each prompt before the one that its first step reads
  int32_t* first_tokens;    // [B], that one, where sentences join one by one (join.h)
  // Pages of the cache: of what each sentence shares, and its own.
  int32_t* shared_pages;    // [B, shared_pages_of()]
  int32_t* shared_lengths;  // [B], positions
  int32_t* shared_cells;    // [shared_tokens()], of the packed ones, see StoreSharedParams
  int32_t* self_pages;      // [B, self_pages_of()]
  int32_t* first_queries;   // [B], where parts of prompts are read, see PagedKeys
  // what is scored
  int32_t *forced_ids, *forced_positions;   // [B * labels], what the decoder reads, and positions
  int32_t* labels;                          // [B * labels], what it should say
  int32_t* forced_offsets;                  // [B + 1]
  ActiveSentence* forced_active = nullptr;  // [B * labels], where their attentions are kept
  // the search
  StepState* state;
  int32_t* stop_now;                       // [B], 1: a sentence's rows end with this step
  ActiveSentence* active;                  // [B]
  int32_t* ids;                            // [R], token that each active row reads
  int32_t* positions;                      // [R], its position
  int32_t* random_row;                     // [R], of each active row
  float* sums;                             // [R]
  int32_t* length;                         // [R], of rows that have ended
  int32_t *finished_count, *done, *fault;  // [B]
  int32_t* group_counts;                   // [R], see diverse.h: one for each group

  Inputs() = default;
  Inputs(Arena& a, const ModelSpec& spec, const Limits& limits) {
    const int64_t batch = limits.batch, rows = limits.rows(), before = limits.prompt - 1;
    const int64_t prompt_tokens = spec.encoder ? batch * before : shared_tokens(spec, limits);
    source = SourceInputs(a, batch, spec.encoder ? shared_tokens(spec, limits) : 0);
    prompt_ids = a.take<int32_t>("prompt_ids", {prompt_tokens});
    prompt_positions = a.take<int32_t>("prompt_positions", {prompt_tokens});
    prompt_offsets = a.take<int32_t>("prompt_offsets", {batch + 1});
    prompt_active = take_active(a, "prompt_active", spec.encoder ? batch * before : 0);
    sentence_ids = a.take<int32_t>("sentence_ids", {batch});
    stop_first = a.take<int32_t>("stop_first", {batch});
    unconditional = a.take<int32_t>("unconditional", {batch});
    unconditional_ids = a.take<int32_t>("unconditional_ids", {batch});
    prompt_lengths = a.take<int32_t>("prompt_lengths", {batch});
    first_tokens = a.take<int32_t>("first_tokens", {batch});
    shared_pages = a.take<int32_t>("shared_pages", {batch, shared_pages_of(spec, limits)});
    shared_lengths = a.take<int32_t>("shared_lengths", {batch});
    shared_cells = a.take<int32_t>("shared_cells", {shared_tokens(spec, limits)});
    self_pages = a.take<int32_t>("self_pages", {batch, self_pages_of(spec, limits)});
    first_queries = a.take<int32_t>("first_queries", {batch});
    forced_ids = a.take<int32_t>("forced_ids", {batch * limits.labels});
    forced_positions = a.take<int32_t>("forced_positions", {batch * limits.labels});
    labels = a.take<int32_t>("labels", {batch * limits.labels});
    forced_offsets = a.take<int32_t>("forced_offsets", {batch + 1});
    if (limits.attentions > 0 && limits.labels > 0) {
      forced_active = take_active(a, "forced_active", batch * limits.labels);
    }
    state = take_state(a, "state");
    stop_now = a.take<int32_t>("stop_now", {batch});
    active = take_active(a, "active", batch);
    ids = a.take<int32_t>("ids", {rows});
    positions = a.take<int32_t>("positions", {rows});
    random_row = a.take<int32_t>("random_row", {rows});
    sums = a.take<float>("sums", {rows});
    length = a.take<int32_t>("length", {rows});
    finished_count = a.take<int32_t>("finished_count", {batch});
    group_counts = a.take<int32_t>("group_counts", {rows});
    done = a.take<int32_t>("done", {batch});
    fault = a.take<int32_t>("fault", {batch});
  }
};

// How many positions of the prompts are read one by one.
inline int prefix_of(const Batch& batch, const ModelSpec& spec) {
  return spec.encoder ? batch.prompt_offsets[1] - 1 : 0;
}

inline void fill_prompts(const Inputs& in, const Batch& batch, const ModelSpec& spec) {
  const int32_t* given = batch.prompt_offsets;
  const RotaryTables tables = rotary_tables(spec.decoder);
  in.prompt_offsets[0] = 0;
  for (int b = 0; b < batch.sentences; ++b) {
    const int read = given[b + 1] - given[b] - 1;  // the last token is the first step's
    in.prompt_offsets[b + 1] = in.prompt_offsets[b] + read;
    for (int i = 0; i < read; ++i) {
      const int to = spec.encoder ? i * batch.sentences + b : in.prompt_offsets[b] + i;
      in.prompt_ids[to] = batch.prompt[given[b] + i];
      in.prompt_positions[to] = tables.pack(i, read + 1);
    }
    in.prompt_lengths[b] = read;
  }
}

// The pages of a sentence follow each other: those of what it shares, then its own. `offsets`
// [sentences + 1] are those of the packed tokens that are shared.
inline void fill_pages(const Inputs& in, const int32_t* offsets, int sentences,
                       const ModelSpec& spec, const Limits& limits) {
  const int shared = shared_pages_of(spec, limits), self = self_pages_of(spec, limits);
  for (int b = 0; b < sentences; ++b) {
    const int first = b * (shared + self);
    std::iota(in.shared_pages + b * shared, in.shared_pages + (b + 1) * shared, first);
    std::iota(in.self_pages + b * self, in.self_pages + (b + 1) * self, first + shared);
    std::iota(in.shared_cells + offsets[b], in.shared_cells + offsets[b + 1], first * kPageSize);
    in.shared_lengths[b] = offsets[b + 1] - offsets[b];
  }
}

// The first step's rows; those after the last, which a captured step may compute, read token 0.
inline void fill_rows(const Inputs& in, const Batch& batch, const Request& request, int prefix,
                      int all_rows) {
  const int beams = request.rows_per_sentence, group = beams / request.groups();
  std::fill_n(in.ids, all_rows, 0);
  std::fill_n(in.positions, all_rows, 0);
  for (int b = 0; b < batch.sentences; ++b) {
    in.active[b] = {b, 1, prefix};
    for (int i = 0; i < prefix; ++i) in.prompt_active[i * batch.sentences + b] = {b, 0, i};
    in.finished_count[b] = in.done[b] = in.fault[b] = 0;
    for (int beam = 0; beam < beams; ++beam) {
      const int row = b * beams + beam;
      in.ids[row] = batch.prompt[batch.prompt_offsets[b + 1] - 1];
      in.positions[row] = in.prompt_lengths[b];
      in.random_row[row] = b < request.sentences() ? request.configs[b].random_first + beam : 0;
      in.sums[row] = beam % group == 0 ? 0.0f : kFillIn;
      in.group_counts[row] = 0;
      in.length[row] = 0;
    }
  }
}

// The unconditional prompts follow those of the request's sentences, in their order.
inline void fill_unconditional(const Inputs& in, const Batch& batch, int searched) {
  for (int b = 0; searched + b < batch.sentences; ++b) {
    in.unconditional[b] = searched + b;
    in.unconditional_ids[b] = batch.prompt[batch.prompt_offsets[searched + b + 1] - 1];
  }
}

// The batch and the request must have been checked (batch.h).
inline void fill_inputs(const Inputs& in, const Batch& batch, const Request& request,
                        const ModelSpec& spec, const Limits& limits) {
  if (spec.encoder) in.source.fill(batch);
  std::copy_n(batch.sentence_ids, batch.sentences, in.sentence_ids);
  for (int b = 0; b < request.sentences(); ++b) in.stop_first[b] = request.stop_first[b];
  fill_prompts(in, batch, spec);
  fill_rows(in, batch, request, prefix_of(batch, spec), limits.rows());
  fill_unconditional(in, batch, request.sentences());
  fill_pages(in, spec.encoder ? batch.source_offsets : in.prompt_offsets, batch.sentences, spec,
             limits);
  std::fill_n(in.stop_now, batch.sentences, 0);
  *in.state = {1, request.sentences()};
}

}  // namespace decoding
