// Kernels one by one, for their tests and benchmarks: decoding._kernels.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "bindings/tensor.h"
#include "bindings/testing/recording.h"
#include "core/types.h"
#include "kernels/cpu/isa.h"
#include "kernels/search/step.h"
#ifdef DECODING_CUDA
#include "bindings/cuda.h"
#endif

namespace decoding {

// Calls op(stream) on every thread of a team of that size, for the instruction set of that name.
template <typename Op>
void on_cpu(const std::string& isa, int threads, Op&& op) {
  cpu::Team team(threads);
  cpu::with_isa(isa, [&]<cpu::Isa chosen>(cpu::Features features) {
    team.run([&](int rank) {
      cpu::Stream<chosen> stream(team, rank, features);
      op(stream);
    });
  });
}

// Keeps a call for later; its parameters point into tensors that are somebody else's.
template <typename Op, typename Params>
void record(Recording& recording, const std::string& isa, int threads, Op op, Params params) {
  cpu::with_isa(isa, [&]<cpu::Isa chosen>(cpu::Features features) {
    recording.add(threads, [=](cpu::Team& team, int rank) {
      cpu::Stream<chosen> stream(team, rank, features);
      op(stream, params);
    });
  });
}

// Runs a kernel, or keeps its call where calls are recorded: op(stream, params).
template <typename Op, typename Params>
void run_on_cpu(const std::string& isa, int threads, Op op, Params params) {
  if (Recording* recording = Recording::current()) {
    return record(*recording, isa, threads, op, params);
  }
  on_cpu(isa, threads, [&](auto& stream) { op(stream, params); });
}

// Runs a kernel where `like` lies, in its type. make<T>(tensors) reads the parameters, op(stream,
// parameters) calls the overload. isa and threads count on the CPU alone.
template <typename Make, typename Op>
void run_kernel(const py::object& like, const std::string& isa, int threads, Make&& make, Op&& op) {
  const std::string device = py::str(like.attr("device"));
  const Tensors tensors(device);
  if (!tensors.on_cuda()) {
    return run_on_cpu(isa, threads, op, make.template operator()<float>(tensors));
  }
#ifdef DECODING_CUDA
  on_cuda(like, [&]<typename T>(cuda::Stream& stream) {
    op(stream, make.template operator()<T>(tensors));
  });
#else
  throw Error("this engine was built without CUDA");
#endif
}

// As run_kernel, with make<T, C>(tensors): C is the type of `cache`, which a step keeps numbers in,
// where that is given.
template <typename Make, typename Op>
void run_with_cache(const py::object& like, const py::object& cache, const std::string& isa,
                    int threads, Make&& make, Op op) {
  const std::string device = py::str(like.attr("device"));
  const Tensors tensors(device);
  if (!tensors.on_cuda() && !cache.is_none() &&
      tensors.view(cache, "cache").type() == number_type<BFloat16>) {
    return run_on_cpu(isa, threads, op, make.template operator()<float, BFloat16>(tensors));
  }
  run_kernel(
      like, isa, threads,
      [&]<typename T>(const Tensors& in) { return make.template operator()<T, T>(in); }, op);
}

// int32 [parts * 2]: a step's number and the sentences that go on.
inline StepState* step_state(const Tensors& in, const py::object& state, int64_t parts = 1) {
  return reinterpret_cast<StepState*>(in.data<int32_t>(state, "state", {2 * parts}));
}

// int32 [sentences, 3]: id, number and position of each; -1: of any number of sentences.
inline ActiveSentence* active_sentences(const Tensors& in, const py::object& active,
                                        int64_t sentences = -1) {
  return reinterpret_cast<ActiveSentence*>(in.data<int32_t>(active, "active", {sentences, 3}));
}

void bind_layers(py::module_& kernels);       // layers.cc
void bind_elementwise(py::module_& kernels);  // elementwise.cc
void bind_attention(py::module_& kernels);    // attention.cc
void bind_depthwise(py::module_& kernels);    // depthwise.cc
void bind_project(py::module_& kernels);      // vocab_projection.cc
void bind_search(py::module_& kernels);       // search.cc
void bind_beams(py::module_& kernels);        // beams.cc
void bind_filters(py::module_& kernels);      // filters.cc
void bind_controls(py::module_& kernels);     // processors.cc
void bind_guidance(py::module_& kernels);     // guidance.cc
void bind_scheduler(py::module_& kernels);    // scheduler.cc
void bind_scheduling(py::module_& kernels);   // scheduling.cc
void bind_overcommit(py::module_& kernels);   // overcommit.cc
void bind_joining(py::module_& kernels);      // joining.cc
#ifdef DECODING_CUDA
void bind_cuda(py::module_& kernels);       // cuda.cc
void bind_exchanges(py::module_& kernels);  // cuda_collective.cc
#endif

}  // namespace decoding
