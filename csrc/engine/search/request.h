// All that a caller asks for beside its texts, sentence by sentence.
#pragma once

#include <algorithm>
#include <cstdint>
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
const Beam* beam_of(const Search& search);

inline bool is_contrastive(const Search& search) {
  return std::holds_alternative<Contrastive>(search);
}

// One value for all sentences, or one for each.
template <typename T>
class Each {
 public:
  Each(T all) : values_{std::move(all)} {}
  explicit Each(std::vector<T> each) : values_(std::move(each)) {}

  const T& operator[](int sentence) const { return values_[is_shared() ? 0 : sentence]; }
  bool is_shared() const { return values_.size() == 1; }
  const std::vector<T>& values() const { return values_; }

  template <typename Test>
  bool any(Test&& test) const {
    return std::any_of(values_.begin(), values_.end(), test);
  }
  bool any_but(const T& off) const {
    return any([&](const T& value) { return value != off; });
  }

 private:
  std::vector<T> values_;
};

using Ids = std::vector<int32_t>;
using Biases = std::vector<std::pair<Ids, float>>;

// Rows of equal width, such as all prompts of a call.
struct Table {
  Ids ids;  // [rows, width]
  int width = 0;
};

// Names and values are Hugging Face's where it has one. Steps count from 1.
struct Request {
  int sentences = 1;
  int rows_per_sentence = 1;
  Search search;
  bool process = false;  // scores are made though no option needs them: somebody looks at them

  Each<int32_t> max_new = 1, min_new = 0, pad = 0, forced_first = -1;
  Each<Ids> eos = Ids{}, forced_last = Ids{};
  Each<uint64_t> seed = uint64_t{0};
  Each<int32_t> random_first = 0;
  const int32_t* stop_table = nullptr;  // [states, V], see stop.h
  Each<int32_t> stop_first = 0;

  Each<double> length_penalty = 1.0;
  Each<int32_t> gnmt = 0;  // 1: LengthNormalization::gnmt
  Each<EarlyStopping> early_stopping = EarlyStopping::no;
  Each<float> diversity_rate = 0.0f, diversity_penalty = 0.0f, penalty_alpha = 0.0f;

  Each<float> temperature = 1.0f, top_p = 1.0f, top_h = 0.0f, min_p = 0.0f, typical_p = 1.0f;
  Each<float> epsilon_cutoff = 0.0f, eta_cutoff = 0.0f;
  Each<int32_t> top_k = 0, min_tokens_to_keep = 1;

  Each<float> guidance_scale = 1.0f;
  Each<Biases> sequence_bias = Biases{};
  Each<double> encoder_repetition_penalty = 1.0;
  Each<float> repetition_penalty = 1.0f;
  Each<int32_t> no_repeat_ngram_size = 0, encoder_no_repeat_ngram_size = 0;
  Each<std::vector<Ids>> bad_words = std::vector<Ids>{};
  Each<int32_t> remove_invalid_values = 0, decay_start = 0;
  Each<double> decay_factor = 1.0;
  Each<Ids> suppress_tokens = Ids{}, begin_suppress_tokens = Ids{};
  Each<int32_t> renormalize = 0;
  Table prompt, source;  // [sentences, width], as the caller gave them
  Each<int32_t> prompt_first = 0;

  bool is_guided() const { return guidance_scale.any_but(1.0f); }
  // Whether tokens are chosen from scores: processors.h, filters.h.
  bool is_processed() const;
  // Whether those are filtered before.
  bool is_filtered() const;
  bool reads_row() const;  // the prompt's tokens, and those that followed
  bool reads_source() const;
  // Of a sentence's finished list; 0 where its rows do not end in one.
  int max_finished() const;
  int groups() const;
  int most_new() const;
  // A contrastive search chooses a step's token in the next one.
  int steps() const { return most_new() + (is_contrastive(search) ? 1 : 0); }
  // Next tokens considered for a row.
  int row_candidates() const;
};

// Candidates that a beam search needs, so that enough of them go on whatever ends.
inline int beam_candidates(int eos, int beams) { return std::max(2, 1 + eos) * beams; }

// As the device reads it: config.h.
struct PackedRequest {
  SearchConfig search;
  std::vector<SentenceConfig> sentences;
  std::vector<int32_t> words;

  // On the host.
  ConfigView view() const { return {&search, sentences.data(), words.data()}; }
};

PackedRequest pack(const Request& request);

// Throws for values out of range, and where ids are not below `vocab`.
void check_request(const Request& request, int vocab);

}  // namespace decoding
