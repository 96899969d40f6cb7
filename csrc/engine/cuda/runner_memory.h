// What the passes of a runner on a GPU and its classes of requests share.
#pragma once

#include <string>
#include <vector>

#include "engine/cuda/inputs.h"
#include "engine/cuda/request_class.h"
#include "engine/cuda/split_scratch.h"
#include "engine/model/workspace.h"
#include "engine/runner.h"
#include "kernels/linear/cuda/cublaslt/matmul.h"

namespace decoding {

// Those of a pass: each class may have as many places again, for sentences that have ended, or are
// yet to come.
inline Limits places_of(const RunnerLimits& limits) {
  Limits places = rows_of(limits);
  places.batch *= 2;
  return places;
}

// Of all classes.
inline int64_t runner_arrivals(const RunnerLimits& limits) {
  return select_arrivals(places_of(limits)) + limits.classes - 1;
}

template <typename T, typename C>
struct CudaRunnerMemory {
  Workspace<T> w{};
  Cache<C> cache{};
  StepScratch scratch{};
  uint8_t* products = nullptr;
  int64_t rows = 0;  // that a step may have
  std::vector<CudaClass<T>> classes;

  CudaRunnerMemory() = default;
  CudaRunnerMemory(Arena& arena, const ModelSpec& spec, const RunnerLimits& limits,
                   const cuda::Matmul& matmul) {
    const Limits all = places_of(limits);
    rows = all.rows();
    w = Workspace<T>(
        arena, spec, all, kRowAlignment,
        [&](auto& w) {
          cache = Cache<C>(arena, spec, all);
          scratch = StepScratch(arena, all);
          scratch.arrivals = arena.take<int32_t>("select_arrivals", {runner_arrivals(limits)});
          scratch.perturbed = arena.take<float>("perturbed", {all.rows(), w.logits_stride});
          products = arena.take<uint8_t>("products", {static_cast<int64_t>(matmul.bytes())});
          classes.reserve(limits.classes);
          for (int i = 0; i < limits.classes; ++i) {
            arena.prefixed("class " + std::to_string(i) + ": ", [&] {
              classes.emplace_back(arena, spec, i, rows_of(limits), limits.words);
            });
          }
        },
        [&](auto& w) {
          take_split_scratch(arena, split_scratch(spec, all, matmul.deterministic()),
                             spec.decoder.head_dim, w);
        });
  }
};

}  // namespace decoding
