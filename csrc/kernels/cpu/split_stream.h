// The stream of a rank whose model is split over several.
#pragma once

#include "kernels/cpu/collective.h"
#include "kernels/cpu/stream.h"

namespace decoding::cpu {

template <Isa isa>
class SplitStream : public Stream<isa> {
 public:
  // collective: null where this process has the whole model.
  SplitStream(Team& team, int rank, Features features, Collective* collective)
      : Stream<isa>(team, rank, features), collective_(collective) {}

  Collective* collective() const { return collective_; }

  // A barrier of all threads of all ranks.
  void meet() {
    if (this->rank() == 0) collective_->meet();
    this->barrier();
  }

 private:
  Collective* const collective_;
};

}  // namespace decoding::cpu
