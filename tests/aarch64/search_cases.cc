// From candidates to the next step: the searches.
#include "kernels/search/constrained.h"
#include "kernels/search/contrastive.h"
#include "kernels/search/diverse.h"
#include "tests/aarch64/beam_setup.h"
#include "tests/aarch64/cases.h"

namespace decoding {
namespace {

constexpr int kMerged = 3 * kBeams;

template <cpu::Isa isa>
void beam_searches(Machine<isa>& machine) {
  BeamSetup<isa> setup(machine);
  auto candidates = setup.merged(kMerged);
  machine.answer("merge_beams", candidates);
  const BeamStepParams p{setup.beams(), candidates.data(), nullptr, kSentences, kMerged};
  machine.run([&](auto& stream) { beam_step(stream, p); });
  setup.answer("beam_step");

  BeamSetup<isa> diverse(machine);
  diverse.search.groups = kBeams;
  for (SentenceConfig& sentence : diverse.sentences) sentence.beam.group_penalty = 0.8f;
  std::vector<int32_t> counts(kRows);
  std::vector<KeyedCandidate> queue(kRows * kBest);
  const DiverseStepParams<float> d{.search = diverse.beams(),
                                   .best = diverse.best.data(),
                                   .lse = diverse.lse.data(),
                                   .processors = nullptr,
                                   .group_counts = counts.data(),
                                   .queue = queue.data(),
                                   .sentences = kSentences,
                                   .k = kBest,
                                   .m = 3};
  machine.run([&](auto& stream) { diverse_step(stream, d); });
  diverse.answer("diverse_step");
}

template <cpu::Isa isa>
void constrained(Machine<isa>& machine) {
  BeamSetup<isa> setup(machine);
  // Two phrases: token 30, then 31; token 40.
  const int32_t depths[] = {2, 1}, first_edge[] = {0, 1, 2, 3, 3, 3}, tokens[] = {30, 40, 31};
  const Phrases phrases{depths, first_edge, tokens, 2, 2, 2};
  constexpr int kWidth = kProgress + 2;
  std::vector<int32_t> progress(2 * kRows * kWidth), spare_count(kSentences);
  for (int row = 0; row < 2 * kRows; ++row) {
    begin_progress(phrases, row % 2 ? tokens : nullptr, row % 2, &progress[row * kWidth]);
  }
  std::vector<Hypothesis> spare(kRows);
  std::vector<Ranked> queue(kRows * (1 + phrases.most_wanted));
  const auto candidates = setup.merged(kMerged);
  const ConstrainedStepParams p{.search = setup.beams(),
                                .phrases = &phrases,
                                .candidates = candidates.data(),
                                .best = setup.best.data(),
                                .scores = setup.logits.data(),
                                .progress = progress.data(),
                                .spare = spare.data(),
                                .spare_count = spare_count.data(),
                                .queue = queue.data(),
                                .sentences = kSentences,
                                .k = kBest,
                                .m = kMerged,
                                .stride = kVocab};
  machine.run([&](auto& stream) { constrained_step(stream, p); });
  setup.answer("constrained_step");
  machine.answer("constrained_step/progress", progress);
}

template <cpu::Isa isa>
void contrastive(Machine<isa>& machine) {
  constexpr int kSize = 21;
  BeamSetup<isa> setup(machine);
  for (SentenceConfig& sentence : setup.sentences) sentence.alpha = 0.6f;
  const auto x = machine.numbers(kRows * kSize);
  auto hidden = machine.numbers(kRows * kHistory * kSize);
  std::vector<float> similarity(kRows);
  const ContrastParams<float> p{.x = x.data(),
                                .hidden = hidden.data(),
                                .prompt = nullptr,
                                .prompt_offsets = nullptr,
                                .cache_indirection = setup.cache_indirection.data(),
                                .active = setup.active.data(),
                                .state = &setup.state,
                                .similarity = similarity.data(),
                                .sentences = kSentences,
                                .beams = kBeams,
                                .size = kSize,
                                .total_rows = kRows,
                                .history = kHistory,
                                .slots = kBeams};
  machine.run([&](auto& stream) { contrast(stream, p); });
  machine.answer("contrast", similarity);
  machine.answer("contrast/hidden", hidden);
  std::vector<Candidate> best;  // [rows, K]
  for (int row = 0; row < kRows; ++row) {
    best.insert(best.end(), &setup.best[row * kBest], &setup.best[row * kBest + kBeams]);
  }
  const ContrastStepParams step{setup.beams(), best.data(), setup.lse.data(), similarity.data(),
                                kSentences};
  machine.run([&](auto& stream) { contrast_step(stream, step); });
  setup.answer("contrast_step");
}

}  // namespace

template <cpu::Isa isa>
void search_cases(Machine<isa>& machine) {
  beam_searches(machine);
  constrained(machine);
  contrastive(machine);
}

DECODING_FOR_ISAS(search_cases)

}  // namespace decoding
