// From a request to what the device reads: a config for each sentence, and one block of words.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "engine/search/request.h"
#include "kernels/search/processors.h"

namespace decoding {
namespace {

class Packer {
 public:
  explicit Packer(const Request& request) : from_(request) {}

  PackedRequest operator()() {
    to_.search = {.stop_table = from_.stop_table,
                  .processed = from_.is_processed(),
                  .scores_lse = is_contrastive(from_.search),
                  .max_finished = from_.max_finished(),
                  .groups = from_.groups()};
    if (from_.reads_row()) prompts_ = put_table(from_.prompt);
    if (from_.reads_source()) sources_ = put_table(from_.source);
    const auto eos = put_each(from_.eos), forced_last = put_each(from_.forced_last);
    const auto banned =
        put_each(from_.bad_words, [&](const auto& words) { return put(single_tokens(words)); });
    const auto processors = processor_spans();
    for (int b = 0; b < from_.sentences; ++b) {
      SentenceConfig config = sentence(b);
      config.eos = eos[b];
      config.forced_last = forced_last[b];
      config.banned = banned[b];
      config.processors = processor(b, processors);
      to_.sentences.push_back(config);
    }
    return std::move(to_);
  }

 private:
  // A table in the words.
  struct PutTable {
    int begin = 0, width = 0;
  };
  struct ProcessorSpans {
    Each<Span> biases, biased_sequences, banned_sequences, suppressed, begin_suppressed;
  };

  SentenceConfig sentence(int b) const {
    const Request& r = from_;
    SentenceConfig config;
    config.seed = r.seed[b];
    config.random_first = r.random_first[b];
    config.max_new = r.max_new[b];
    config.min_new = r.min_new[b];
    config.pad = r.pad[b];
    config.forced_first = r.forced_first[b];
    config.renormalize = r.renormalize[b];
    config.alpha = r.penalty_alpha[b];
    config.filters = {.temperature = r.temperature[b],
                      .top_k = r.top_k[b],
                      .top_p = r.top_p[b],
                      .top_h = r.top_h[b],
                      .min_p = r.min_p[b],
                      .typical_p = r.typical_p[b],
                      .epsilon = r.epsilon_cutoff[b],
                      .eta = r.eta_cutoff[b],
                      .min_tokens = r.min_tokens_to_keep[b]};
    config.beam = {
        .length_penalty = r.length_penalty[b],
        .normalization = r.gnmt[b] ? LengthNormalization::gnmt : LengthNormalization::power,
        .early_stopping = r.early_stopping[b],
        .sibling_penalty = r.diversity_rate[b],
        .group_penalty = r.diversity_penalty[b]};
    return config;
  }

  ProcessorSpans processor_spans() {
    const auto sequences = [&](const Biases& entries) { return put(sequences_of(entries)); };
    return {.biases = put_each(from_.sequence_bias,
                               [&](const Biases& entries) { return put(single_biases(entries)); }),
            .biased_sequences = put_each(from_.sequence_bias, sequences),
            .banned_sequences = put_each(from_.bad_words,
                                         [&](const std::vector<Ids>& words) {
                                           Biases entries;
                                           for (const Ids& word : words) {
                                             entries.push_back({word, 0.0f});
                                           }
                                           return sequences(entries);
                                         }),
            .suppressed = put_each(from_.suppress_tokens),
            .begin_suppressed = put_each(from_.begin_suppress_tokens)};
  }

  ProcessorConfig processor(int b, const ProcessorSpans& spans) const {
    const Request& r = from_;
    return {.guidance = r.guidance_scale[b],
            .encoder_penalty = static_cast<float>(1.0 / r.encoder_repetition_penalty[b]),
            .penalty = r.repetition_penalty[b],
            .ngram = r.no_repeat_ngram_size[b],
            .encoder_ngram = r.encoder_no_repeat_ngram_size[b],
            .remove_invalid = r.remove_invalid_values[b],
            .decay_start = r.decay_start[b],
            .prompt_width = prompts_.width,
            .decay_factor = r.decay_factor[b],
            .biases = spans.biases[b],
            .biased_sequences = spans.biased_sequences[b],
            .banned_sequences = spans.banned_sequences[b],
            .suppressed = spans.suppressed[b],
            .begin_suppressed = spans.begin_suppressed[b],
            .prompt = prompts_.begin + b * prompts_.width,
            .prompt_first = prompts_.width > 0 ? r.prompt_first[b] : 0,
            .source = sources_.begin + b * sources_.width,
            .source_width = sources_.width};
  }

  // Appends the items to the words.
  template <typename Item>
  Span put(const std::vector<Item>& items) {
    static_assert(sizeof(Item) % sizeof(int32_t) == 0 && std::is_trivially_copyable_v<Item>);
    const Span span = {static_cast<int32_t>(to_.words.size()), static_cast<int32_t>(items.size())};
    const auto* words = reinterpret_cast<const int32_t*>(items.data());
    to_.words.insert(to_.words.end(), words, words + items.size() * sizeof(Item) / sizeof(int32_t));
    return span;
  }

  PutTable put_table(const Table& table) { return {put(table.ids).begin, table.width}; }

  // What all sentences share is put once.
  template <typename Items, typename Put>
  Each<Span> put_each(const Each<Items>& each, Put&& put) {
    std::vector<Span> spans;
    for (const Items& items : each.values()) spans.push_back(put(items));
    return Each<Span>(std::move(spans));
  }
  Each<Span> put_each(const Each<Ids>& each) {
    return put_each(each, [&](const Ids& ids) { return put(ids); });
  }

  static Ids single_tokens(const std::vector<Ids>& words) {
    Ids tokens;
    for (const Ids& word : words) {
      if (word.size() == 1) tokens.push_back(word[0]);
    }
    return tokens;
  }

  static std::vector<Bias> single_biases(const Biases& entries) {
    std::vector<Bias> biases;
    for (const auto& [ids, bias] : entries) {
      if (ids.size() == 1) biases.push_back({ids[0], bias});
    }
    std::sort(biases.begin(), biases.end(),
              [](const Bias& a, const Bias& b) { return a.token < b.token; });
    return biases;
  }

  std::vector<Sequence> sequences_of(const Biases& entries) {
    std::vector<Sequence> sorted;
    for (const auto& [ids, bias] : entries) {
      if (ids.size() < 2) continue;
      const int length = static_cast<int>(ids.size()) - 1;
      const Ids head(ids.begin(), ids.end() - 1);
      sorted.push_back({head.back(), ids.back(), put(head).begin, length, bias});
    }
    std::stable_sort(sorted.begin(), sorted.end(), [](const Sequence& a, const Sequence& b) {
      return std::pair(a.before, a.last) < std::pair(b.before, b.last);
    });
    return sorted;
  }

  const Request& from_;
  PackedRequest to_{};
  PutTable prompts_, sources_;
};

}  // namespace

PackedRequest pack(const Request& request) { return Packer(request)(); }

}  // namespace decoding
