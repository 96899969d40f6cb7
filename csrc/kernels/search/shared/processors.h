// What the processors of processors.h do to a token of a row: one text for both devices, for the
// pass over all tokens and for a single one.
#pragma once

#include <cfloat>
#include <cmath>

#include "kernels/search/history.h"
#include "kernels/search/processors.h"

namespace decoding {

// x made less likely where penalty > 1, more likely below.
DECODING_EVERYWHERE inline float penalised(float x, float penalty) {
  return x < 0.0f ? x * penalty : x / penalty;
}

DECODING_EVERYWHERE inline float valid(float x) {
  if (x != x) return 0.0f;
  return x == INFINITY ? FLT_MAX : x == -INFINITY ? -FLT_MAX : x;
}

DECODING_EVERYWHERE inline bool contains(const int32_t* ids, int count, int token) {
  for (int i = 0; i < count; ++i) {
    if (ids[i] == token) return true;
  }
  return false;
}

// The first i of [0, count) for which at_least(i), which never becomes false again; else count.
template <typename AtLeast>
DECODING_EVERYWHERE int first_of(int count, AtLeast&& at_least) {
  int begin = 0;
  while (begin < count) {
    const int middle = begin + (count - begin) / 2;
    if (at_least(middle)) {
      count = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

constexpr int kAny = -1;  // token

// A row and what its processors need to know.
struct ProcessedRow {
  const SentenceConfig* config;
  const int32_t* words;
  History row;
  const int32_t* source;  // [source_width]
  const int32_t* forced;  // [forced_count], the only tokens of this step
  int first;              // of the row's tokens that count as repeated
  int forced_count;       // 0: none is forced
  int step;
  bool guided;  // by an unconditional pass
  bool begins;  // tokens are suppressed at the begin
  float decay;  // what EOS gains, in multiples of its score; 0: nothing

  DECODING_EVERYWHERE const ProcessorConfig& processors() const { return config->processors; }

  template <typename Item = int32_t>
  DECODING_EVERYWHERE const Item* list(Span span) const {
    return reinterpret_cast<const Item*>(words + span.begin);
  }

  // Calls use(sequence) for those that the row lets end in `token`, or in any token where that is
  // kAny. A thread alone goes straight to them; many look at all, `thread` at every `threads`-th,
  // since a search would wait for memory again and again.
  template <typename Use>
  DECODING_EVERYWHERE void for_sequences(Span span, int token, int thread, int threads,
                                         Use&& use) const {
    if (span.count == 0) return;
    const Sequence* sequences = list<Sequence>(span);
    const int newest = row[row.length - 1];
    const auto reached = [&](int i) {
      const int before = sequences[i].before;
      return before > newest || (before == newest && sequences[i].last >= token);
    };
    const int begin = threads == 1 ? first_of(span.count, reached) : thread;
    for (int i = begin; i < span.count; i += threads) {
      const Sequence& sequence = sequences[i];
      const bool follows = sequence.before == newest && (token == kAny || sequence.last == token);
      if (!follows && threads == 1) return;
      if (follows && row.ends_with(words, sequence.begin, sequence.length)) use(sequence);
    }
  }

  // Calls use(token) for the tokens that would complete one of the n-grams of `text`.
  template <typename Text, typename Use>
  DECODING_EVERYWHERE void for_ngrams(int n, const Text& text, int length, int thread, int threads,
                                      Use&& use) const {
    if (n == 0) return;
    for (int last = n - 1 + thread; last < length; last += threads) {
      if (row.ends_with(text, last - (n - 1), n - 1)) use(text[last]);
    }
  }

  // Calls mark(why, token) for every token that edit_pre() and edit_mid() change, some of
  // them several times. Where several threads call this, each does its share.
  template <typename SetMark>
  DECODING_EVERYWHERE void mark_pre(int thread, int threads, SetMark&& mark) const {
    const auto ban = [&](int token) { mark(kBanned, token); };
    const Bias* biases = list<Bias>(processors().biases);
    for (int i = thread; i < processors().biases.count; i += threads)
      mark(kListed, biases[i].token);
    for_sequences(processors().biased_sequences, kAny, thread, threads,
                  [&](const Sequence& sequence) { mark(kListed, sequence.last); });
    if (processors().encoder_penalty != 1.0f) {
      for (int i = thread; i < processors().source_width; i += threads) mark(kInSource, source[i]);
    }
    if (processors().penalty != 1.0f || processors().counts()) {
      const int begin = processors().penalty != 1.0f ? first : row.width;
      for (int i = begin + thread; i < row.length; i += threads) mark(kInRow, row[i]);
    }
    for_ngrams(processors().ngram, row, row.length, thread, threads, ban);
    for_ngrams(processors().encoder_ngram, source, processors().source_width, thread, threads, ban);
    for (int i = thread; i < config->banned.count; i += threads) ban(list(config->banned)[i]);
    for_sequences(processors().banned_sequences, kAny, thread, threads,
                  [&](const Sequence& sequence) { ban(sequence.last); });
    if (step > config->min_new) return;
    for (int i = thread; i < config->eos.count; i += threads) ban(list(config->eos)[i]);
  }

  template <typename SetMark>
  DECODING_EVERYWHERE void mark_mid(int thread, int threads, SetMark&& mark) const {
    const auto all = [&](Mark why, Span span) {
      for (int i = thread; i < span.count; i += threads) mark(why, list(span)[i]);
    };
    if (decay != 0.0f) all(kListed, config->eos);
    all(kSuppressed, processors().suppressed);
    if (begins) all(kSuppressed, processors().begin_suppressed);
  }

  // The sum of the biases of all sequences that the token would complete.
  DECODING_EVERYWHERE float bias(int token) const {
    float sum = 0.0f;
    const Bias* biases = list<Bias>(processors().biases);
    const int at =
        first_of(processors().biases.count, [&](int i) { return biases[i].token >= token; });
    if (at < processors().biases.count && biases[at].token == token) sum = biases[at].bias;
    for_sequences(processors().biased_sequences, token, 0, 1,
                  [&](const Sequence& sequence) { sum += sequence.bias; });
    return sum;
  }

  // marks: a bit for each Mark that the token has. less: subtracted right behind the biases.
  DECODING_EVERYWHERE float edit_pre(unsigned marks, int token, float x, float less) const {
    x = edit_uncounted(marks, token, x, less);
    if (!processors().counts() || !(marks & 1u << kInRow)) return x;
    bool is_first = true;
    for (int i = row.width; i < row.length; ++i) {
      if (row[i] != token) continue;
      x = counted(x, is_first);
      is_first = false;
    }
    return x;
  }

  // Without the penalties of tokens that were generated.
  DECODING_EVERYWHERE float edit_uncounted(unsigned marks, int token, float x, float less) const {
    if (marks & 1u << kListed) x += bias(token);
    x -= less;
    if (marks & 1u << kInSource) x = penalised(x, processors().encoder_penalty);
    if (marks & 1u << kInRow) x = penalised(x, processors().penalty);
    return marks & 1u << kBanned ? -INFINITY : x;
  }

  // One time that a token was generated.
  DECODING_EVERYWHERE float counted(float x, bool is_first) const {
    if (is_first) x -= processors().presence;
    return x - processors().frequency;
  }

  // Whether force() changes unmarked tokens too.
  DECODING_EVERYWHERE bool forces() const {
    return forced_count > 0 || processors().remove_invalid;
  }

  DECODING_EVERYWHERE float force(int token, float x) const {
    if (forced_count > 0) x = contains(forced, forced_count, token) ? 0.0f : -INFINITY;
    return processors().remove_invalid ? valid(x) : x;
  }

  DECODING_EVERYWHERE float edit_mid(unsigned marks, int token, float x) const {
    const bool ends = decay != 0.0f && marks & 1u << kListed &&
                      contains(list(config->eos), config->eos.count, token);
    if (ends && fabsf(x) <= FLT_MAX) x += fabsf(x) * decay;
    return marks & 1u << kSuppressed ? -INFINITY : x;
  }
};

// Active row `i`. config: of its sentence, where p has it, or a copy.
template <typename T>
DECODING_EVERYWHERE ProcessedRow processed_row(const ProcessLogitsParams<T>& p,
                                               const SentenceConfig& config, int i) {
  const ActiveSentence sentence = p.active[i / p.beams];
  const ProcessorConfig& processors = config.processors;
  const int slot = sentence.id * p.beams + i % p.beams, number = sentence.number;
  const int64_t table = int64_t{sentence.table()} * p.total_rows + slot;
  const int base = sentence.position - (number - 1), width = processors.prompt_width;
  const bool last = config.forces_last(number);
  const int behind = number - 1 - processors.decay_start;  // tokens since the decay began
  const bool decays = behind > 0 && processors.decay_factor != 1.0;
  return {.config = &config,
          .words = p.config.words,
          .row = {.prompt = p.config.words + processors.prompt,
                  .tokens = p.tokens,
                  .cache_indirection = p.cache_indirection + table * p.history + base,
                  .newest = p.ids[i],
                  .width = width,
                  .total_rows = p.total_rows,
                  .length = width > 0 ? width + number - 1 : 0},
          .source = p.config.words + processors.source,
          .forced = last ? p.config.words + config.forced_last.begin : &config.forced_first,
          .first = processors.prompt_first,
          .forced_count = last ? config.forced_last.count : config.forces_first(number),
          .step = number,
          .guided = p.unconditional != nullptr && processors.guidance != 1.0f,
          // A forced first token does not count as the begin.
          .begins = number == (config.forced_first >= 0 ? 2 : 1),
          .decay = decays ? static_cast<float>(pow(processors.decay_factor, behind) - 1.0) : 0.0f};
}

template <typename T>
DECODING_EVERYWHERE ProcessedRow processed_row(const ProcessLogitsParams<T>& p, int i) {
  return processed_row(p, p.config.sentences[p.active[i / p.beams].id], i);
}

// The score of a token before any edit, from its logits.
template <typename T, typename ToFloat>
DECODING_EVERYWHERE float opened(const ProcessLogitsParams<T>& p, const ProcessedRow& row, int i,
                                 int token, float lse, ToFloat&& to_float) {
  float x = to_float(p.logits[int64_t{i} * p.stride + token]);
  if (p.competing || row.guided) x -= lse;
  if (!row.guided) return x;
  const float u = to_float(p.unconditional[int64_t{i} * p.stride + token]) - p.unconditional_lse[i];
  return row.processors().guidance * (x - u) + u;
}

// What process_logits() without kPost would have made of one token of row i, had `less` been
// subtracted right behind the biases. row: processed_row(p, i). Reads the logits, and what
// process_logits() left in lse and unconditional_lse.
template <typename T, typename ToFloat>
DECODING_EVERYWHERE float reprocess(const ProcessLogitsParams<T>& p, const ProcessedRow& row, int i,
                                    int token, float less, ToFloat&& to_float) {
  unsigned marks = 0;
  const auto note = [&](Mark why, int marked) {
    if (marked == token) marks |= 1u << why;
  };
  row.mark_pre(0, 1, note);
  row.mark_mid(0, 1, note);
  const float x = opened(p, row, i, token, p.lse[i], to_float);
  return row.edit_mid(marks, token, row.force(token, row.edit_pre(marks, token, x, less)));
}

}  // namespace decoding
