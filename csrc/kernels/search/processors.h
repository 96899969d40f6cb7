// From logits to scores in float32: the processors of Hugging Face's generate(), in its order. With
// x the score of a token at step g of a row, where the row is what the caller sees (history.h):
//
//   kBefore
//     x = log_softmax(logits)        where rows compete, or with guidance; else the logits
//     x = w (x - u) + u              guidance; u: log_softmax of the unconditional pass
//     x = x + bias                   of all sequences that the token would complete
//     x = x < 0 ? x q : x / q        the token is in the source; q = 1 / encoder_repetition_penalty
//     x = x < 0 ? x p : x / p        the token is in the row, behind its leading masked padding
//     x = -inf                       it would complete an n-gram that the row or the source has, or
//                                    a bad word; or it is an EOS and g <= min_new
//   kMiddle
//     x = 0, all others -inf         forced tokens of step 1 and of the row's last step
//     NaN -> 0, +-inf -> +-FLT_MAX   remove_invalid_values
//     x = x + |x| (f^(g - 1 - s) - 1)    finite scores of EOS, once g - 1 > s
//     x = -inf                       suppressed tokens, and those suppressed at the begin
//   kLast
//     x = log_softmax(x)             renormalize_logits
//
// Most of this touches few tokens of a row. Those are marked first, in one bitmap for each reason;
// so each is edited once, however often it occurs, and in any order. What is done to a token stands
// in processors.h for both devices.
#pragma once

#include <cstdint>

#include "core/philox.h"
#include "kernels/search/sentence.h"
#include "kernels/search/step.h"
#include "kernels/stream.h"

namespace decoding {

// Parts of the work: a caller's own functions come between them.
enum Stages { kBefore = 1, kMiddle = 2, kLast = 4, kAllStages = 7 };

// Part of the words of a call.
struct Span {
  int32_t begin, count;  // count: elements
};

// A token with a bias of its own.
struct Bias {
  int32_t token;
  float bias;
};

// Tokens of which the last is biased, or banned, when the row ends with the others.
struct Sequence {
  int32_t before, last;   // the last two tokens
  int32_t begin, length;  // in the words, all tokens but the last
  float bias;             // 0 for what is banned
};

// What a call asks for; in the device's memory, so that captured steps serve every call.
struct ProcessRules {
  float guidance;         // w
  float encoder_penalty;  // q; 1: off
  float penalty;          // p; 1: off
  int32_t ngram;          // tokens; 0: off
  int32_t encoder_ngram;
  int32_t min_new;
  int32_t remove_invalid, renormalize;  // 1: on
  int32_t decay_start;                  // s
  double decay_factor;                  // f; 1: off
  Span biases;                          // Bias, by rising token
  Span biased_sequences;                // Sequence, by rising (before, last)
  Span banned;                          // tokens
  Span banned_sequences;                // Sequence, by rising (before, last)
  Span eos;                             // tokens
  Span forced_last;                     // tokens
  Span suppressed;                      // tokens
  Span begin_suppressed;                // tokens
  int32_t prompts, prompt_width;        // [B, P], as given; 0 wide where nothing reads the row
  int32_t prompt_first;                 // [B], the first column that is not masked
  int32_t sources, source_width;        // [B, S], as given; 0 wide where nothing reads them
};

template <typename T>
struct ProcessParams {
  const T* logits;                   // [sentences * beams, V], `stride` apart
  const T* unconditional = nullptr;  // the same, of the unconditional pass; null without guidance
  float* scores;                     // [sentences * beams, V], `score_stride` apart
  float* lse;  // [sentences * beams], of the logits; NaN or +inf exactly where a row holds a NaN or
               // +inf, of either pass, but 0 with remove_invalid_values
  float* unconditional_lse = nullptr;   // [sentences * beams], null without guidance
  const ProcessRules* rules;            // [1]
  const int32_t* words;                 // the call's lists
  const SentenceRules* sentence_rules;  // [B]
  const StepState* now;                 // number, position, live_count
  const int32_t* live;                  // [sentences], sentence ids
  const int32_t* ids;                   // [sentences * beams], what each row reads
  const int32_t* tokens;                // [target, total_slots]
  const int32_t* slots;                 // [2, total_slots, history]; step g reads table g % 2
  uint32_t* marks = nullptr;            // CPU: [threads, marks_size(V)], scratch
  int sentences, beams;                 // sentences: at least live_count
  int vocab, stride, score_stride;      // CUDA: strides a multiple of 8
  int total_slots, history;             // columns of tokens, and of slots
  int stages;                           // of Stages; without kBefore `scores` is what is edited
  bool competing;                       // scores are log-probabilities
};

// What is marked: why a token may be edited.
enum Mark { kListed, kInSource, kInRow, kBanned, kSuppressed, kMarks };

DECODING_EVERYWHERE inline int words_per_mark(int vocab) { return (vocab + 31) / 32; }
inline int64_t marks_size(int vocab) { return int64_t{kMarks} * words_per_mark(vocab); }

template <typename T, cpu::Isa isa>
void process(cpu::Stream<isa>&, const ProcessParams<T>&);
template <typename T>
void process(cuda::Stream&, const ProcessParams<T>&);

}  // namespace decoding
