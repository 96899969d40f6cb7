// Columns that ranks share out, on GPUs that write to each other's memory: small parts as words,
// large ones as they are.
#include <algorithm>

#include "kernels/collective/all_gather.h"
#include "kernels/collective/cuda/exchange.cuh"
#include "kernels/cuda/split_stream.h"
#include "kernels/cuda/types.h"

namespace decoding {
namespace cuda {
namespace {

// The part of a rank.
struct Part {
  int first, columns;  // of y
  int stride;          // numbers between rows
  int64_t units;
};

template <typename T>
DECODING_EVERYWHERE Part part_of(const AllGatherParams<T>& p, int rank, int ranks) {
  constexpr int kAlignment = Collective::kRowAlignment;
  const int first = first_of(p.cols, rank, ranks);
  const int columns = first_of(p.cols, rank + 1, ranks) - first;
  const int stride = (columns + kAlignment - 1) / kAlignment * kAlignment;
  return {first, columns, stride, int64_t{p.rows} * stride / kUnitSize<T>};
}

// Units lie in one row each.
template <typename T>
__device__ void place(const AllGatherParams<T>& p, const Part& part, int64_t unit, uint4 numbers) {
  const int64_t at = unit * kUnitSize<T>, row = at / part.stride;
  const int column = static_cast<int>(at - row * part.stride);
  T* y = p.y + row * p.stride + part.first + column;
  if (column + kUnitSize<T> <= part.columns && reinterpret_cast<uintptr_t>(y) % kUnit == 0) {
    *reinterpret_cast<uint4*>(y) = numbers;
    return;
  }
  const T* each = reinterpret_cast<const T*>(&numbers);
#pragma unroll
  for (int i = 0; i < kUnitSize<T>; ++i) {
    if (column + i < part.columns) y[i] = each[i];
  }
}

template <typename T, bool small>
__global__ void __launch_bounds__(kExchangeThreads)
    all_gather_kernel(const __grid_constant__ Peers peers, const T* part,
                      const AllGatherParams<T> p) {
  wait_for_previous();
  let_next_start();
  const Exchange exchange(peers);
  const Part own = part_of(p, peers.rank, peers.size);
  for_units(own.units, [&](int64_t unit) {
    const uint4 numbers = load_unit(part, unit);
    if constexpr (small) {
      exchange.send(unit, numbers);
    } else {
      for (int i = 1; i < peers.size; ++i) {
        store_shared(exchange.at_other((peers.rank + i) % peers.size), unit, numbers);
      }
    }
    place(p, own, unit, numbers);
  });
  if constexpr (!small) exchange.meet(0);
  for (int i = 1; i < peers.size; ++i) {
    const int rank = (peers.rank + i) % peers.size;
    const Part other = part_of(p, rank, peers.size);
    for_units(other.units, [&](int64_t unit) {
      place(p, other, unit,
            small ? exchange.receive(rank, unit) : load_shared(exchange.from_other(rank), unit));
    });
  }
  exchange.leave();
}

}  // namespace
}  // namespace cuda

template <typename T>
void all_gather(cuda::SplitStream& stream, const AllGatherParams<T>& p) {
  const cuda::Collective& ranks = *stream.collective();
  // The last rank has as many columns as any, and all ranks must choose the same kernel.
  const int64_t units = cuda::part_of(p, ranks.size() - 1, ranks.size()).units;
  const bool small = units * cuda::kUnit <= cuda::kSmallPart;
  launch(stream, small ? cuda::all_gather_kernel<T, true> : cuda::all_gather_kernel<T, false>,
         cuda::exchange_grid(stream.device(), units), dim3(cuda::kExchangeThreads), 0,
         ranks.peers(), ranks.part<T>(), p);
}

#define INSTANTIATE(T) template void all_gather(cuda::SplitStream&, const AllGatherParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
