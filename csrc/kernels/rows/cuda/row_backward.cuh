// Gradients of operators over rows, dx = gradient(a, b, ...), where every element needs sums over
// its row, and totals over all rows may be wanted of each column.
//
//   up to 8192 columns of two bytes   some warps of a block for each row
//   up to 65536                       a cluster of two to eight blocks
//   else                              a block that reads the row twice; also rows that cannot be
//                                     read 16 bytes at a time
//
// A thread stays with its columns: their totals stay in registers until it has seen all of its
// rows. The totals of a block's teams are added up, and each block writes one line of partial
// totals. The lines are added up in their order: the bits are the same every time.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/occupancy.cuh"
#include "kernels/rows/cuda/row_op.cuh"
#include "kernels/rows/cuda/row_ring.cuh"
#include "kernels/rows/cuda/row_team.cuh"

namespace decoding::cuda {

// An operator has
//   kInputs, kTotals                how many tensors are read, how many totals a column has
//   const T* inputs[kInputs]        [rows, cols] each; the last one may be null
//   T* dx                           [rows, cols]
//   float* partial                  [kTotals, lines, cols]; null: totals are not wanted
//   Floats columns(col)             what belongs to columns, the same for all rows
//   RowStats row_stats(row)                    begins to load the statistics of a row
//   add(in, columns, row, sums)     adds to the row's two sums
//   gradient(place, in, columns, row, sums, dx, totals)    adds to the totals too; place: of dx[0]
//                                                          in its tensor
// in: [kInputs][pack], of one piece; zeros where the input is null.
constexpr int kBackwardPieces = 2;     // of 16 bytes, that a thread has of a row
constexpr int kBackwardThreads = 512;  // of a block, at most

// For arrays, which have at least one element.
template <typename Op>
constexpr int kTotalsOf = Op::kTotals > 0 ? Op::kTotals : 1;

// Some warps of a block; `teams` of them share it.
struct WarpsTeam {
  struct Partials {
    float values[2][kMostValues][kBackwardThreads / kWarp];
  };
  static constexpr int kBlocks = 1;
  Partials& found;
  int size;  // threads
  int rank = threadIdx.x % size;
  int team = threadIdx.x / size;
  int teams = blockDim.x / size;
  int unit = blockIdx.x * teams + team;
  int units = gridDim.x * teams;
  unsigned rounds = 0;

  __device__ WarpsTeam(Partials& shared, int threads) : found(shared), size(threads) {}

  template <typename Reduction, int count>
  __device__ __forceinline__ void reduce(float (&values)[count]) {
#pragma unroll
    for (float& value : values) value = over_lanes<Reduction, kWarp>(value);
    if (size == kWarp) return;
    const int lane = threadIdx.x % kWarp, warps = size / kWarp;
    auto& set = found.values[rounds++ % 2];
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (lane == 0) set[i][threadIdx.x / kWarp] = values[i];
    }
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(size) : "memory");
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const float each = lane < warps ? set[i][team * warps + lane] : Reduction::kNeutral;
      values[i] = over_lanes<Reduction, kWarp>(each);
    }
  }
};

// `cluster` blocks, one row at a time.
template <int cluster>
struct ClusterTeam : BlockTeam<cluster> {
  static constexpr int kBlocks = cluster, team = 0, teams = 1;
  __device__ ClusterTeam(typename BlockTeam<cluster>::Partials& shared, int)
      : BlockTeam<cluster>(shared) {}
};

// One thread's part.
template <typename Op, typename Team>
class RowBackward {
 public:
  __device__ __forceinline__ RowBackward(const Op& op, Team& team, uint4* memory, int rows,
                                         int cols)
      : op_(op), team_(team), ring_(memory, inputs()), rows_(rows), cols_(cols) {
    for_pieces([&](int v) { columns_[v] = op_.template columns<kPack>(col_of(v)); });
  }

  __device__ __forceinline__ void run() {
#pragma unroll
    for (int ahead = 0; ahead < Ring::kRows; ++ahead) {
      ask(ahead, team_.unit + ahead * team_.units);
    }
    typename Op::RowStats next = {};
    if (team_.unit < rows_) next = op_.row_stats(team_.unit);
    int slot = 0;
    for (int row = team_.unit; row < rows_; row += team_.units) {
      const typename Op::RowStats known = next;
      if (row + team_.units < rows_) next = op_.row_stats(row + team_.units);
      ring_.wait_for_row();
      float sums[2] = {};
      for_pieces([&](int v) {
        float in[Op::kInputs][kPack];
        read(slot, v, in);
        op_.add(in, columns_[v], known, sums);
      });
      team_.template reduce<Sum>(sums);
      for_pieces([&](int v) {
        float in[Op::kInputs][kPack], dx[kPack];
        read(slot, v, in);
        const int64_t place = int64_t{row} * cols_ + col_of(v);
        op_.gradient(place, in, columns_[v], known, sums, dx, totals_[v]);
        Packed<T, kPack>::of(dx).store(op_.dx + place);
      });
      ask(slot, row + Ring::kRows * team_.units);
      slot = slot + 1 < Ring::kRows ? slot + 1 : 0;
    }
  }

  // Adds up what the teams of this block found; block `line` of `lines` leaves it in memory, of
  // which the ring has no need any more.
  __device__ __forceinline__ void leave_totals(float* memory, int line, int lines) {
    wait_for_copies<0>();
#pragma unroll
    for (int t = 0; t < Op::kTotals; ++t) {
      float* to = op_.partial + (int64_t{t} * lines + line) * cols_;
      __syncthreads();  // all have read what lies there
      for_pieces([&](int v) {
        float* at = team_.teams == 1 ? to : memory + team_.team * cols_;
#pragma unroll
        for (int i = 0; i < kPack; ++i) at[col_of(v) + i] = totals_[v][t][i];
      });
      if (team_.teams == 1) continue;
      __syncthreads();
      for (int col = threadIdx.x; col < cols_; col += blockDim.x) {
        float sum = 0.0f;
        for (int other = 0; other < team_.teams; ++other) sum += memory[other * cols_ + col];
        to[col] = sum;
      }
    }
  }

 private:
  using T = typename Op::Type;
  using Ring = RowRing<kBackwardPieces>;
  static constexpr int kPack = 16 / sizeof(T);

  __device__ __forceinline__ int inputs() const {
    return op_.inputs[Op::kInputs - 1] != nullptr ? Op::kInputs : Op::kInputs - 1;
  }
  __device__ __forceinline__ int col_of(int v) const {
    constexpr int kSpan = kWarp;
    return (team_.rank / kSpan * kBackwardPieces * kSpan + v * kSpan + team_.rank % kSpan) * kPack;
  }
  template <typename Use>
  __device__ __forceinline__ void for_pieces(Use use) const {
#pragma unroll
    for (int v = 0; v < kBackwardPieces; ++v) {
      if (col_of(v) < cols_) use(v);
    }
  }
  __device__ __forceinline__ void ask(int slot, int row) {
    if (row < rows_) {
      for_pieces([&](int v) {
#pragma unroll
        for (int i = 0; i < Op::kInputs; ++i) {
          if (i == inputs()) break;
          ring_.ask(slot, i, v, op_.inputs[i] + int64_t{row} * cols_ + col_of(v));
        }
      });
    }
    ring_.close_row();
  }
  __device__ __forceinline__ void read(int slot, int v, float (&in)[Op::kInputs][kPack]) const {
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      Packed<T, kPack> raw{};
      if (i < inputs()) {
        const uint4 words = ring_.read(slot, i, v);
        raw = reinterpret_cast<const Packed<T, kPack>&>(words);
      }
      raw.unpack(in[i]);
    }
  }

  const Op& op_;
  Team& team_;
  Ring ring_;
  const int rows_, cols_;
  Floats<kPack> columns_[kBackwardPieces];
  float totals_[kBackwardPieces][kTotalsOf<Op>][kPack] = {};
};

template <typename Op, typename Team>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    row_backward_kernel(const Op op, int rows, int cols, int team_threads) {
  extern __shared__ uint4 memory[];
  __shared__ typename Team::Partials found;
  wait_for_previous();
  let_next_start();
  Team team(found, team_threads);
  RowBackward<Op, Team> part(op, team, memory, rows, cols);
  part.run();
  if (op.partial != nullptr) {
    const int blocks = Team::kBlocks;
    part.leave_totals(reinterpret_cast<float*>(memory), blockIdx.x / blocks, gridDim.x / blocks);
  }
}

// A thread adds to its columns' totals where they lie.
template <typename Op>
__global__ void __launch_bounds__(1024, 1)
    reread_backward_kernel(const Op op, int rows, int cols, int) {
  __shared__ BlockTeam<1>::Partials found;
  wait_for_previous();
  let_next_start();
  BlockTeam<1> team(found);
  const auto total = [&](int t, int col) -> float& {
    return op.partial[(int64_t{t} * gridDim.x + blockIdx.x) * cols + col];
  };
  for (int col = threadIdx.x; op.partial != nullptr && col < cols; col += blockDim.x) {
    for (int t = 0; t < Op::kTotals; ++t) total(t, col) = 0.0f;
  }
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    const typename Op::RowStats known = op.row_stats(row);
    const auto for_columns = [&](auto use) {
      for (int col = threadIdx.x; col < cols; col += blockDim.x) {
        float in[Op::kInputs][1];
        for (int i = 0; i < Op::kInputs; ++i) {
          const auto* from = op.inputs[i];
          in[i][0] = from == nullptr ? 0.0f : to_float(from[int64_t{row} * cols + col]);
        }
        use(col, in, op.template columns<1>(col));
      }
    };
    float sums[2] = {};
    for_columns(
        [&](int, const auto& in, const auto& columns) { op.add(in, columns, known, sums); });
    team.template reduce<Sum>(sums);
    for_columns([&](int col, const auto& in, const auto& columns) {
      float dx[1], totals[kTotalsOf<Op>][1] = {};
      const int64_t place = int64_t{row} * cols + col;
      op.gradient(place, in, columns, known, sums, dx, totals);
      op.dx[place] = from_float<typename Op::Type>(dx[0]);
      for (int t = 0; op.partial != nullptr && t < Op::kTotals; ++t) total(t, col) += totals[t][0];
    });
  }
}

// Returns how many lines of partial totals there are, at most `lines`. aligned: whether all rows
// can be read 16 bytes at a time.
template <typename Op>
int launch_backward(Stream& stream, const Op& op, int rows, int cols, bool aligned, int lines) {
  using T = typename Op::Type;
  using Ring = RowRing<kBackwardPieces>;
  const Device& device = stream.device();
  const int at_once = std::min(device.multiprocessors, lines);
  const int inputs = op.inputs[Op::kInputs - 1] != nullptr ? Op::kInputs : Op::kInputs - 1;
  constexpr int kFound = 4096;  // bytes of shared memory that teams meet in, at most
  const bool fits = Ring::bytes(inputs, kBackwardThreads) + kFound <= device.shared_memory;
  const int most_warps = (fits ? kBackwardThreads : kBackwardThreads / 2) / kWarp;
  const int warps = divide_up(cols, 16 / sizeof(T) * kWarp * kBackwardPieces);
  const auto in_clusters = [&](auto size) {
    constexpr int cluster = decltype(size)::value;
    const auto kernel = row_backward_kernel<Op, ClusterTeam<cluster>>;
    const int threads = divide_up(warps, cluster) * kWarp;
    const size_t shared = Ring::bytes(inputs, threads);
    const int most = std::min(at_once / cluster, most_clusters(kernel, cluster, threads, shared));
    const int units = std::min(rows, most);
    launch_clusters(stream, kernel, dim3(cluster), units * cluster, threads, shared, op, rows, cols,
                    0);
    return units;
  };
  if (aligned && warps <= most_warps) {
    // Few rows spread over all multiprocessors.
    const int teams = std::min(most_warps / warps, divide_up(rows, at_once));
    const int threads = teams * warps * kWarp;
    const int blocks = std::min(divide_up(rows, teams), at_once);
    launch(stream, row_backward_kernel<Op, WarpsTeam>, blocks, threads,
           Ring::bytes(inputs, threads), op, rows, cols, warps * int{kWarp});
    return blocks;
  }
  if (aligned && device.hopper()) {
    if (warps <= 2 * most_warps) return in_clusters(std::integral_constant<int, 2>());
    if (warps <= 4 * most_warps) return in_clusters(std::integral_constant<int, 4>());
    if (warps <= 8 * most_warps) return in_clusters(std::integral_constant<int, 8>());
  }
  const int blocks = std::min(rows, at_once);
  launch(stream, reread_backward_kernel<Op>, blocks, std::min(1024, whole_warps(cols)), 0, op, rows,
         cols, 0);
  return blocks;
}

}  // namespace decoding::cuda
