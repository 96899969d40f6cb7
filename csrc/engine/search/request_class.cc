#include "engine/search/request_class.h"

#include "kernels/search/processors.h"

namespace decoding {
namespace {

void move(Span& span, int32_t by) {
  if (span.count > 0) span.begin += by;
}

// The sequences of a span name words too.
void move_sequences(Span& span, int32_t by, int32_t* words) {
  move(span, by);
  auto* sequences = reinterpret_cast<Sequence*>(words + span.begin);
  for (int i = 0; i < span.count; ++i) sequences[i].begin += by;
}

// Words of a request that one of its sentences takes along.
class WordCopy {
 public:
  WordCopy(const Request& from, Request& to) : from_(from.words), to_(to.words) {}

  int32_t take(int32_t begin, int64_t count) {
    const auto first = from_.begin() + begin;
    const auto placed = static_cast<int32_t>(to_.size());
    to_.insert(to_.end(), first, first + count);
    return placed;
  }

  template <typename Item>
  void take(Span& span) {
    constexpr int64_t kWords = sizeof(Item) / sizeof(int32_t);
    if (span.count > 0) span.begin = take(span.begin, kWords * span.count);
  }

  // And the words that they name.
  void take_sequences(Span& span) {
    take<Sequence>(span);
    for (int i = 0; i < span.count; ++i) {
      const auto sequence = [&] { return reinterpret_cast<Sequence*>(&to_[span.begin]) + i; };
      const int32_t placed = take(sequence()->begin, sequence()->length);
      sequence()->begin = placed;
    }
  }

 private:
  const std::vector<int32_t>& from_;
  std::vector<int32_t>& to_;
};

}  // namespace

Request sentence_of(const Request& all, int sentence) {
  Request one;
  one.rows_per_sentence = all.rows_per_sentence;
  one.search = all.search;
  one.process = all.process;
  one.stop_first = {all.stop_first[sentence]};
  one.stop_table_owner = all.stop_table_owner;
  one.stop_states = all.stop_states;
  one.id_ranges = all.id_ranges;
  SentenceConfig& config = one.configs[0] = all.configs[sentence];
  ProcessorConfig& p = config.processors;
  WordCopy words(all, one);
  for (Span* ids :
       {&config.eos, &config.banned, &config.forced_last, &p.suppressed, &p.begin_suppressed}) {
    words.take<int32_t>(*ids);
  }
  words.take<Bias>(p.biases);
  words.take_sequences(p.biased_sequences);
  words.take_sequences(p.banned_sequences);
  if (p.prompt_width > 0) p.prompt = words.take(p.prompt, p.prompt_width);
  if (p.source_width > 0) p.source = words.take(p.source, p.source_width);
  return one;
}

SentenceConfig place_config(const Request& request, int32_t first, int32_t* words) {
  std::copy(request.words.begin(), request.words.end(), words + first);
  SentenceConfig config = request.configs[0];
  ProcessorConfig& p = config.processors;
  for (Span* span : {&config.eos, &config.banned, &config.forced_last, &p.biases, &p.suppressed,
                     &p.begin_suppressed}) {
    move(*span, first);
  }
  move_sequences(p.biased_sequences, first, words);
  move_sequences(p.banned_sequences, first, words);
  if (p.prompt_width > 0) p.prompt += first;
  if (p.source_width > 0) p.source += first;
  return config;
}

}  // namespace decoding
