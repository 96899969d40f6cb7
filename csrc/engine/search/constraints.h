// The words that every row of a call must hold (kernels/search/constraints.h), and the memory of a
// search for them. Where it begins is worked out on the host, for both devices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/arena.h"
#include "core/spec.h"
#include "engine/search/batch.h"
#include "kernels/search/constrained.h"

namespace decoding {

template <>
inline const char* type_name<Phrases>() {
  return "phrases";
}
template <>
inline const char* type_name<Ranked>() {
  return "ranked";
}

// Planned for limits.phrases words of tables: no call has more phrases, nor more tokens in them.
struct PhraseMemory {
  Phrases* phrases = nullptr;      // [1]
  int32_t* words = nullptr;        // [phrases], depths, first edges and tokens of the tables
  int32_t* progress = nullptr;     // [2, R, kProgress + phrases]
  Hypothesis* spare = nullptr;     // [R]
  int32_t* spare_count = nullptr;  // [B]
  Ranked* queue = nullptr;         // [R, 1 + phrases]

  PhraseMemory() = default;
  PhraseMemory(Arena& a, const Limits& limits) {
    if (limits.phrases == 0) return;
    const int64_t rows = limits.rows(), most = limits.phrases;
    phrases = a.take<Phrases>("phrases", {1});
    words = a.take<int32_t>("phrase_words", {most});
    progress = a.take<int32_t>("progress", {2, rows, kProgress + most});
    spare = a.take<Hypothesis>("spare", {rows});
    spare_count = a.take<int32_t>("spare_count", {limits.batch});
    queue = a.take<Ranked>("ranked", {rows, 1 + most});
  }
};

// What a search begins with, in the host's memory.
struct PhraseStart {
  Phrases phrases;                // points into PhraseMemory::words
  std::vector<int32_t> words;     // of PhraseMemory
  std::vector<int32_t> progress;  // [sentences * beams, kProgress + phrases], of step 1: they go to
                                  // the second table
};

// beams: of each sentence.
inline PhraseStart start_phrases(const PhraseTables& tables, const Batch& batch, int beams,
                                 const int32_t* words) {
  const auto of = [&](const int32_t* depths) -> Phrases {
    const int32_t* first_edge = depths + tables.depths.size();
    return {.depths = depths,
            .first_edge = first_edge,
            .tokens = first_edge + tables.first_edge.size(),
            .count = static_cast<int>(tables.depths.size()),
            .longest = *std::max_element(tables.depths.begin(), tables.depths.end()),
            .most_wanted = static_cast<int>(tables.tokens.size())};
  };
  PhraseStart start;
  for (const auto* list : {&tables.depths, &tables.first_edge, &tables.tokens}) {
    start.words.insert(start.words.end(), list->begin(), list->end());
  }
  start.phrases = of(words);
  const Phrases here = of(start.words.data());
  const int64_t width = kProgress + here.count;
  start.progress.resize(batch.sentences * beams * width);
  int32_t* to = start.progress.data();
  for (int b = 0; b < batch.sentences; ++b) {
    const int32_t begin = batch.prompt_offsets[b], end = batch.prompt_offsets[b + 1];
    begin_progress(here, batch.prompt + begin, end - begin, to);
    for (int beam = 1; beam < beams; ++beam) std::copy_n(to, width, to + beam * width);
    to += beams * width;
  }
  return start;
}

// In memory that is the host's.
inline void begin_phrases(const PhraseMemory& memory, const PhraseTables& tables,
                          const Batch& batch, int beams, const Limits& limits) {
  const PhraseStart start = start_phrases(tables, batch, beams, memory.words);
  *memory.phrases = start.phrases;
  std::copy(start.words.begin(), start.words.end(), memory.words);
  const int64_t table = int64_t{limits.rows()} * (kProgress + start.phrases.count);
  std::copy(start.progress.begin(), start.progress.end(), memory.progress + table);
  std::fill_n(memory.spare_count, batch.sentences, 0);
}

}  // namespace decoding
