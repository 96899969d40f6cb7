// What a caller asks for: the rules that every search obeys, and the strategies.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/search/beam.h"
#include "kernels/search/filters.h"
#include "kernels/search/processors.h"

namespace decoding {

// Steps count from 1.
struct Rules {
  int max_new;                       // tokens that a row may have, at most: see sentence.h
  int min_new;                       // no EOS as one of the first min_new tokens
  std::vector<int32_t> eos;          // each of them ends a row
  int pad;                           // what an ended row reads while its sentence goes on
  std::vector<int32_t> banned;       // never chosen
  std::vector<int32_t> forced_last;  // where not empty, the only tokens of a sentence's last step
  bool renormalize;                  // what the rules leave adds up to 1 again
};

struct Greedy {};

// As sentence.h says for each sentence.
struct Sampling {};

struct Beam {
  double length_penalty = 1.0;
  LengthNormalization normalization = LengthNormalization::power;
  EarlyStopping early_stopping = EarlyStopping::no;
  int capacity = 0;             // places of a finished list; 0: one for each beam
  float diversity_rate = 0.0f;  // sibling rank, see beam.h
  bool draws = false;           // candidates are drawn, not the best ones

  int places(int beams) const { return capacity > 0 ? capacity : beams; }
};

// Group diverse beam search, see diverse.h.
struct Diverse {
  Beam beam;
  int groups;
  float penalty;
};

// See contrastive.h; as many candidates as the call has rows of a sentence.
struct Contrastive {
  float alpha;
};

// What rows must hold: the tables of kernels/search/constraints.h.
struct PhraseTables {
  std::vector<int32_t> heights, first_edge, tokens;

  size_t words() const { return heights.size() + first_edge.size() + tokens.size(); }
};

// Constrained beam search, see constrained.h.
struct Constrained {
  Beam beam;
  PhraseTables phrases;
};

using Search = std::variant<Greedy, Sampling, Beam, Diverse, Contrastive, Constrained>;

// The beam search that a search is or consists of; null where rows do not compete.
inline const Beam* beam_of(const Search& search) {
  if (const auto* diverse = std::get_if<Diverse>(&search)) return &diverse->beam;
  if (const auto* constrained = std::get_if<Constrained>(&search)) return &constrained->beam;
  return std::get_if<Beam>(&search);
}

inline bool is_contrastive(const Search& search) {
  return std::holds_alternative<Contrastive>(search);
}

inline int groups_of(const Search& search) {
  const auto* diverse = std::get_if<Diverse>(&search);
  return diverse != nullptr ? diverse->groups : 1;
}

// What is made of the logits where the rules are not enough: processors.h, filters.h.
struct Processing {
  ProcessRules rules;
  std::vector<int32_t> words;
  std::optional<WarpRules> warp;
};

// All that a call asks for.
struct Request {
  Rules rules;
  Search search;
  std::optional<Processing> processing;

  bool guided() const { return processing && processing->rules.guidance != 1.0f; }
  // Of a sentence's finished list; 0 where its rows do not end in one.
  int places(int beams) const {
    if (is_contrastive(search)) return 1;
    const Beam* beam = beam_of(search);
    return beam != nullptr ? beam->places(beams) : 0;
  }
  // A contrastive search chooses a step's token in the next one.
  int steps() const { return rules.max_new + (is_contrastive(search) ? 1 : 0); }
};

// Candidates that a beam search needs, so that enough of them go on whatever ends.
inline int beam_candidates(const Rules& rules, int beams) {
  return std::max<int>(2, 1 + rules.eos.size()) * beams;
}

// Next tokens considered for a row.
inline int row_candidates(const Request& request, int beams) {
  if (is_contrastive(request.search)) return beams;
  if (beam_of(request.search) == nullptr) return 1;
  const int group = beams / groups_of(request.search);  // those of other groups may be penalised
  return beam_candidates(request.rules, group) + beams - group;
}

// What the kernels of beam.h read, also where a contrastive search keeps its rows as beams do.
inline BeamRules beam_rules(const Request& request, int beams) {
  const auto* diverse = std::get_if<Diverse>(&request.search);
  const Beam* found = beam_of(request.search);
  const Beam beam = found != nullptr ? *found : Beam{};
  return {.length_penalty = beam.length_penalty,
          .normalization = beam.normalization,
          .early_stopping = beam.early_stopping,
          .capacity = request.places(beams),
          .sibling_penalty = beam.diversity_rate,
          .group_penalty = diverse != nullptr ? diverse->penalty : 0.0f,
          .groups = groups_of(request.search),
          .pad = request.rules.pad,
          .forced_last = !request.rules.forced_last.empty()};
}

}  // namespace decoding
