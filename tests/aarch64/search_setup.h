// A search in the middle of its steps, for the kernels that choose tokens: two sentences of three
// rows, whose options differ.
#pragma once

#include <bit>

#include "kernels/search/beam.h"
#include "kernels/search/config.h"
#include "kernels/search/logits.h"
#include "kernels/search/processors.h"
#include "tests/aarch64/answers.h"

namespace decoding {

constexpr int kSentences = 2, kBeams = 3, kRows = kSentences * kBeams;
constexpr int kVocab = 300, kGroups = (kVocab + kGroup - 1) / kGroup;
constexpr int kTarget = 6, kHistory = 8, kBest = 7;

struct SearchSetup {
  SearchConfig search{.processed = 1, .max_finished = kBeams};
  std::vector<SentenceConfig> sentences;
  std::vector<int32_t> words;
  StepState state{3, kSentences};
  std::vector<ActiveSentence> active{{0, 3, 5}, {1, 2, 4}};
  std::vector<int32_t> tokens, parents, cache_indirection, stop_now, stop_first, stop_states;
  std::vector<float> sums, logits, group_max, group_sum, lse;

  template <cpu::Isa isa>
  explicit SearchSetup(Machine<isa>& machine)
      : sentences(kSentences),
        tokens(machine.ids(kTarget * kRows, kVocab)),
        parents(machine.ids(kTarget * kRows, kRows)),
        cache_indirection(2 * kRows * kHistory),
        stop_now(kSentences),
        stop_first(kSentences),
        stop_states(kTarget * kRows),
        sums(machine.numbers(kRows, 4.0f)),
        logits(machine.numbers(kRows * kVocab, 5.0f)),
        group_max(kRows * kGroups),
        group_sum(kRows * kGroups),
        lse(kRows) {
    for (size_t i = 0; i < cache_indirection.size(); ++i) {  // some row of the same sentence
      const int row = static_cast<int>(i) / kHistory % kRows;
      cache_indirection[i] = row / kBeams * kBeams + static_cast<int>(machine.word() % kBeams);
    }
    for (SentenceConfig& sentence : sentences) {
      sentence.seed = 77;
      sentence.max_new = kTarget;
      sentence.min_new = 4;
      sentence.eos = add({5, 9});
      sentence.banned = add({1, 2, 130});
    }
    sentences[1].random_first = kBeams;
    sentences[1].min_new = 0;
    sentences[1].renormalize = 1;
    sentences[1].beam = {.length_penalty = 0.7,
                         .normalization = LengthNormalization::gnmt,
                         .early_stopping = EarlyStopping::never};
    const ScanLogitsParams<float> scan{
        logits.data(), group_max.data(), group_sum.data(), lse.data(), kRows, kVocab};
    machine.run([&](auto& stream) { scan_logits(stream, scan); });
  }

  Span add(const std::vector<int32_t>& ids) {
    const int begin = static_cast<int>(words.size());
    words.insert(words.end(), ids.begin(), ids.end());
    return {begin, static_cast<int>(ids.size())};
  }

  ConfigView config() const { return {&search, sentences.data(), words.data()}; }
};

}  // namespace decoding
