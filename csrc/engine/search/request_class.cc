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

}  // namespace

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
