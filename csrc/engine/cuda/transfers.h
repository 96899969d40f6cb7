// What goes between the host and a GPU around a search, through memory that both can reach: a
// call's inputs over in one copy, its results back in one go.
#pragma once

#include <cstdint>

#include "engine/model/labelled.h"
#include "engine/model/workspace.h"
#include "engine/search/faults.h"
#include "engine/search/results.h"
#include "kernels/cuda/resources.h"

namespace decoding {

class CudaTransfers {
 public:
  CudaTransfers() = default;
  CudaTransfers(const ModelSpec& spec, const Limits& limits) : slots_(limits.rows()) {
    Arena measured;
    Inputs(measured, spec, limits);
    staging_ = cuda::PinnedMemory(measured.bytes());
    Arena arena(staging_.data(), staging_.bytes());
    inputs_ = Inputs(arena, spec, limits);
    const size_t trellis = sizeof(int32_t) * limits.target * limits.rows();
    tokens_ = cuda::PinnedMemory(trellis);
    parents_ = cuda::PinnedMemory(trellis);
    finished_ = cuda::PinnedMemory(sizeof(Hypothesis) * limits.batch * limits.places());
  }

  // to: the head of the pool.
  void send(const Inputs& to, const Batch& batch, const ModelSpec& spec, const Limits& limits,
            int groups, cudaStream_t stream) const {
    fill_inputs(inputs_, batch, spec, limits, groups);
    send(to, stream);
  }
  void send(const Inputs& to, const Labelled& labelled, const ModelSpec& spec,
            cudaStream_t stream) const {
    fill_labelled(inputs_, labelled, spec);
    send(to, stream);
  }

  // Waits for what was launched. steps: of the trellis, at least those that were needed.
  template <typename T>
  void fetch(const Workspace<T>& w, int steps, int sentences, int beams, int places,
             cudaStream_t stream) const {
    const int rows = sentences * beams;
    const size_t trellis = sizeof(int32_t) * steps * slots_;
    copy(tokens_.data(), w.tokens, trellis, stream);
    copy(parents_.data(), w.parents, trellis, stream);
    copy(finished_.data(), w.finished, sizeof(Hypothesis) * sentences * places, stream);
    copy(inputs_.length, w.inputs.length, sizeof(int32_t) * rows, stream);
    copy(inputs_.fault, w.inputs.fault, sizeof(int32_t) * sentences, stream);
    copy(inputs_.state, w.inputs.state, sizeof(StepState), stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    check_faults(inputs_.fault, inputs_.items, sentences);
  }

  // After fetch(). places: of a sentence's finished list; 0 where its rows do not end in one.
  void write(int sentences, int beams, int places, const Results& results) const {
    const int steps = inputs_.state->number - 1;
    CHECK(results.width >= steps, "results need ", steps, " columns, got ", results.width);
    const Trellis trellis{static_cast<const int32_t*>(tokens_.data()),
                          static_cast<const int32_t*>(parents_.data()), slots_};
    if (places > 0) {
      take_finished(trellis, static_cast<const Hypothesis*>(finished_.data()), sentences, beams,
                    places, results);
    } else {
      take_rows(trellis, inputs_.length, steps, sentences, beams, results);
    }
  }

 private:
  void send(const Inputs& to, cudaStream_t stream) const {
    CUDA_CHECK(cudaMemcpyAsync(to.source.ids, staging_.data(), staging_.bytes(),
                               cudaMemcpyHostToDevice, stream));
  }
  static void copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream));
  }

  int slots_ = 0;
  cuda::PinnedMemory staging_, tokens_, parents_, finished_;
  Inputs inputs_{};  // in staging_
};

}  // namespace decoding
