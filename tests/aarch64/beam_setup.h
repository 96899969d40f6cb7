// Candidates of a search, and all that its steps write.
#pragma once

#include "kernels/search/topk.h"
#include "tests/aarch64/search_setup.h"

namespace decoding {

template <cpu::Isa isa>
struct BeamSetup : SearchSetup {
  Machine<isa>& machine;
  std::vector<Candidate> best;
  std::vector<Hypothesis> finished;
  std::vector<int32_t> finished_count, done, fault;

  explicit BeamSetup(Machine<isa>& of)
      : SearchSetup(of),
        machine(of),
        best(kRows * kBest),
        finished(kRows),
        finished_count(kSentences),
        done(kSentences),
        fault(kSentences) {
    std::vector<Candidate> queue(2 * kVocab);
    std::vector<float> maxima(2 * kGroups);
    const TopKParams<float> p{
        logits.data(), group_max.data(), best.data(), queue.data(), maxima.data(),
        kRows,         kVocab,           kBest};
    machine.run([&](auto& stream) { topk(stream, p); });
    // Some beams end here.
    sentences[1].eos = add({best[kBeams * kBest].id, best[kBeams * kBest + 2].id});
    sentences[0].min_new = 0;
  }

  BeamSearch beams() {
    return {.lse = lse.data(),
            .active = active.data(),
            .config = config(),
            .state = &state,
            .stop = {stop_now.data(), stop_first.data(), stop_states.data()},
            .sums = sums.data(),
            .tokens = tokens.data(),
            .parents = parents.data(),
            .cache_indirection = cache_indirection.data(),
            .finished = finished.data(),
            .finished_count = finished_count.data(),
            .done = done.data(),
            .fault = fault.data(),
            .beams = kBeams,
            .vocab = kVocab,
            .total_rows = kRows,
            .history = kHistory};
  }

  std::vector<Candidate> merged(int m) {
    std::vector<Candidate> candidates(kSentences * m);
    std::vector<KeyedCandidate> queue(kRows * kBest);
    const MergeBeamsParams p{.best = best.data(),
                             .keys = nullptr,
                             .lse = lse.data(),
                             .sums = sums.data(),
                             .active = active.data(),
                             .config = config(),
                             .state = &state,
                             .candidates = candidates.data(),
                             .queue = queue.data(),
                             .sentences = kSentences,
                             .beams = kBeams,
                             .k = kBest,
                             .m = m,
                             .vocab = kVocab};
    machine.run([&](auto& stream) { merge_beams(stream, p); });
    return candidates;
  }

  void answer(const std::string& name) const {
    machine.answer(name + "/sums", sums);
    machine.answer(name + "/tokens", tokens);
    machine.answer(name + "/parents", parents);
    machine.answer(name + "/cache_indirection", cache_indirection);
    machine.answer(name + "/finished", finished);
    machine.answer(name + "/done", done);
  }
};

}  // namespace decoding
