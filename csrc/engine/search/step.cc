#include "engine/search/step.h"

namespace decoding {

namespace {

SearchKind kind_of(const Search& search) {
  if (beam_of(search) != nullptr) return SearchKind::beam;
  return std::holds_alternative<Sampling>(search) ? SearchKind::sampling : SearchKind::greedy;
}

}  // namespace

StepKey step_key(const Request& request, int sentences, SelectPart part) {
  const auto* beam = std::get_if<Beam>(&request.search);
  return {.sentences = sentences,
          .beams = request.rows_per_sentence,
          .candidates = request.row_candidates(),
          .search = request.search.index(),
          .kind = kind_of(request.search),
          .part = part,
          .processed = request.is_processed(),
          .guided = request.is_guided(),
          .filtered = request.is_filtered(),
          .renormalized = request.is_processed() &&
                          request.any([](const SentenceConfig& c) { return c.renormalize != 0; }),
          .samples = beam != nullptr && beam->samples};
}

bool is_fused(const Request& request) {
  if (const auto* beam = std::get_if<Beam>(&request.search)) {
    const auto is_ours = [](const SentenceConfig& c) {
      return c.beam.normalization == LengthNormalization::gnmt || c.beam.sibling_penalty != 0.0f;
    };
    return !beam->samples && request.max_finished() == request.rows_per_sentence &&
           !request.any(is_ours);
  }
  return std::holds_alternative<Greedy>(request.search) ||
         std::holds_alternative<Sampling>(request.search);
}

}  // namespace decoding
