// From logits to candidates: scans, processors, filters, draws.
#include "kernels/search/filters.h"
#include "kernels/search/gumbel_topk.h"
#include "kernels/search/processors.h"
#include "kernels/search/sampling.h"
#include "kernels/search/topk.h"
#include "tests/aarch64/cases.h"
#include "tests/aarch64/search_setup.h"

namespace decoding {
namespace {

constexpr int kThreads = 2;

template <cpu::Isa isa>
void scans(Machine<isa>& machine) {
  SearchSetup setup(machine);
  machine.answer("scan_logits/max", setup.group_max);
  machine.answer("scan_logits/sum", setup.group_sum);
  machine.answer("scan_logits/lse", setup.lse);
  std::vector<Candidate> best(kRows * kBest), queue(kThreads * kVocab);
  std::vector<float> maxima(kThreads * kGroups);
  const TopKParams<float> top{setup.logits.data(),
                              setup.group_max.data(),
                              best.data(),
                              queue.data(),
                              maxima.data(),
                              kRows,
                              kVocab,
                              kBest};
  machine.run([&](auto& stream) { topk(stream, top); });
  machine.answer("topk", best);
  const ConstrainLogitsParams<float> p{setup.logits.data(),
                                       setup.group_max.data(),
                                       setup.group_sum.data(),
                                       setup.lse.data(),
                                       setup.config(),
                                       &setup.state,
                                       setup.active.data(),
                                       kBeams,
                                       kVocab};
  machine.run([&](auto& stream) { constrain_logits(stream, p); });
  machine.answer("constrain_logits", setup.logits);
  machine.answer("constrain_logits/lse", setup.lse);
}

template <cpu::Isa isa>
void processors(Machine<isa>& machine) {
  SearchSetup setup(machine);
  setup.sentences[0].processors.penalty = 1.3f;
  setup.sentences[0].processors.ngram = 1;
  setup.sentences[0].processors.suppressed = setup.add({11, 12, 13});
  setup.sentences[1].processors.guidance = 1.7f;
  setup.sentences[1].processors.decay_start = 0;
  setup.sentences[1].processors.decay_factor = 1.2;
  Span biases = setup.add({7, std::bit_cast<int32_t>(0.75f), 40, std::bit_cast<int32_t>(-1.5f)});
  biases.count = 2;
  for (SentenceConfig& sentence : setup.sentences) {
    const Span prompt = setup.add({3, 4, 5, 6}), source = setup.add({20, 21, 22});
    sentence.processors.prompt = prompt.begin;
    sentence.processors.prompt_width = prompt.count;
    sentence.processors.source = source.begin;
    sentence.processors.source_width = source.count;
    sentence.processors.encoder_penalty = 1.4f;
    sentence.processors.biases = biases;
  }
  const auto unconditional = machine.numbers(kRows * kVocab, 5.0f);
  const auto ids = machine.ids(kRows, kVocab);
  std::vector<float> scores(kRows * kVocab), lse(2 * kRows);
  std::vector<uint32_t> marks(kThreads * marks_size(kVocab));
  const ProcessLogitsParams<float> p{.logits = setup.logits.data(),
                                     .unconditional = unconditional.data(),
                                     .scores = scores.data(),
                                     .lse = lse.data(),
                                     .unconditional_lse = lse.data() + kRows,
                                     .config = setup.config(),
                                     .state = &setup.state,
                                     .active = setup.active.data(),
                                     .ids = ids.data(),
                                     .tokens = setup.tokens.data(),
                                     .cache_indirection = setup.cache_indirection.data(),
                                     .marks = marks.data(),
                                     .sentences = kSentences,
                                     .beams = kBeams,
                                     .vocab = kVocab,
                                     .stride = kVocab,
                                     .score_stride = kVocab,
                                     .total_rows = kRows,
                                     .history = kHistory,
                                     .stages = kAllStages,
                                     .competing = true};
  machine.run([&](auto& stream) { process_logits(stream, p); });
  machine.answer("process_logits", scores);
  machine.answer("process_logits/lse", lse);
}

template <cpu::Isa isa>
void filters(Machine<isa>& machine) {
  const FilterConfig configs[] = {{.temperature = 0.7f, .top_k = 40},
                                  {.top_p = 0.8f},
                                  {.top_h = 0.5f},
                                  {.min_p = 0.02f, .typical_p = 0.7f},
                                  {.epsilon = 0.004f, .eta = 0.01f}};
  SearchSetup setup(machine);
  std::vector<Candidate> queue(kThreads * kVocab), chosen(kRows), best(kRows * kBest);
  std::vector<float> maxima(kThreads * kGroups), keys(kRows * kBest);
  const std::vector<int32_t> random_row{0, 1, 2, 3, 4, 5};
  for (size_t i = 0; i < std::size(configs); ++i) {
    const std::string name = "/" + std::to_string(i);
    for (SentenceConfig& sentence : setup.sentences) sentence.filters = configs[i];
    std::vector<float> scores = setup.logits, group_max = setup.group_max;
    const FilterParams p{scores.data(),    setup.config(), &setup.state,  setup.active.data(),
                         group_max.data(), queue.data(),   maxima.data(), kSentences,
                         kBeams,           kVocab,         kVocab};
    machine.run([&](auto& stream) { filter_scores(stream, p); });
    machine.answer("filter_scores" + name, scores);
    // Draws from what is left, and from all with the filters of sampling itself.
    for (const int32_t processed : {0, 1}) {
      setup.search.processed = processed;
      const SampleParams<float> draw{processed ? scores.data() : setup.logits.data(),
                                     processed ? group_max.data() : setup.group_max.data(),
                                     random_row.data(),
                                     setup.active.data(),
                                     setup.config(),
                                     chosen.data(),
                                     queue.data(),
                                     maxima.data(),
                                     &setup.state,
                                     kBeams,
                                     kVocab};
      machine.run([&](auto& stream) { sample(stream, draw); });
      machine.answer("sample" + name + "/" + std::to_string(processed), chosen);
    }
    const SampleCandidatesParams several{.scores = scores.data(),
                                         .sums = setup.sums.data(),
                                         .config = setup.config(),
                                         .state = &setup.state,
                                         .active = setup.active.data(),
                                         .best = best.data(),
                                         .keys = keys.data(),
                                         .sentences = kSentences,
                                         .beams = kBeams,
                                         .m = kBest,
                                         .vocab = kVocab,
                                         .stride = kVocab};
    machine.run([&](auto& stream) { sample_candidates(stream, several); });
    machine.answer("sample_candidates" + name, best);
    machine.answer("sample_candidates/keys" + name, keys);
  }
}

}  // namespace

template <cpu::Isa isa>
void selection_cases(Machine<isa>& machine) {
  scans(machine);
  processors(machine);
  filters(machine);
}

DECODING_FOR_ISAS(selection_cases)

}  // namespace decoding
