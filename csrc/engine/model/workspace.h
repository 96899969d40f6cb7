// Every buffer of a session, one line each. The constructor runs twice: on a measuring arena for
// the plan, then on one that binds addresses in the pool.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/arena.h"
#include "core/spec.h"
#include "engine/model/inputs.h"
#include "engine/model/overflow.h"
#include "engine/search/constraints.h"
#include "kernels/linear/linear.h"
#include "kernels/rows/logprobs.h"
#include "kernels/search/beam.h"
#include "kernels/search/logits.h"
#include "kernels/search/topk.h"

namespace decoding {

constexpr int kForcedRows = 256;  // whose logits are there at once when labels are scored

template <>
inline const char* type_name<Candidate>() {
  return "candidate";
}
template <>
inline const char* type_name<KeyedCandidate>() {
  return "keyed candidate";
}
template <>
inline const char* type_name<LabelScore>() {
  return "label score";
}
template <>
inline const char* type_name<uint8_t>() {
  return "uint8";
}
template <>
inline const char* type_name<int8_t>() {
  return "int8";
}
template <>
inline const char* type_name<uint32_t>() {
  return "uint32";
}
template <>
inline const char* type_name<Hypothesis>() {
  return "hypothesis";
}

// Scratch of one pass through a stack: x is the residual stream, the others hold what a block
// makes of it: rows as wide as the widest layer's, of which a layer uses what it needs, its rows
// side by side.
template <typename T>
struct Activations {
  T* x;                      // [rows, H]
  T* normed;                 // [rows, H], x as a block reads it
  T* qkv;                    // [rows, (N + 2 * Nkv) * D], also the q of cross attention,
                             // or [rows, N * D], what a convolution reads
  T* glu = nullptr;          // [rows, 2 * N * D], gate and input of a gated convolution
  T* conv_scores = nullptr;  // [rows, N * kernel_size], before softmax, of a dynamic convolution
  T* attended;               // [rows, N * D]
  T* gated = nullptr;        // [rows, 2 * F], scratch of a gated feed-forward block
  T* ffn;  // [rows, F]; with `gated` it shares its bytes with qkv and attended, unless
           // feed-forward stands beside attention
  QuantizedRows quantized;  // [rows, the wider of H and F], what W8A8 products read
  uint8_t* scratch;         // of products on the CPU, see linear.h

  Activations() = default;
  Activations(Arena& a, const std::string& pass, const StackSpec& spec, int64_t rows,
              uint8_t* scratch, bool quantizes = false)
      : scratch(scratch) {
    x = a.take<T>(pass + ".x", {rows, spec.hidden});
    normed = a.take<T>(pass + ".normed", {rows, spec.hidden});
    if (quantizes && rows >= kFewestQuantized) {
      const int stride = quantized_stride(std::max(spec.hidden, spec.widest_ffn()));
      quantized = {a.take<int8_t>(pass + ".quantized", {rows, stride}),
                   a.take<float>(pass + ".quantized_scale", {rows})};
    }
    a.reuse([&] {
      qkv = a.take<T>(pass + ".qkv",
                      {rows, spec.convolution ? spec.widest_inner() : spec.widest_qkv()});
      if (spec.convolution) take_convolution(a, pass, spec, rows);
      attended = a.take<T>(pass + ".attended", {rows, spec.widest_inner()});
      if (spec.parallel) take_ffn(a, pass, spec, rows);
    });
    if (!spec.parallel) a.reuse([&] { take_ffn(a, pass, spec, rows); });
  }

 private:
  void take_convolution(Arena& a, const std::string& pass, const StackSpec& spec, int64_t rows) {
    const ConvolutionSpec& convolution = *spec.convolution;
    if (convolution.gated) glu = a.take<T>(pass + ".glu", {rows, 2 * spec.widest_inner()});
    if (convolution.dynamic) {
      conv_scores = a.take<T>(pass + ".conv_scores", {rows, spec.widest_conv_scores()});
    }
  }

  void take_ffn(Arena& a, const std::string& pass, const StackSpec& spec, int64_t rows) {
    if (spec.gated) gated = a.take<T>(pass + ".gated", {rows, 2 * spec.widest_ffn()});
    ffn = a.take<T>(pass + ".ffn", {rows, spec.widest_ffn()});
  }
};

// What a search keeps of its sentences and their rows, beside its inputs.
template <typename T>
struct SearchMemory {
  int32_t* cache_indirection;  // [2, R, history], where each row's history lies
  int history;                 // positions of a row in the cache of keys and values

  int32_t *tokens, *parents;  // [target, R], the history of beams
  int32_t* stop_states;       // [target, R], see stop.h
  Hypothesis* finished;       // [B, places]
  // with guidance what is read of the sentences and their unconditional ones, see guidance.h
  StepState* all_state;
  ActiveSentence* all_active;        // [B]
  int32_t *all_ids, *all_positions;  // [R]

  // contrastive search: hidden states of every row and of the prompts, see contrastive.h
  T *hidden = nullptr, *prompt_hidden = nullptr;  // [R, history, H], [B * (prompt - 1), H]
  float* similarity = nullptr;                    // [R]
  PhraseMemory phrases;                           // constrained beam search
  // Of the last layer to the source, where they are kept: [steps, R, S], and of the tokens that
  // score() reads [labels, R, S].
  float* attentions = nullptr;

  SearchMemory() = default;
  SearchMemory(Arena& a, const ModelSpec& spec, const Limits& limits)
      : history(history_of(spec, limits)) {
    const int64_t batch = limits.batch, rows = limits.rows();
    cache_indirection = a.take<int32_t>("cache_indirection", {2, rows, history});

    tokens = a.take<int32_t>("tokens", {limits.target, rows});
    parents = a.take<int32_t>("parents", {limits.target, rows});
    stop_states = a.take<int32_t>("stop_states", {limits.target, rows});
    finished = a.take<Hypothesis>("finished", {batch, limits.places()});
    all_state = take_state(a, "all_state");
    all_active = take_active(a, "all_active", batch);
    all_ids = a.take<int32_t>("all_ids", {rows});
    all_positions = a.take<int32_t>("all_positions", {rows});
    if (limits.attentions > 0) {
      const int64_t steps = std::max(limits.target, limits.labels);
      attentions = a.take<float>("attentions", {steps, rows, limits.source});
    }
    if (limits.hidden > 0) {
      const int64_t shared_prompt = spec.encoder ? 0 : shared_tokens(spec, limits);
      hidden = a.take<T>("hidden", {rows, history, spec.decoder.hidden});
      prompt_hidden = a.take<T>("prompt_hidden", {shared_prompt, spec.decoder.hidden});
      similarity = a.take<float>("similarity", {rows});
    }
    phrases = PhraseMemory(a, limits);
  }
};

template <typename T>
struct Workspace : SearchMemory<T> {
  Inputs inputs;

  // scratch: the packed pass of the encoder or the prompt, then the steps
  Activations<T> packed;
  T* packed_kv;  // [B * S, 2 * Nkv * D], cross keys and values of one layer
  Activations<T> step;
  T* logits;  // [R, V], logits_stride apart
  int logits_stride;
  float* scores;                 // [R, V], as far apart, what controls make of them; only with them
  float *group_max, *group_sum;  // [R, G]
  float* lse;                    // [R]
  Candidate* best;               // [R, candidates]
  uint8_t* products = nullptr;   // the CPU's linear: the scratch of linear.h
  float* partial = nullptr;      // CUDA's decode attention: attention/decode.h
  int32_t* split_counters = nullptr;
  OverflowView overflow;  // beside the pool

  // scratch: the packed pass of the decoder over labelled sentences
  LabelScore* label_scores;  // [B * labels]
  T* forced_logits;          // [kForcedRows or less, V], logits_stride apart
  Activations<T> forced;

  Workspace() = default;
  // alignment: elements on whose multiples rows of logits begin. take_backend(w): takes what else a
  // backend needs for good, take_step(w) while it steps.
  template <typename TakeBackend, typename TakeStep>
  Workspace(Arena& a, const ModelSpec& spec, const Limits& limits, int alignment,
            TakeBackend&& take_backend, TakeStep&& take_step)
      : inputs(a, spec, limits) {
    static_cast<SearchMemory<T>&>(*this) = SearchMemory<T>(a, spec, limits);
    const StackSpec& d = spec.decoder;
    const int64_t batch = limits.batch, rows = limits.rows();
    const int64_t tokens = shared_tokens(spec, limits);
    const int64_t groups = groups_of(d.vocab);
    logits_stride = (d.vocab + alignment - 1) / alignment * alignment;

    take_backend(*this);

    a.reuse([&] {
      if (spec.encoder) {
        packed_kv = a.take<T>("encoder.cross_kv", {tokens, 2 * d.widest_kv_inner()});
        packed = Activations<T>(a, "encoder", *spec.encoder, tokens, products,
                                spec.encoder->int8_activations);
      } else {
        packed = Activations<T>(a, "prompt", d, tokens, products, d.int8_activations);
      }
    });
    a.reuse([&] {
      logits = a.take<T>("logits", {rows, logits_stride});
      scores = a.take<float>("scores", {limits.controls > 0 ? rows : 0, logits_stride});
      group_max = a.take<float>("group_max", {rows, groups});
      group_sum = a.take<float>("group_sum", {rows, groups});
      lse = a.take<float>("lse", {rows});
      best = a.take<Candidate>("best", {rows, limits.candidates});
      take_step(*this);
      step = Activations<T>(a, "step", d, rows, products);
    });
    a.reuse([&] {
      const int64_t labels = batch * limits.labels;
      label_scores = a.take<LabelScore>("label_scores", {labels});
      forced_logits =
          a.take<T>("forced_logits", {std::min<int64_t>(labels, kForcedRows), logits_stride});
      forced = Activations<T>(a, "forced", d, labels, products);
    });
  }
};

}  // namespace decoding
