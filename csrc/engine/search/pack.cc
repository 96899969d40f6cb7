// The lists of a request, packed into its words.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/check.h"
#include "engine/search/request.h"
#include "kernels/search/processors.h"

namespace decoding {
namespace {

// Empty lists are all the same, as configs are compared.
template <typename Item>
Span put(std::vector<int32_t>& to, const std::vector<Item>& items) {
  static_assert(sizeof(Item) % sizeof(int32_t) == 0 && std::is_trivially_copyable_v<Item>);
  if (items.empty()) return {};
  const Span span = {static_cast<int32_t>(to.size()), static_cast<int32_t>(items.size())};
  const auto* words = reinterpret_cast<const int32_t*>(items.data());
  to.insert(to.end(), words, words + items.size() * sizeof(Item) / sizeof(int32_t));
  return span;
}

Span put_sequences(std::vector<int32_t>& to, const Biases& entries) {
  std::vector<Sequence> sorted;
  for (const auto& [ids, bias] : entries) {
    if (ids.size() < 2) continue;
    const Ids head(ids.begin(), ids.end() - 1);
    const Span before = put(to, head);
    sorted.push_back({head.back(), ids.back(), before.begin, before.count, bias});
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const Sequence& a, const Sequence& b) {
    return std::pair(a.before, a.last) < std::pair(b.before, b.last);
  });
  return put(to, sorted);
}

void note_range(std::vector<IdRange>& ranges, const char* option, const Ids& ids) {
  if (ids.empty()) return;
  const auto [least, most] = std::minmax_element(ids.begin(), ids.end());
  ranges.push_back({option, *least, *most});
}

}  // namespace

Span Request::put_ids(const char* option, const Ids& ids) {
  note_range(id_ranges, option, ids);
  return put(words, ids);
}

WordSpans Request::put_biases(const Biases& sequence_bias) {
  std::vector<Bias> biases;
  for (const auto& [ids, bias] : sequence_bias) {
    note_range(id_ranges, "sequence_bias", ids);
    if (ids.size() == 1) biases.push_back({ids[0], bias});
  }
  std::sort(biases.begin(), biases.end(),
            [](const Bias& a, const Bias& b) { return a.token < b.token; });
  const Span tokens = put(words, biases);
  return {tokens, put_sequences(words, sequence_bias)};
}

WordSpans Request::put_bad_words(const std::vector<Ids>& bad_words) {
  Ids tokens;
  Biases sequences;
  for (const Ids& ids : bad_words) {
    note_range(id_ranges, "bad_words", ids);
    if (ids.size() == 1) tokens.push_back(ids[0]);
    sequences.push_back({ids, 0.0f});
  }
  const Span banned = put(words, tokens);
  return {banned, put_sequences(words, sequences)};
}

void Request::put_prompt(const int32_t* ids, int width, const Ids& first) {
  const int32_t begin = put(words, Ids(ids, ids + int64_t{sentences()} * width)).begin;
  for (int b = 0; b < sentences(); ++b) {
    configs[b].processors.prompt = begin + b * width;
    configs[b].processors.prompt_width = width;
    configs[b].processors.prompt_first = first[b];
  }
}

void Request::put_source(const int32_t* ids, int width) {
  const int32_t begin = put(words, Ids(ids, ids + int64_t{sentences()} * width)).begin;
  for (int b = 0; b < sentences(); ++b) {
    configs[b].processors.source = begin + b * width;
    configs[b].processors.source_width = width;
  }
}

}  // namespace decoding
