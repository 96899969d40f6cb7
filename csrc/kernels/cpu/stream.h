// One thread's view of its team. Every thread of the team calls every operator; an operator takes
// its share by rank and ends with a barrier.
#pragma once

#include <algorithm>

#include "kernels/cpu/team.h"
#include "kernels/stream.h"

namespace decoding::cpu {

struct Range {
  int begin, end;
};

template <Isa isa>
class Stream {
 public:
  Stream(Team& team, int rank) : team_(team), rank_(rank) {}

  int rank() const { return rank_; }
  int size() const { return team_.size(); }
  void barrier() { team_.barrier().arrive_and_wait(); }

  // This thread's contiguous share of `items`.
  Range share(int items) const {
    const int each = items / size(), rest = items % size();
    const int begin = rank_ * each + std::min(rank_, rest);
    return {begin, begin + each + (rank_ < rest)};
  }

 private:
  Team& team_;
  const int rank_;
};

}  // namespace decoding::cpu
