// The stream of a rank whose model is split over several.
#pragma once

#include "kernels/cuda/collective.h"
#include "kernels/cuda/stream.h"

namespace decoding::cuda {

class SplitStream : public Stream {
 public:
  // collective: null where this process has the whole model.
  SplitStream(cudaStream_t handle, const Device& device, Matmul& matmul, Collective* collective,
              bool warm_up = false)
      : Stream(handle, device, matmul, warm_up), collective_(collective) {}

  Collective* collective() const { return collective_; }

  // The same, on which nothing is launched.
  SplitStream warm_up() const { return {handle(), device(), matmul(), collective_, true}; }

 private:
  Collective* const collective_;
};

}  // namespace decoding::cuda
