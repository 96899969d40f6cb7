#include "engine/search/request.h"

#include "core/check.h"

namespace decoding {

const Beam* beam_of(const Search& search) {
  if (const auto* diverse = std::get_if<Diverse>(&search)) return &diverse->beam;
  if (const auto* constrained = std::get_if<Constrained>(&search)) return &constrained->beam;
  return std::get_if<Beam>(&search);
}

bool Request::is_guided() const {
  return any([](const SentenceConfig& c) { return c.processors.guidance != 1.0f; });
}

bool Request::reads_row() const {
  return any([](const SentenceConfig& c) { return c.processors.reads_row(); });
}

bool Request::reads_source() const {
  return any([](const SentenceConfig& c) { return c.processors.reads_source(); });
}

bool Request::is_filtered() const {
  const Beam* beam = beam_of(search);
  const bool samples = beam != nullptr ? beam->samples : std::holds_alternative<Sampling>(search);
  return samples && is_processed();
}

bool Request::is_processed() const {
  const Beam* beam = beam_of(search);
  const bool filtered = std::holds_alternative<Sampling>(search);
  return process || is_contrastive(search) || std::holds_alternative<Constrained>(search) ||
         (beam != nullptr && beam->samples) || any([&](const SentenceConfig& c) {
           return c.processors != ProcessorConfig{} || (filtered && c.filters.needs_scores());
         });
}

int Request::max_finished() const {
  if (is_contrastive(search)) return 1;
  const Beam* beam = beam_of(search);
  return beam != nullptr ? beam->finished_of(rows_per_sentence) : 0;
}

int Request::groups() const {
  const auto* diverse = std::get_if<Diverse>(&search);
  return diverse != nullptr ? diverse->groups : 1;
}

int Request::steps() const {
  int most_new = 0;
  for (const SentenceConfig& config : configs) most_new = std::max(most_new, config.max_new);
  return most_new + (is_contrastive(search) ? 1 : 0);
}

int Request::row_candidates() const {
  const int beams = rows_per_sentence;
  if (is_contrastive(search)) return beams;
  if (beam_of(search) == nullptr) return 1;
  int32_t most_eos = 0;
  for (const SentenceConfig& config : configs) most_eos = std::max(most_eos, config.eos.count);
  const int group = beams / groups();  // those of other groups may be penalised
  return beam_candidates(most_eos, group) + beams - group;
}

SearchConfig Request::search_config() const {
  return {.processed = is_processed(),
          .scores_lse = is_contrastive(search),
          .max_finished = max_finished(),
          .groups = groups()};
}

void check_request(const Request& r, int vocab) {
  for (const auto& [option, least, most] : r.id_ranges) {
    CHECK(least >= 0 && most < vocab, option, " must be 0 to ", vocab - 1, ", got ",
          least < 0 ? least : most);
  }
  CHECK(r.groups() > 0 && r.rows_per_sentence % r.groups() == 0, r.groups(),
        " groups do not divide ", r.rows_per_sentence, " beams");
  for (int b = 0; b < r.sentences(); ++b) {
    const SentenceConfig& c = r.configs[b];
    CHECK(c.max_new > 0, "max_new of sentence ", b, " must be positive, got ", c.max_new);
    CHECK(c.pad >= 0 && c.pad < vocab, "pad of sentence ", b, " must be 0 to ", vocab - 1, ", got ",
          c.pad);
    CHECK(!c.processors.reads_row() || c.processors.prompt_width > 0,
          "prompt must be given: an option of sentence ", b, " reads it");
    CHECK(!c.processors.reads_source() || c.processors.source_width > 0,
          "source must be given: an option of sentence ", b, " reads it");
    CHECK(c.forced_first < vocab, "forced_first of sentence ", b, " is not below ", vocab);
    CHECK(c.filters.temperature > 0.0f && c.filters.top_p > 0.0f && c.filters.top_k >= 0 &&
              c.filters.min_tokens > 0,
          "sentence ", b, " has a temperature, top_p, top_k or min_tokens_to_keep out of range");
  }
}

}  // namespace decoding
