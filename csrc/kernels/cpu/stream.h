// One thread's view of its team. Every thread of the team calls every operator; an operator takes
// its share by rank and ends with a barrier.
#pragma once

#include <algorithm>

#include "kernels/cpu/team.h"
#include "kernels/stream.h"

namespace decoding::cpu {

struct Range {
  int begin, end;
  bool holds(int i) const { return begin <= i && i < end; }
};

// Instructions of products that not every machine of an Isa has; only with avx512 and neon.
struct Features {
  bool int8 = false;      // 8-bit dot products: AVX-512's VNNI, Arm's DotProd
  bool int8_mma = false;  // 8-bit matrix products: Arm's I8MM
  bool bf16 = false;      // bfloat16 dot products; on Arm matrix products, too
};

template <Isa isa>
class Stream {
 public:
  Stream(Team& team, int rank, Features features) : team_(team), rank_(rank), features_(features) {}

  int rank() const { return rank_; }
  int size() const { return team_.size(); }
  Features features() const { return features_; }
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
  const Features features_;
};

// See kernels/cuda/resources.h: all streams of a team's threads are one.
template <Isa isa>
void order(const Stream<isa>&, const Stream<isa>&) {}

}  // namespace decoding::cpu
