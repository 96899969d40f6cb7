// What join.h says of one sentence or row: one text for both devices.
#pragma once

#include "kernels/search/join.h"

namespace decoding {

// The i-th that joins; `active_count` are active already.
DECODING_EVERYWHERE inline void join_sentence(const JoinParams& p, int i, int active_count) {
  const JoiningSentence& joining = p.joining[i];
  const int id = joining.id;
  p.active[active_count + i] = {id, 1, joining.prefix};
  p.prompt_lengths[id] = joining.prompt_length;
  p.first_tokens[id] = joining.first_token;
  p.stop_first[id] = joining.stop_first;
  p.stop_now[id] = 0;
  p.finished_count[id] = p.done[id] = p.fault[id] = 0;
}

DECODING_EVERYWHERE inline void join_row(const JoinParams& p, int id, int beam) {
  const int row = id * p.beams + beam;
  p.sums[row] = beam % (p.beams / p.groups) == 0 ? 0.0f : kFillIn;
  p.length[row] = p.group_counts[row] = 0;
}

// The row that holds position `at` of a row's history.
DECODING_EVERYWHERE inline int first_cache_row(const JoinParams& p, const JoiningSentence& joining,
                                               int beam, int at) {
  return joining.id * p.beams + (at < joining.prefix ? 0 : beam);
}

DECODING_EVERYWHERE inline void fill_row(const FillRowsParams& p, int i, int beam) {
  const ActiveSentence sentence = p.active[i];
  const int id = sentence.id, before = sentence.number - 1, row = i * p.beams + beam;
  p.ids[row] = before == 0 ? p.first_tokens[id]
                           : p.tokens[int64_t{before - 1} * p.total_rows + id * p.beams + beam];
  p.positions[row] = p.prompt_lengths[id] + before;
  p.random_row[row] = p.config.sentences[id].random_first + beam;
}

}  // namespace decoding
