// y = x_0 + x_1 + ... + x_{n-1} + bias + residual, where x_r is the part of rank r, on GPUs that
// write to each other's memory: small parts in one shot, as words; large ones in two, where each
// rank adds up its piece and sends the others what it has found. The bits are the same.
#include <algorithm>

#include "kernels/collective/all_reduce.h"
#include "kernels/collective/cuda/exchange.cuh"
#include "kernels/cuda/split_stream.h"
#include "kernels/cuda/vector.cuh"

namespace decoding {
namespace cuda {
namespace {

template <typename T>
struct Unit {
  T numbers[kUnitSize<T>];
};

template <typename T>
__device__ __forceinline__ Unit<T> numbers_in(uint4 unit) {
  return reinterpret_cast<const Unit<T>&>(unit);
}

// sum over ranks q of part_of(q), in their order.
template <typename T, typename PartOf>
__device__ __forceinline__ void add_parts(int ranks, float (&sum)[kUnitSize<T>], PartOf&& part_of) {
  for (int rank = 0; rank < ranks; ++rank) {
    const Unit<T> part = numbers_in<T>(part_of(rank));
#pragma unroll
    for (int i = 0; i < kUnitSize<T>; ++i) {
      sum[i] = rank == 0 ? to_float(part.numbers[i]) : sum[i] + to_float(part.numbers[i]);
    }
  }
}

// Whether a unit of `count` numbers can be read and written at once. Rows need not lie on units,
// and the last unit may reach beyond them.
template <typename T>
__device__ __forceinline__ bool is_whole(const T* numbers, int64_t unit, int64_t count) {
  return (unit + 1) * kUnitSize<T> <= count && reinterpret_cast<uintptr_t>(numbers) % kUnit == 0;
}

// What is added to the sums of a unit.
template <typename T>
struct Addends {
  float bias[kUnitSize<T>];
  uint4 residual;
};

template <typename T>
__device__ __forceinline__ Addends<T> addends_of(const AllReduceParams<T>& p, int64_t unit) {
  const int64_t first = unit * kUnitSize<T>, count = int64_t{p.rows} * p.cols;
  Addends<T> found{};
  if (p.bias != nullptr) {
    int col = static_cast<int>(first % p.cols);
#pragma unroll
    for (int i = 0; i < kUnitSize<T>; ++i) {
      found.bias[i] = p.bias[col];
      col = col + 1 == p.cols ? 0 : col + 1;
    }
  }
  if (p.residual == nullptr) return found;
  if (is_whole(p.residual, unit, count)) {
    found.residual = load_unit(p.residual, unit);
    return found;
  }
  auto& residual = reinterpret_cast<Unit<T>&>(found.residual);
#pragma unroll
  for (int i = 0; i < kUnitSize<T>; ++i) {
    if (first + i < count) residual.numbers[i] = p.residual[first + i];
  }
  return found;
}

template <typename T>
__device__ __forceinline__ uint4 finished(const AllReduceParams<T>& p,
                                          const float (&sum)[kUnitSize<T>],
                                          const Addends<T>& addends) {
  const Unit<T> residual = numbers_in<T>(addends.residual);
  uint4 numbers{};
  auto& y = reinterpret_cast<Unit<T>&>(numbers);
#pragma unroll
  for (int i = 0; i < kUnitSize<T>; ++i) {
    float x = sum[i];
    if (p.bias != nullptr) x += addends.bias[i];
    if (p.residual != nullptr) x += to_float(residual.numbers[i]);
    y.numbers[i] = from_float<T>(x);
  }
  return numbers;
}

template <typename T>
__device__ void store(const AllReduceParams<T>& p, int64_t unit, uint4 numbers) {
  const int64_t first = unit * kUnitSize<T>, count = int64_t{p.rows} * p.cols;
  if (is_whole(p.y, unit, count)) {
    reinterpret_cast<uint4*>(p.y)[unit] = numbers;
    return;
  }
  const Unit<T> y = numbers_in<T>(numbers);
#pragma unroll
  for (int i = 0; i < kUnitSize<T>; ++i) {
    if (first + i < count) p.y[first + i] = y.numbers[i];
  }
}

template <typename T>
__global__ void __launch_bounds__(kExchangeThreads)
    one_shot_kernel(const __grid_constant__ Peers peers, const T* part, const AllReduceParams<T> p,
                    int64_t units) {
  wait_for_previous();
  let_next_start();
  const Exchange exchange(peers);
  for_units(units, [&](int64_t unit) { exchange.send(unit, load_unit(part, unit)); });
  for_units(units, [&](int64_t unit) {
    const Addends<T> addends = addends_of(p, unit);  // on their way while others are waited for
    float sum[kUnitSize<T>];
    add_parts<T>(peers.size, sum, [&](int rank) {
      return rank == peers.rank ? load_unit(part, unit) : exchange.receive(rank, unit);
    });
    store(p, unit, finished(p, sum, addends));
  });
  exchange.leave();
}

// Units of a result: those of piece `rank` begin at first(rank).
struct Pieces {
  int64_t units;
  int ranks;

  __device__ int64_t first(int rank) const { return units * rank / ranks; }
  __device__ int64_t count(int rank) const { return first(rank + 1) - first(rank); }
};

template <typename T>
__global__ void __launch_bounds__(kExchangeThreads)
    two_shot_kernel(const __grid_constant__ Peers peers, const T* part, const AllReduceParams<T> p,
                    int64_t units) {
  wait_for_previous();
  let_next_start();
  const Exchange exchange(peers);
  const Pieces pieces{units, peers.size};
  const int64_t results = peers.part_bytes / 2 / kUnit;  // behind the parts of a piece
  const auto others = [&](auto&& work) {
    for (int i = 1; i < peers.size; ++i) work((peers.rank + i) % peers.size);
  };
  others([&](int rank) {
    const int64_t first = pieces.first(rank);
    for_units(pieces.count(rank), [&](int64_t unit) {
      store_shared(exchange.at_other(rank), unit, load_unit(part, first + unit));
    });
  });
  exchange.meet(0);
  const int64_t own = pieces.first(peers.rank);
  for_units(pieces.count(peers.rank), [&](int64_t unit) {
    float sum[kUnitSize<T>];
    add_parts<T>(peers.size, sum, [&](int rank) {
      return rank == peers.rank ? load_unit(part, own + unit)
                                : load_shared(exchange.from_other(rank), unit);
    });
    const uint4 y = finished(p, sum, addends_of(p, own + unit));
    store(p, own + unit, y);
    others([&](int rank) { store_shared(exchange.at_other(rank), results + unit, y); });
  });
  exchange.meet(1);
  others([&](int rank) {
    const int64_t first = pieces.first(rank);
    for_units(pieces.count(rank), [&](int64_t unit) {
      store(p, first + unit, load_shared(exchange.from_other(rank), results + unit));
    });
  });
  exchange.leave();
}

}  // namespace
}  // namespace cuda

template <typename T>
void all_reduce(cuda::SplitStream& stream, const AllReduceParams<T>& p) {
  const cuda::Collective& ranks = *stream.collective();
  const int64_t bytes = int64_t{p.rows} * p.cols * int64_t{sizeof(T)};
  const int64_t units = (bytes + cuda::kUnit - 1) / cuda::kUnit;
  const bool small = bytes <= cuda::kSmallPart;
  launch(stream, small ? cuda::one_shot_kernel<T> : cuda::two_shot_kernel<T>,
         cuda::exchange_grid(stream.device(), units), dim3(cuda::kExchangeThreads), 0,
         ranks.peers(), ranks.part<T>(), p, units);
}

#define INSTANTIATE(T) template void all_reduce(cuda::SplitStream&, const AllReduceParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
