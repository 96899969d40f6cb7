#include "engine/search/request.h"

#include "core/check.h"

namespace decoding {

const Beam* beam_of(const Search& search) {
  if (const auto* diverse = std::get_if<Diverse>(&search)) return &diverse->beam;
  if (const auto* constrained = std::get_if<Constrained>(&search)) return &constrained->beam;
  return std::get_if<Beam>(&search);
}

bool Request::reads_row() const {
  const auto is_long = [](const Ids& ids) { return ids.size() > 1; };
  const bool biased = sequence_bias.any([&](const Biases& biases) {
    return std::any_of(biases.begin(), biases.end(),
                       [&](const auto& entry) { return is_long(entry.first); });
  });
  const bool banned = bad_words.any([&](const std::vector<Ids>& words) {
    return std::any_of(words.begin(), words.end(), is_long);
  });
  return repetition_penalty.any_but(1.0f) || no_repeat_ngram_size.any_but(0) ||
         encoder_no_repeat_ngram_size.any_but(0) || biased || banned;
}

bool Request::reads_source() const {
  return encoder_repetition_penalty.any_but(1.0) || encoder_no_repeat_ngram_size.any_but(0);
}

bool Request::is_filtered() const {
  const Beam* beam = beam_of(search);
  const bool samples = beam != nullptr ? beam->samples : std::holds_alternative<Sampling>(search);
  return samples && is_processed();
}

bool Request::is_processed() const {
  const Beam* beam = beam_of(search);
  // Sampling from logits has the first filters of its own.
  const bool filtered = std::holds_alternative<Sampling>(search) &&
                        (top_h.any_but(0.0f) || min_p.any_but(0.0f) || typical_p.any_but(1.0f) ||
                         epsilon_cutoff.any_but(0.0f) || eta_cutoff.any_but(0.0f));
  return process || is_contrastive(search) || std::holds_alternative<Constrained>(search) ||
         (beam != nullptr && beam->samples) || filtered || reads_row() || reads_source() ||
         is_guided() || sequence_bias.any_but({}) || remove_invalid_values.any_but(0) ||
         decay_factor.any_but(1.0) || suppress_tokens.any_but({}) ||
         begin_suppress_tokens.any_but({});
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

int Request::most_new() const {
  return *std::max_element(max_new.values().begin(), max_new.values().end());
}

int Request::row_candidates() const {
  const int beams = rows_per_sentence;
  if (is_contrastive(search)) return beams;
  if (beam_of(search) == nullptr) return 1;
  size_t most_eos = 0;
  for (const Ids& ids : eos.values()) most_eos = std::max(most_eos, ids.size());
  const int group = beams / groups();  // those of other groups may be penalised
  return beam_candidates(static_cast<int>(most_eos), group) + beams - group;
}

namespace {

void check_ids(const char* name, const Each<Ids>& lists, int vocab) {
  for (const Ids& ids : lists.values()) {
    for (const int32_t id : ids) {
      CHECK(id >= 0 && id < vocab, name, " must be 0 to ", vocab - 1, ", got ", id);
    }
  }
}

}  // namespace

void check_request(const Request& r, int vocab) {
  check_ids("eos", r.eos, vocab);
  check_ids("forced_last", r.forced_last, vocab);
  check_ids("suppress_tokens", r.suppress_tokens, vocab);
  check_ids("begin_suppress_tokens", r.begin_suppress_tokens, vocab);
  for (const auto& words : r.bad_words.values()) check_ids("bad_words", Each<Ids>(words), vocab);
  for (const Biases& biases : r.sequence_bias.values()) {
    for (const auto& [ids, bias] : biases) check_ids("sequence_bias", ids, vocab);
  }
  CHECK(!r.reads_row() || r.prompt.width > 0, "prompt must be given");
  CHECK(!r.reads_source() || r.source.width > 0, "source must be given");
  CHECK(r.groups() > 0 && r.rows_per_sentence % r.groups() == 0, r.groups(),
        " groups do not divide ", r.rows_per_sentence, " beams");
  for (int b = 0; b < r.sentences; ++b) {
    CHECK(r.max_new[b] > 0, "max_new of sentence ", b, " must be positive, got ", r.max_new[b]);
    CHECK(r.pad[b] >= 0 && r.pad[b] < vocab, "pad of sentence ", b, " must be 0 to ", vocab - 1,
          ", got ", r.pad[b]);
    CHECK(r.forced_first[b] < vocab, "forced_first of sentence ", b, " is not below ", vocab);
    CHECK(r.temperature[b] > 0.0f && r.top_p[b] > 0.0f && r.top_k[b] >= 0 &&
              r.min_tokens_to_keep[b] > 0,
          "sentence ", b, " has a temperature, top_p, top_k or min_tokens_to_keep out of range");
  }
}

}  // namespace decoding
