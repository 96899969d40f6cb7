// All that a caller asks for beside its texts, sentence by sentence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/search/beam.h"
#include "kernels/search/config.h"

namespace decoding {

// What a search is; what it obeys is in the request.
struct Greedy {};
struct Sampling {};

struct Beam {
  int max_finished = 0;  // rows that a finished list holds; 0: one for each beam
  bool samples = false;  // candidates are sampled, not the best ones

  int finished_of(int beams) const { return max_finished > 0 ? max_finished : beams; }
};

// Group diverse beam search, see diverse.h.
struct Diverse {
  Beam beam;
  int groups;
};

// See contrastive.h; as many candidates as a sentence has rows.
struct Contrastive {};

// What rows must hold: the tables of kernels/search/constraints.h.
struct PhraseTables {
  std::vector<int32_t> depths, first_edge, tokens;

  size_t words() const { return depths.size() + first_edge.size() + tokens.size(); }
};

// Constrained beam search, see constrained.h.
struct Constrained {
  Beam beam;
  PhraseTables phrases;
};

using Search = std::variant<Greedy, Sampling, Beam, Diverse, Contrastive, Constrained>;

// The beam search that a search is or consists of; null where rows do not compete.
const Beam* beam_of(const Search& search);

inline bool is_contrastive(const Search& search) {
  return std::holds_alternative<Contrastive>(search);
}

using Ids = std::vector<int32_t>;
using Biases = std::vector<std::pair<Ids, float>>;

// The lists that are made of words: those of one token, and those of several.
struct WordSpans {
  Span tokens, sequences;  // tokens: ids or Bias; sequences: Sequence, see processors.h
};

// The ids of an option's list, which check_request() compares with the vocabulary.
struct IdRange {
  const char* option;
  int32_t least, most;
};

// Its configs and words go to the device as they are: config.h. Steps count from 1.
struct Request {
  int rows_per_sentence = 1;
  Search search;
  bool process = false;  // scores are made though no option needs them: somebody looks at them
  std::vector<int32_t> stop_first;      // [sentences], the state that each prompt leads to
  std::vector<SentenceConfig> configs;  // [sentences]; their spans are of the words
  std::vector<int32_t> words;
  std::vector<IdRange> id_ranges;                // of each list in the words
  std::shared_ptr<const void> stop_table_owner;  // of the configs' table, which is not copied
  int32_t stop_states = 0;                       // of that table

  explicit Request(int sentences = 1) : stop_first(sentences), configs(sentences) {}

  // These append to the words. option: the list's name, for messages.
  Span put_ids(const char* option, const Ids& ids);
  WordSpans put_biases(const Biases& sequence_bias);
  WordSpans put_bad_words(const std::vector<Ids>& bad_words);
  // Rows [sentences, width], as the caller gave them; first: the column of each not masked.
  void put_prompt(const int32_t* ids, int width, const Ids& first);
  void put_source(const int32_t* ids, int width);

  int sentences() const { return static_cast<int>(configs.size()); }
  template <typename Test>
  bool any(Test&& test) const {
    return std::any_of(configs.begin(), configs.end(), test);
  }
  // Whether tokens are chosen from scores: processors.h, filters.h.
  bool is_processed() const;
  // Whether those are filtered before.
  bool is_filtered() const;
  bool is_guided() const;
  bool reads_row() const;
  bool reads_source() const;
  // Of a sentence's finished list; 0 where its rows do not end in one.
  int max_finished() const;
  int groups() const;
  // A contrastive search chooses a step's token in the next one.
  int steps() const;
  // Next tokens considered for a row.
  int row_candidates() const;
  SearchConfig search_config() const;
};

// Candidates that a beam search needs, so that enough of them go on whatever ends.
inline int beam_candidates(int eos, int beams) { return std::max(2, 1 + eos) * beams; }

// Throws for values out of range, and where ids are not below `vocab`.
void check_request(const Request& request, int vocab);

}  // namespace decoding
