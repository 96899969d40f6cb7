// The memory of a pass on the CPU.
#pragma once

#include "engine/model/cache.h"
#include "engine/model/workspace.h"
#include "engine/search/step.h"
#include "kernels/linear/linear.h"
#include "kernels/search/processors.h"

namespace decoding {

// T: of activations; C: of the keys and values that are kept.
template <typename T, typename C>
struct CpuMemory {
  Cache<C> cache;
  StepScratch scratch;
  Workspace<T> w;

  CpuMemory() = default;
  // take_more(): takes what else is needed for good.
  template <typename TakeMore>
  CpuMemory(Arena& arena, const ModelSpec& spec, const Limits& limits, int threads,
            TakeMore&& take_more)
      : w(
            arena, spec, limits, 1,
            [&](auto& workspace) {
              cache = Cache<C>(arena, spec, limits);
              const int64_t bytes = linear_scratch(kScratchRows, spec.widest_input());
              workspace.products = arena.take<uint8_t>("products", {bytes});
              take_more();
            },
            [&](auto&) { scratch = step_scratch(arena, limits, spec.decoder.vocab, threads); }) {}

 private:
  static StepScratch step_scratch(Arena& arena, const Limits& limits, int64_t vocab,
                                  int64_t threads) {
    StepScratch scratch(arena, limits);
    scratch.queue = arena.take<Candidate>("queue", {threads, vocab});
    scratch.maxima = arena.take<float>("maxima", {threads, groups_of(vocab)});
    scratch.marks =
        arena.take<uint32_t>("marks", {limits.controls > 0 ? threads : 0, marks_size(vocab)});
    scratch.best =
        arena.take<Candidate>("threads_best", {threads, limits.rows(), limits.candidates});
    return scratch;
  }
};

}  // namespace decoding
