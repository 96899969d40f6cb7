#include "kernels/collective/all_reduce.h"

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/split_stream.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kBlock = 512;  // columns that a thread takes at a time: few rows are shared out too

// From element `at` of the parts on, whose column is `column`.
void add_parts(const Collective& ranks, const AllReduceParams<float>& p, int64_t at, int column,
               int columns) {
  for_vectors(columns, [&](int c, auto... count) {
    Floats sum = load(ranks.part<float>(0) + at + c, count...);
    for (int rank = 1; rank < ranks.size(); ++rank) {
      sum += load(ranks.part<float>(rank) + at + c, count...);
    }
    if (p.bias != nullptr) sum += load(p.bias + column + c, count...);
    if (p.residual != nullptr) sum += load(p.residual + at + c, count...);
    store(p.y + at + c, sum, count...);
  });
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void all_reduce(cpu::SplitStream<isa>& stream, const AllReduceParams<T>& p) {
  stream.meet();
  const int blocks = (p.cols + cpu::kBlock - 1) / cpu::kBlock;
  const cpu::Range mine = stream.share(p.rows * blocks);
  for (int i = mine.begin; i < mine.end; ++i) {
    const int column = i % blocks * cpu::kBlock;
    cpu::add_parts(*stream.collective(), p, int64_t{i / blocks} * p.cols + column, column,
                   std::min(cpu::kBlock, p.cols - column));
  }
  stream.barrier();
}

template void all_reduce(cpu::SplitStream<cpu::Isa::DECODING_ISA>&, const AllReduceParams<float>&);

}  // namespace decoding
