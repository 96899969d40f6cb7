// From logits to scores in float32: the processors of Hugging Face's generate(), in its order. With
// x the score of a token at step g of a row, where the row is what the caller sees (history.h):
//
//   kPre
//     x = log_softmax(logits)        where rows compete, or with guidance; else the logits
//     x = w (x - u) + u              guidance, w not 1; u: log_softmax of the unconditional
//                                    pass
//     x = x + bias                   of all sequences that the token would complete
//     x = x < 0 ? x q : x / q        the token is in the source; q = 1 / encoder_repetition_penalty
//     x = x < 0 ? x p : x / p        the token is in the row, behind its leading masked padding
//     x = x - presence - f - f ...   the token was generated; f as often as it was
//     x = -inf                       it would complete an n-gram that the row or the source has, or
//                                    a bad word; or it is an EOS and g <= min_new
//   kMid
//     x = 0, all others -inf         forced tokens of step 1 and of the row's last step
//     NaN -> 0, +-inf -> +-FLT_MAX   remove_invalid_values
//     x = x + |x| (d^(g - 1 - s) - 1)    finite scores of EOS, once g - 1 > s
//     x = -inf                       suppressed tokens, and those suppressed at the begin
//   kPost
//     x = log_softmax(x)             renormalize_logits
//
// Most of this touches few tokens of a row. Those are marked first, in one bitmap for each reason;
// so each is edited once, however often it occurs, and in any order. What is done to a token stands
// in shared/processors.h for both devices.
#pragma once

#include <cstdint>

#include "core/philox.h"
#include "kernels/search/config.h"
#include "kernels/search/step.h"
#include "kernels/stream.h"

namespace decoding {

// Parts of the work: a caller's own functions come between them.
enum Stages { kPre = 1, kMid = 2, kPost = 4, kAllStages = 7 };

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

template <typename T>
struct ProcessLogitsParams {
  const T* logits;                   // [sentences * beams, V], `stride` apart
  const T* unconditional = nullptr;  // the same, of the unconditional pass; null without guidance
  float* scores;                     // [sentences * beams, V], `score_stride` apart
  float* lse;  // [sentences * beams], of the logits; NaN or +inf exactly where a row holds a NaN or
               // +inf, of either pass, but 0 with remove_invalid_values
  float* unconditional_lse = nullptr;  // [sentences * beams], null without guidance
  ConfigView config;
  const StepState* state;
  const ActiveSentence* active;      // [sentences]
  const int32_t* ids;                // [sentences * beams], what each row reads
  const int32_t* tokens;             // [target, total_rows]
  const int32_t* cache_indirection;  // [2, total_rows, history]; step g reads table g % 2
  uint32_t* marks = nullptr;         // CPU: [threads, marks_size(V)], scratch
  int sentences, beams;              // sentences: at least active_count
  int vocab, stride, score_stride;   // CUDA: strides a multiple of 8
  int total_rows, history;           // columns of tokens, and of cache_indirection
  int stages;                        // of Stages; without kPre `scores` is what is edited
  bool competing;                    // scores are log-probabilities
};

// What is marked: why a token may be edited.
enum Mark { kListed, kInSource, kInRow, kBanned, kSuppressed, kMarks };

DECODING_EVERYWHERE inline int words_per_mark(int vocab) { return (vocab + 31) / 32; }
inline int64_t marks_size(int vocab) { return int64_t{kMarks} * words_per_mark(vocab); }

template <typename T, cpu::Isa isa>
void process_logits(cpu::Stream<isa>&, const ProcessLogitsParams<T>&);
template <typename T>
void process_logits(cuda::Stream&, const ProcessLogitsParams<T>&);

}  // namespace decoding
