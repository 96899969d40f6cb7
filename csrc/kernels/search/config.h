// What a call asks of its search, in the device's memory, so that captured steps serve every call:
// one SearchConfig, and a SentenceConfig for each sentence, because sentences with options of their
// own run side by side. Lists lie in one block of words, of which configs name spans.
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace decoding {

// Part of the words.
struct Span {
  int32_t begin = 0, count = 0;  // count: elements

  bool operator==(const Span&) const = default;
};

enum class EarlyStopping : int32_t { no, yes, never };

// A row's sum is divided by tokens^a, or ((5 + tokens) / 6)^a (Wu et al. 2016).
enum class LengthNormalization : int32_t { power, gnmt };

// Of filters.h; the defaults turn each off.
struct FilterConfig {
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float top_h = 0.0f;
  float min_p = 0.0f;
  float typical_p = 1.0f;
  float epsilon = 0.0f;
  float eta = 0.0f;
  int32_t min_tokens = 1;  // that all but top_h leave at least

  bool operator==(const FilterConfig&) const = default;
  // Whether scores are filtered before a token is sampled: sampling.h itself has three filters.
  bool needs_scores() const {
    return *this != FilterConfig{.temperature = temperature,
                                 .top_k = top_k,
                                 .top_p = top_p,
                                 .min_tokens = min_tokens};
  }
};

// Of beam.h and diverse.h.
struct BeamConfig {
  double length_penalty = 1.0;  // a
  LengthNormalization normalization = LengthNormalization::power;
  EarlyStopping early_stopping = EarlyStopping::no;
  float sibling_penalty = 0.0f;  // subtracted from a row's q-th best, q times (Li et al. 2016)
  float group_penalty = 0.0f;
};

// Of processors.h; the defaults turn each off.
struct ProcessorConfig {
  float guidance = 1.0f;         // w
  float encoder_penalty = 1.0f;  // q
  float penalty = 1.0f;          // p
  float frequency = 0.0f;        // f, of each time that a token was generated
  float presence = 0.0f;         // of a token that was generated at all
  int32_t ngram = 0;             // tokens
  int32_t encoder_ngram = 0;     // tokens
  int32_t remove_invalid = 0;    // 1: on
  int32_t decay_start = 0;       // s
  int32_t prompt_width = 0;      // 0 where nothing reads the row
  double decay_factor = 1.0;     // d
  Span biases;                   // Bias, by rising token
  Span biased_sequences;         // Sequence, by rising (before, last)
  Span banned_sequences;         // Sequence, by rising (before, last)
  Span suppressed;               // tokens
  Span begin_suppressed;         // tokens
  int32_t prompt = 0;            // words: the prompt as given, padding included
  int32_t prompt_first = 0;      // its first column that is not masked
  int32_t source = 0;            // words: the source as given
  int32_t source_width = 0;      // 0 where nothing reads it

  bool operator==(const ProcessorConfig&) const = default;
  DECODING_EVERYWHERE bool counts() const { return frequency != 0.0f || presence != 0.0f; }
  // The prompt's tokens, and those that followed.
  bool reads_row() const {
    return penalty != 1.0f || counts() || ngram != 0 || encoder_ngram != 0 ||
           biased_sequences.count > 0 || banned_sequences.count > 0;
  }
  bool reads_source() const { return encoder_penalty != 1.0f || encoder_ngram != 0; }
};

struct SentenceConfig {
  uint64_t seed = 0;          // of its random numbers
  int32_t random_first = 0;   // the row word of its first row's random numbers; others follow
  int32_t max_new = 1;        // tokens that a row may have
  int32_t min_new = 0;        // no EOS as one of the first min_new tokens
  int32_t pad = 0;            // what an ended row reads while its sentence goes on
  int32_t forced_first = -1;  // the only token of step 1; -1: any
  int32_t renormalize = 0;    // 1: what bans and forced tokens leave adds up to 1 again
  Span eos;                   // each of them ends a row
  Span banned;                // tokens that are never chosen
  Span forced_last;           // where not empty, the only tokens of the sentence's last step
  const int32_t* stop_table = nullptr;  // [states, V], see stop.h; null: no stop strings
  float alpha = 0.0f;                   // of contrastive search
  FilterConfig filters;
  BeamConfig beam;
  ProcessorConfig processors;

  DECODING_EVERYWHERE bool forces_first(int step) const { return step == 1 && forced_first >= 0; }
  DECODING_EVERYWHERE bool forces_last(int step) const {
    return step == max_new && forced_last.count > 0;
  }
  DECODING_EVERYWHERE bool forces(int step) const {
    return forces_first(step) || forces_last(step);
  }
};

// What all sentences share.
struct SearchConfig {
  // 1: tokens are chosen from scores that have been processed and filtered (processors.h); where
  // rows compete they are log-probabilities
  int32_t processed = 0;
  int32_t scores_lse = 0;    // 1: and the log-sum-exp of those is asked for (contrastive.h)
  int32_t max_finished = 1;  // rows that a sentence's finished list holds
  int32_t groups = 1;        // of a sentence's beams, see diverse.h
};

// All of a call.
struct ConfigView {
  const SearchConfig* search;       // [1]
  const SentenceConfig* sentences;  // [B]
  const int32_t* words;
};

}  // namespace decoding
