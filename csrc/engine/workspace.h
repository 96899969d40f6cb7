// Every buffer of a session, one line each. The constructor runs twice: on a measuring arena for
// the plan, then on one that binds addresses in the pool.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/arena.h"
#include "core/spec.h"
#include "kernels/beam.h"
#include "kernels/logits.h"
#include "kernels/topk.h"

namespace decoding {

template <>
inline const char* type_name<float>() {
  return "float32";
}
template <>
inline const char* type_name<int32_t>() {
  return "int32";
}
template <>
inline const char* type_name<Candidate>() {
  return "candidate";
}
template <>
inline const char* type_name<Hypothesis>() {
  return "hypothesis";
}

// Scratch of one pass through a stack: x is the residual stream, the others hold what a block
// makes of it.
template <typename T>
struct Activations {
  T* x;         // [rows, H]
  T* h;         // [rows, max(H, N * D)], norms and attention outputs
  T* qkv;       // [rows, 3 * N * D], also the q of cross attention
  T* ffn;       // [rows, F], shares its bytes with qkv
  int32_t* at;  // [rows], positions

  Activations() = default;
  Activations(Arena& a, const std::string& pass, const StackSpec& spec, int64_t rows) {
    const int64_t inner = int64_t{spec.heads} * spec.head_dim;
    x = a.take<T>(pass + ".x", {rows, spec.hidden});
    h = a.take<T>(pass + ".h", {rows, std::max<int64_t>(spec.hidden, inner)});
    at = a.take<int32_t>(pass + ".at", {rows});
    a.reuse([&] { qkv = a.take<T>(pass + ".qkv", {rows, 3 * inner}); });
    a.reuse([&] { ffn = a.take<T>(pass + ".ffn", {rows, spec.ffn}); });
  }
};

template <typename T>
struct Workspace {
  // inputs of a call
  int32_t* source_ids;      // [B * S], packed
  int32_t* source_offsets;  // [B + 1]
  int32_t* prompt_ids;      // [B * prompt], packed
  int32_t* prompt_offsets;  // [B + 1], of all but the last token of each prompt
  int32_t* items;           // [B], index of each sentence in the caller's batch

  // keys and values
  T *cross_k, *cross_v;         // [L, N, B * S, D], once per sentence
  T *prompt_k, *prompt_v;       // [L, N, B * (prompt - 1), D], once per sentence; decoder-only
  T *self_k, *self_v;           // [L, R, N, history, D], written once at (row, position)
  int32_t *slots, *next_slots;  // [R, history], where each row's history lies; swapped by beams
  int history;                  // positions of a row in self_k

  // search
  int32_t* live;              // [B], ids of the sentences that go on
  int32_t* live_count;        // [1]
  int32_t* first;             // [B], position of the token that a row's first step reads
  int32_t* prompt_last;       // [R], that token
  int32_t* prefix_rows;       // [B], slot of each sentence's first row
  int32_t *tokens, *parents;  // [target, R], the trellis of hypotheses
  float* sums;                // [R]
  int32_t* length;            // [R], of rows that have ended
  Hypothesis* finished;       // [B, K]
  int32_t *finished_count, *done, *fault;  // [B]

  // scratch: the packed pass of the encoder or the prompt, then the steps
  Activations<T> packed;
  T* packed_kv;  // [B * S, 2 * N * D], cross keys and values of one layer
  Activations<T> step;
  int32_t* ids;                  // [R], token that each live row reads
  int32_t* random_row;           // [R], of each live row
  T* logits;                     // [R, V]
  float *group_max, *group_sum;  // [R, G]
  float* lse;                    // [R]
  Candidate* best;               // [R, candidates]
  Candidate* queue;              // [threads, V]
  float* maxima;                 // [threads, G]
  Candidate* merged;             // [B, K * candidates]

  Workspace() = default;
  Workspace(Arena& a, const ModelSpec& spec, const Limits& limits, int threads) {
    const StackSpec& d = spec.decoder;
    const int64_t batch = limits.batch, beams = limits.beams, rows = limits.rows();
    const int64_t source_tokens = spec.encoder ? batch * limits.source : 0;
    const int64_t prompt_tokens = batch * limits.prompt;
    const int64_t shared_prompt = spec.encoder ? 0 : batch * (limits.prompt - 1);
    const int64_t groups = groups_of(d.vocab), inner = int64_t{d.heads} * d.head_dim;
    history = limits.target + (spec.encoder ? limits.prompt - 1 : 0);

    source_ids = a.take<int32_t>("source_ids", {source_tokens});
    source_offsets = a.take<int32_t>("source_offsets", {batch + 1});
    prompt_ids = a.take<int32_t>("prompt_ids", {prompt_tokens});
    prompt_offsets = a.take<int32_t>("prompt_offsets", {batch + 1});
    items = a.take<int32_t>("items", {batch});

    cross_k = a.take<T>("cross_k", {d.layers, d.heads, source_tokens, d.head_dim});
    cross_v = a.take<T>("cross_v", {d.layers, d.heads, source_tokens, d.head_dim});
    prompt_k = a.take<T>("prompt_k", {d.layers, d.heads, shared_prompt, d.head_dim});
    prompt_v = a.take<T>("prompt_v", {d.layers, d.heads, shared_prompt, d.head_dim});
    self_k = a.take<T>("self_k", {d.layers, rows, d.heads, history, d.head_dim});
    self_v = a.take<T>("self_v", {d.layers, rows, d.heads, history, d.head_dim});
    slots = a.take<int32_t>("slots", {rows, history});
    next_slots = a.take<int32_t>("next_slots", {rows, history});

    live = a.take<int32_t>("live", {batch});
    live_count = a.take<int32_t>("live_count", {1});
    first = a.take<int32_t>("first", {batch});
    prompt_last = a.take<int32_t>("prompt_last", {rows});
    prefix_rows = a.take<int32_t>("prefix_rows", {batch});
    tokens = a.take<int32_t>("tokens", {limits.target, rows});
    parents = a.take<int32_t>("parents", {limits.target, rows});
    sums = a.take<float>("sums", {rows});
    length = a.take<int32_t>("length", {rows});
    finished = a.take<Hypothesis>("finished", {batch, beams});
    finished_count = a.take<int32_t>("finished_count", {batch});
    done = a.take<int32_t>("done", {batch});
    fault = a.take<int32_t>("fault", {batch});

    a.reuse([&] {
      if (spec.encoder) {
        packed_kv = a.take<T>("encoder.cross_kv", {source_tokens, 2 * inner});
        packed = Activations<T>(a, "encoder", *spec.encoder, source_tokens);
      } else {
        packed = Activations<T>(a, "prompt", d, shared_prompt);
      }
    });
    a.reuse([&] {
      ids = a.take<int32_t>("ids", {rows});
      random_row = a.take<int32_t>("random_row", {rows});
      logits = a.take<T>("logits", {rows, d.vocab});
      group_max = a.take<float>("group_max", {rows, groups});
      group_sum = a.take<float>("group_sum", {rows, groups});
      lse = a.take<float>("lse", {rows});
      best = a.take<Candidate>("best", {rows, limits.candidates});
      queue = a.take<Candidate>("queue", {threads, d.vocab});
      maxima = a.take<float>("maxima", {threads, groups});
      merged = a.take<Candidate>("merged", {batch, beams * limits.candidates});
      step = Activations<T>(a, "step", d, rows);
    });
  }
};

}  // namespace decoding
