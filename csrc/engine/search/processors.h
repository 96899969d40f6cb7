// The processors that a call asks for (kernels/search/processors.h): as its caller names them, and
// as the kernels read them, rules and one block of words.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/check.h"
#include "kernels/search/processors.h"

namespace decoding {

// Rows of equal width, such as all prompts of a call.
struct Table {
  std::vector<int32_t> ids;  // [rows, width]
  int width = 0;
};

struct Controls {
  using Ids = std::vector<int32_t>;

  float guidance_scale = 1.0f;
  std::vector<std::pair<Ids, float>> sequence_bias;
  double encoder_repetition_penalty = 1.0;
  float repetition_penalty = 1.0f;
  int no_repeat_ngram_size = 0;
  int encoder_no_repeat_ngram_size = 0;
  std::vector<Ids> bad_words;
  Ids eos;
  int min_new = 0;
  Ids forced_last;
  bool remove_invalid_values = false;
  int decay_start = 0;
  double decay_factor = 1.0;
  Ids suppress_tokens;
  Ids begin_suppress_tokens;
  bool renormalize = false;
  Table prompt, source;  // of the sentences, as the caller gave them
  Ids prompt_first;      // [sentences], the first column of the prompt that is not masked

  bool reads_row() const;
  bool reads_source() const {
    return encoder_repetition_penalty != 1.0 || encoder_no_repeat_ngram_size > 0;
  }
};

// What the device reads.
struct PackedControls {
  ProcessRules rules;
  std::vector<int32_t> words;
};

inline bool Controls::reads_row() const {
  const bool biased = std::any_of(sequence_bias.begin(), sequence_bias.end(),
                                  [](const auto& entry) { return entry.first.size() > 1; });
  const bool banned = std::any_of(bad_words.begin(), bad_words.end(),
                                  [](const Ids& word) { return word.size() > 1; });
  return repetition_penalty != 1.0f || no_repeat_ngram_size > 0 ||
         encoder_no_repeat_ngram_size > 0 || biased || banned;
}

class PackControls {
 public:
  explicit PackControls(const Controls& controls) : from_(controls) {}

  PackedControls operator()() {
    std::vector<std::pair<Controls::Ids, float>> banned;
    for (const Controls::Ids& word : from_.bad_words) banned.push_back({word, 0.0f});
    to_.rules = {
        .guidance = from_.guidance_scale,
        .encoder_penalty = static_cast<float>(1.0 / from_.encoder_repetition_penalty),
        .penalty = from_.repetition_penalty,
        .ngram = from_.no_repeat_ngram_size,
        .encoder_ngram = from_.encoder_no_repeat_ngram_size,
        .min_new = from_.min_new,
        .remove_invalid = from_.remove_invalid_values,
        .renormalize = from_.renormalize,
        .decay_start = from_.decay_start,
        .decay_factor = from_.decay_factor,
        .biases = biases(),
        .biased_sequences = sequences(from_.sequence_bias),
        .banned = banned_tokens(),
        .banned_sequences = sequences(banned),
        .eos = put(from_.eos),
        .forced_last = put(from_.forced_last),
        .suppressed = put(from_.suppress_tokens),
        .begin_suppressed = put(from_.begin_suppress_tokens),
        .prompts = 0,
        .prompt_width = from_.reads_row() ? from_.prompt.width : 0,
        .prompt_first = 0,
        .sources = 0,
        .source_width = from_.reads_source() ? from_.source.width : 0,
    };
    if (to_.rules.prompt_width > 0) {
      to_.rules.prompts = put(from_.prompt.ids).begin;
      to_.rules.prompt_first = put(from_.prompt_first).begin;
    }
    if (to_.rules.source_width > 0) to_.rules.sources = put(from_.source.ids).begin;
    return std::move(to_);
  }

 private:
  // Appends the items to the words.
  template <typename Item>
  Span put(const std::vector<Item>& items) {
    static_assert(sizeof(Item) % sizeof(int32_t) == 0 && std::is_trivially_copyable_v<Item>);
    const Span span = {static_cast<int32_t>(to_.words.size()), static_cast<int32_t>(items.size())};
    const auto* words = reinterpret_cast<const int32_t*>(items.data());
    to_.words.insert(to_.words.end(), words, words + items.size() * sizeof(Item) / sizeof(int32_t));
    return span;
  }

  Span biases() {
    std::vector<Bias> singles;
    for (const auto& [ids, bias] : from_.sequence_bias) {
      if (ids.size() == 1) singles.push_back({ids[0], bias});
    }
    std::sort(singles.begin(), singles.end(),
              [](const Bias& a, const Bias& b) { return a.token < b.token; });
    return put(singles);
  }

  Span banned_tokens() {
    Controls::Ids singles;
    for (const Controls::Ids& word : from_.bad_words) {
      if (word.size() == 1) singles.push_back(word[0]);
    }
    return put(singles);
  }

  Span sequences(const std::vector<std::pair<Controls::Ids, float>>& entries) {
    std::vector<Sequence> sorted;
    for (const auto& [ids, bias] : entries) {
      if (ids.size() < 2) continue;
      const int length = static_cast<int>(ids.size()) - 1;
      const Controls::Ids head(ids.begin(), ids.end() - 1);
      sorted.push_back({head.back(), ids.back(), put(head).begin, length, bias});
    }
    std::stable_sort(sorted.begin(), sorted.end(), [](const Sequence& a, const Sequence& b) {
      return std::pair(a.before, a.last) < std::pair(b.before, b.last);
    });
    return put(sorted);
  }

  const Controls& from_;
  PackedControls to_{};
};

inline PackedControls pack(const Controls& controls) { return PackControls(controls)(); }

}  // namespace decoding
