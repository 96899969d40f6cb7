// Training's operators: decoding._C.training. Tensors are torch's, contiguous, and stay where they
// are; work is done on the current stream of a GPU, or by one team of threads that stays.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "bindings/tensor.h"
#include "bindings/unlocked.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/team.h"
#include "kernels/rows/dropout.h"
#ifdef DECODING_CUDA
#include "bindings/cuda.h"
#endif

namespace decoding {

// Calls use(team) for a team of that size which all of training shares, one caller at a time.
void on_training_team(int threads, const std::function<void(cpu::Team&)>& use);

// Threads that torch would use.
int torch_threads();

// Where tests let an operator run on the CPU; everybody else takes the defaults.
struct OnCpu {
  std::string isa;  // "": the best one
  int threads;      // 0: torch's number, but one for little work

  template <typename Op>
  void run(int64_t elements, Op&& op) const {
    constexpr int64_t kLittle = 1 << 15;  // elements that take no longer than to wake a thread
    const cpu::InstructionSet& chosen =
        isa.empty() ? cpu::instruction_sets().front() : cpu::instruction_set(isa);
    const auto on_team = [&](cpu::Team& team) {
      cpu::with_isa(chosen, [&]<cpu::Isa found>(cpu::Features features) {
        team.run([&](int rank) {
          cpu::Stream<found> stream(team, rank, features);
          op(stream);
        });
      });
    };
    const bool little = threads == 0 && elements < kLittle;
    const int size = little ? 1 : threads > 0 ? threads : torch_threads();
    const Unlocked release;
    if (little) {
      cpu::Team alone(1);
      return on_team(alone);
    }
    on_training_team(size, on_team);
  }
};

// Runs an operator where `like` lies, in its type. make<T>(tensors) reads the parameters,
// op(stream, parameters) calls the overload.
template <typename Make, typename Op>
void run_training(const py::object& like, const OnCpu& place, Make&& make, Op&& op) {
  const TensorView first(like, "tensor");
  const Tensors tensors(first.device());
  if (!tensors.on_cuda()) {
    const std::string& type = first.type();
    const auto run = [&](const auto& params) {
      place.run(first.numel(), [&](auto& stream) { op(stream, params); });
    };
    if (type == number_type<float>) return run(make.template operator()<float>(tensors));
    if (type == number_type<double>) return run(make.template operator()<double>(tensors));
    if (type == number_type<Float16>) return run(make.template operator()<Float16>(tensors));
    CHECK(type == number_type<BFloat16>, "float32, float64, float16 or bfloat16 is expected, got ",
          type);
    return run(make.template operator()<BFloat16>(tensors));
  }
#ifdef DECODING_CUDA
  on_cuda(like, [&]<typename T>(cuda::Stream& stream) {
    const auto params = make.template operator()<T>(tensors);
    const Unlocked release;
    op(stream, params);
  });
#else
  throw Error("this engine was built without CUDA");
#endif
}

// Numbers that kernels need while they run, not initialised: torch's on a GPU, where they may run
// for longer than the call.
class Scratch {
 public:
  template <typename R>
  R* take(const Tensors& in, const py::object& like, int64_t count) {
    if (in.on_cuda()) {
      on_gpu_ = empty_like(like, number_type<R>, {count});
      return TensorView(on_gpu_, "scratch").data<R>();
    }
    on_cpu_ = std::make_unique_for_overwrite<std::byte[]>(count * sizeof(R));
    return reinterpret_cast<R*>(on_cpu_.get());
  }

 private:
  py::object on_gpu_;
  std::unique_ptr<std::byte[]> on_cpu_;
};

// Where kernels on a GPU leave what they find wrong, one for each device and Fault, in the host's
// memory; null on the CPU. Waiting for them would cost more than they do, so it is a later call
// that reports it.
template <typename Fault>
Fault* fault_memory([[maybe_unused]] const Tensors& in) {
#ifdef DECODING_CUDA
  if (in.on_cuda()) {
    static auto& faults = *new std::map<int, cuda::PinnedMemory>;  // outlives Python
    cuda::PinnedMemory& memory = faults[gpu_of(in.device())];
    if (memory.data() == nullptr) {
      memory = cuda::PinnedMemory(sizeof(Fault));
      *static_cast<Fault*>(memory.data()) = {};
    }
    return static_cast<Fault*>(memory.data());
  }
#endif
  return nullptr;
}

// seed: int64 [1], on the CPU or where the tensors are; unused where nothing is dropped.
inline Dropout dropout_of(const Tensors& in, double probability, const py::object& seed) {
  CHECK(probability >= 0.0 && probability <= 1.0, "dropout must be 0 to 1, got ", probability);
  if (probability == 0.0) return {};
  const TensorView view(seed, "seed");
  const auto* const found = view.data<int64_t>({1});
  if (view.device() == "cpu") return Dropout::of(probability, nullptr, *found);
  return Dropout::of(probability, in.data<int64_t>(seed, "seed", {1}), 0);
}

void bind_training_loss(py::module_& training);   // loss.cc
void bind_training_norm(py::module_& training);   // norm.cc
void bind_training_embed(py::module_& training);  // embed.cc

}  // namespace decoding
