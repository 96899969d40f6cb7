// Bookkeeping of rows: what a step takes in, what the next one reads, who joins.
#include "kernels/search/guidance.h"
#include "kernels/search/join.h"
#include "kernels/search/update.h"
#include "tests/aarch64/beam_setup.h"
#include "tests/aarch64/cases.h"

namespace decoding {
namespace {

template <cpu::Isa isa>
void bookkeeping(Machine<isa>& machine) {
  BeamSetup<isa> setup(machine);
  std::vector<Candidate> chosen(setup.best.begin(), setup.best.begin() + kRows);
  std::vector<int32_t> length(kRows), ids(kRows), positions(kRows), random_row(kRows);
  const std::vector<int32_t> prompt_lengths{3, 2};
  const UpdateRowsParams update{
      .chosen = chosen.data(),
      .lse = setup.lse.data(),
      .active = setup.active.data(),
      .config = setup.config(),
      .stop = {setup.stop_now.data(), setup.stop_first.data(), setup.stop_states.data()},
      .state = &setup.state,
      .tokens = setup.tokens.data(),
      .length = length.data(),
      .done = setup.done.data(),
      .fault = setup.fault.data(),
      .sentences = kSentences,
      .beams = kBeams,
      .total_rows = kRows,
      .vocab = kVocab,
      .fallback = -1};
  const GatherActiveParams gather{.state = &setup.state,
                                  .done = setup.done.data(),
                                  .prompt_lengths = prompt_lengths.data(),
                                  .tokens = setup.tokens.data(),
                                  .config = setup.config(),
                                  .active = setup.active.data(),
                                  .ids = ids.data(),
                                  .positions = positions.data(),
                                  .random_row = random_row.data(),
                                  .beams = kBeams,
                                  .total_rows = kRows};
  const ResetCacheIndirectionParams reset{setup.cache_indirection.data(), kRows, kBeams, kHistory,
                                          3};
  machine.run([&](auto& stream) {
    update_rows(stream, update);
    gather_active(stream, gather);
    reset_cache_indirection(stream, reset);
  });
  setup.answer("update_rows");
  machine.answer("gather_active/ids", ids);
  machine.answer("gather_active/positions", positions);
  machine.answer("update_rows/length", length);
}

template <cpu::Isa isa>
void joining(Machine<isa>& machine) {
  SearchSetup setup(machine);
  setup.state.active_count = 1;
  const JoiningSentence newcomer{1, 2, 3, 17, 0};
  std::vector<int32_t> prompts{3, 0}, first_tokens{8, 0}, counts(kSentences), done(kSentences),
      fault(kSentences), length(kRows), group_counts(kRows), ids(kRows), positions(kRows),
      random_row(kRows);
  const JoinParams join{.joining = &newcomer,
                        .state = &setup.state,
                        .active = setup.active.data(),
                        .prompt_lengths = prompts.data(),
                        .first_tokens = first_tokens.data(),
                        .stop_first = setup.stop_first.data(),
                        .stop_now = setup.stop_now.data(),
                        .finished_count = counts.data(),
                        .done = done.data(),
                        .fault = fault.data(),
                        .sums = setup.sums.data(),
                        .length = length.data(),
                        .group_counts = group_counts.data(),
                        .cache_indirection = setup.cache_indirection.data(),
                        .count = 1,
                        .beams = kBeams,
                        .groups = 1,
                        .total_rows = kRows,
                        .history = kHistory};
  const FillRowsParams fill{.state = &setup.state,
                            .active = setup.active.data(),
                            .prompt_lengths = prompts.data(),
                            .first_tokens = first_tokens.data(),
                            .tokens = setup.tokens.data(),
                            .config = setup.config(),
                            .ids = ids.data(),
                            .positions = positions.data(),
                            .random_row = random_row.data(),
                            .sentences = kSentences,
                            .beams = kBeams,
                            .total_rows = kRows};
  machine.run([&](auto& stream) {
    join_sentences(stream, join);
    fill_rows(stream, fill);
  });
  machine.answer("join_sentences/sums", setup.sums);
  machine.answer("join_sentences/cache_indirection", setup.cache_indirection);
  machine.answer("fill_rows/ids", ids);
  machine.answer("fill_rows/positions", positions);

  const std::vector<int32_t> twins{1, 0}, twin_ids{4, 6};
  StepState all_state{};
  std::vector<ActiveSentence> all(2 * kSentences);
  std::vector<int32_t> all_ids(2 * kRows), all_positions(2 * kRows);
  setup.state.active_count = 1;
  const UnconditionalRowsParams twin{.state = &setup.state,
                                     .active = setup.active.data(),
                                     .ids = ids.data(),
                                     .unconditional = twins.data(),
                                     .unconditional_ids = twin_ids.data(),
                                     .prompt_lengths = prompts.data(),
                                     .cache_indirection = setup.cache_indirection.data(),
                                     .all_state = &all_state,
                                     .all_active = all.data(),
                                     .all_ids = all_ids.data(),
                                     .all_positions = all_positions.data(),
                                     .sentences = kSentences,
                                     .beams = kBeams,
                                     .total_rows = kRows,
                                     .history = kHistory};
  machine.run([&](auto& stream) { unconditional_rows(stream, twin); });
  machine.answer("unconditional_rows/ids", all_ids);
  machine.answer("unconditional_rows/cache_indirection", setup.cache_indirection);
}

}  // namespace

template <cpu::Isa isa>
void update_cases(Machine<isa>& machine) {
  bookkeeping(machine);
  joining(machine);
}

DECODING_FOR_ISAS(update_cases)

}  // namespace decoding
