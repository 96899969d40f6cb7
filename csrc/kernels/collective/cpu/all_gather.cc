#include "kernels/collective/all_gather.h"

#include <algorithm>

#include "kernels/cpu/split_stream.h"

namespace decoding {

template <typename T, cpu::Isa isa>
void all_gather(cpu::SplitStream<isa>& stream, const AllGatherParams<T>& p) {
  stream.meet();
  const cpu::Collective& ranks = *stream.collective();
  const cpu::Range mine = stream.share(p.rows * ranks.size());
  for (int i = mine.begin; i < mine.end; ++i) {
    const int64_t row = i / ranks.size();
    const int rank = i % ranks.size(), first = first_of(p.cols, rank, ranks.size());
    const int columns = first_of(p.cols, rank + 1, ranks.size()) - first;
    std::copy_n(ranks.part<T>(rank) + row * columns, columns, p.y + row * p.stride + first);
  }
  stream.barrier();
}

template void all_gather(cpu::SplitStream<cpu::Isa::DECODING_ISA>&, const AllGatherParams<float>&);

}  // namespace decoding
