// Chooses the algorithms of a step's products by the time of the step. What is fastest alone need
// not be so between its neighbours: the kernel before still runs while a product's weights are on
// their way, and the one after asks for its own.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/cuda/resources.h"
#include "kernels/cuda/split_stream.h"
#include "kernels/linear/cuda/cublaslt/matmul.h"
#include "kernels/linear/cuda/timing.h"

namespace decoding::cuda {

// The warm-up of a pass through the model, launched by pass(SplitStream&). The algorithms of each
// product that is new and about as fast alone are compared by replays of the pass, one product
// after the other. So the pass runs many times over: none of it may depend on a run before.
template <typename Pass>
void tune_in_place(const SplitStream& stream, Pass&& pass) {
  Tuning& tuning = stream.matmul().tuning();
  tuning.begin_pass();
  SplitStream warm_up = stream.warm_up();
  pass(warm_up);
  if (stream.collective() != nullptr) return;  // ranks would exchange more or less often
  const auto products = tuning.take_candidates();
  if (products.empty()) return;
  const BesideCaptures beside;
  for (const auto& [key, candidates] : products) {
    std::vector<std::optional<Graph>> graphs;
    for (const Timed& candidate : candidates) {
      tuning.use(key, candidate);
      graphs.push_back(Graph::capture([&](cudaStream_t recorder) {
        SplitStream recording(recorder, stream.device(), stream.matmul(), nullptr);
        pass(recording);
      }));
    }
    const std::vector<float> times = time_replays(stream.handle(), graphs);
    tuning.use(key, candidates[std::ranges::min_element(times) - times.begin()]);
  }
  tuning.save();
}

}  // namespace decoding::cuda
