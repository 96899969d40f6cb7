// Operators over rows: y = store(weigh(load(x), c) * f), where c stems from one reduction over the
// row and f from a second one. Layer norm: c is the mean, weigh subtracts it, f is one over the
// standard deviation. Softmax: c is the maximum, weigh takes exp(x - c), f is one over their sum.
//
// Three regimes, by columns alone, so that a row's bits never depend on the number of rows. The
// idea and the load and store functors are OneFlow's (layer_norm.cuh, softmax.cuh); what follows is
// made for Hopper:
//   up to 1024 columns  part of a warp, or a warp
//   up to 65536 bytes   a block, and above 16384 bytes a cluster of them
//   else                a block that reads the row again for each pass; any alignment
// In the first two a row lies in registers and is read once. Threads stay with their columns, so
// what belongs to a column (gamma, beta, a bias) is loaded once, before the previous kernel has
// ended, and the next rows are on their way while the present ones are reduced: a
// multiprocessor has about 32 KB under way at any time, twice what the memory's latency asks for.
#pragma once

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_packed.cuh"
#include "kernels/cuda/row_team.cuh"
#include "kernels/cuda/vector.cuh"

namespace decoding::cuda {

// Load, with Load::kPack columns at a time:
//   Columns columns(col)         what belongs to columns
//   Raw fetch(row, col)          starts the loads of a row
//   void values(raw, columns, x) makes numbers of what they bring
// Center: Center::First, the first reduction, and
//   float center(first)          c, of what it gives
//   float weigh(float& x, c)     turns x into what f multiplies; returns a term of the second, a
//   sum float factor(sum)            f
// Store:
//   Columns columns(col)
//   void store(row, col, columns, x)   x: kPack numbers
template <typename Load_, typename Center_, typename Store_>
struct RowOp {
  using Load = Load_;
  using Center = Center_;
  using Store = Store_;
  static constexpr int kPack = Load::kPack;
  Load load;
  Center center;
  Store store;
};

// Nothing belongs to a column.
struct NoColumns {};

// `count` floats from `from` on; zeros where it is null.
template <int count>
struct Floats {
  float values[count] = {};

  __device__ __forceinline__ static Floats load(const float* from, int col) {
    Floats floats;
    if (from == nullptr) return floats;
    constexpr int kStep = count < 4 ? count : 4;  // 16 bytes
#pragma unroll
    for (int i = 0; i < count; i += kStep) {
      const auto few = Vector<float, kStep>::load(from + col + i);
#pragma unroll
      for (int j = 0; j < kStep; ++j) floats.values[i + j] = few[j];
    }
    return floats;
  }
};

// Rows of T as they are.
template <typename T, int pack>
struct LoadRows {
  static constexpr int kPack = pack;
  using Columns = NoColumns;
  using Raw = Packed<T, pack>;
  const T* x;  // [rows, cols]
  int cols;

  __device__ __forceinline__ Columns columns(int) const { return {}; }
  __device__ __forceinline__ Raw fetch(int row, int col) const {
    return Raw::load(x + int64_t{row} * cols + col);
  }
  __device__ __forceinline__ static void values(const Raw& raw, const Columns&, float (&x)[pack]) {
    raw.unpack(x);
  }
};

template <typename T, int pack>
struct StoreRows {
  using Columns = NoColumns;
  T* y;  // [rows, cols]
  int cols;

  __device__ __forceinline__ Columns columns(int) const { return {}; }
  __device__ __forceinline__ void store(int row, int col, const Columns&,
                                        const float (&x)[pack]) const {
    Packed<T, pack>::of(x).store(y + int64_t{row} * cols + col);
  }
};

// One thread of a team: `vectors` pieces of kPack columns of `batch` rows a turn.
template <int vectors, int batch, typename Op, typename Team>
class RowStream {
 public:
  static constexpr int kTurn = batch * Team::kRows;  // rows of a unit

  __device__ __forceinline__ RowStream(const Op& op, Team& team, int rows, int cols)
      : op_(op), team_(team), rows_(rows), cols_(cols) {
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (col_of(v) >= cols_) continue;
      load_columns_[v] = op_.load.columns(col_of(v));
      store_columns_[v] = op_.store.columns(col_of(v));
    }
  }

  // All rows of the team's unit.
  __device__ __forceinline__ void run() {
    fetch(team_.unit * kTurn);
    for (int first = team_.unit * kTurn; first < rows_; first += team_.units * kTurn) {
      float x[batch][vectors][kPack], found[batch];
      read(x, found);
      fetch(first + team_.units * kTurn);
      team_.template reduce<typename Op::Center::First>(found);
      weigh(x, found);
      team_.template reduce<Sum>(found);
      store(first, x, found);
    }
  }

 private:
  static constexpr int kPack = Op::kPack;
  using First = typename Op::Center::First;

  __device__ __forceinline__ int col_of(int v) const {
    return (v * team_.size + team_.rank) * kPack;
  }
  __device__ __forceinline__ int row_of(int first, int r) const {
    return first + r * Team::kRows + team_.row;
  }
  // Calls use(r, v) for this thread's pieces.
  template <typename Use>
  __device__ __forceinline__ void for_pieces(Use use) const {
#pragma unroll
    for (int r = 0; r < batch; ++r) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (col_of(v) < cols_) use(r, v);
      }
    }
  }

  __device__ __forceinline__ void fetch(int first) {
    for_pieces([&](int r, int v) {
      const int row = row_of(first, r);
      if (row < rows_) next_[r][v] = op_.load.fetch(row, col_of(v));
    });
  }

  __device__ __forceinline__ void read(float (&x)[batch][vectors][kPack], float (&first)[batch]) {
#pragma unroll
    for (int r = 0; r < batch; ++r) first[r] = First::kNeutral;
    for_pieces([&](int r, int v) {
      op_.load.values(next_[r][v], load_columns_[v], x[r][v]);
      float piece = First::kNeutral;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        piece = First::combine(piece, x[r][v][i]);
      }
      first[r] = First::combine(first[r], piece);
    });
  }

  // found: the first reduction, then this thread's part of the second.
  __device__ __forceinline__ void weigh(float (&x)[batch][vectors][kPack], float (&found)[batch]) {
    float center[batch];
#pragma unroll
    for (int r = 0; r < batch; ++r) {
      center[r] = op_.center.center(found[r]);
      found[r] = 0.0f;
    }
    for_pieces([&](int r, int v) {
      float piece = 0.0f;
#pragma unroll
      for (int i = 0; i < kPack; ++i) piece += op_.center.weigh(x[r][v][i], center[r]);
      found[r] += piece;
    });
  }

  __device__ __forceinline__ void store(int first, float (&x)[batch][vectors][kPack],
                                        const float (&second)[batch]) {
    float factor[batch];
#pragma unroll
    for (int r = 0; r < batch; ++r) factor[r] = op_.center.factor(second[r]);
    for_pieces([&](int r, int v) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) x[r][v][i] *= factor[r];
      const int row = row_of(first, r);
      if (row < rows_) op_.store.store(row, col_of(v), store_columns_[v], x[r][v]);
    });
  }

  const Op& op_;
  Team& team_;
  const int rows_, cols_;
  typename Op::Load::Columns load_columns_[vectors];
  typename Op::Store::Columns store_columns_[vectors];
  typename Op::Load::Raw next_[batch][vectors];
};

constexpr int kLaneThreads = 128;  // in a block of a lane kernel
constexpr int kBlockThreads = 1024;

template <typename Op, int vectors>
constexpr int kRawBytes = vectors * sizeof(typename Op::Load::Raw);

// Rows in a turn: a thread has 32 bytes under way at least.
template <typename Op, int vectors = 1>
constexpr int kBatch = kRawBytes<Op, vectors> < 32 ? 32 / kRawBytes<Op, vectors> : 1;

// Threads that a multiprocessor has registers for.
template <typename Op, int vectors>
constexpr int kResident = kRawBytes<Op, vectors> <= 16    ? 1024
                          : kRawBytes<Op, vectors> <= 32  ? 768
                          : kRawBytes<Op, vectors> <= 64  ? 512
                          : kRawBytes<Op, vectors> <= 128 ? 384
                                                          : 256;

template <int lanes, int vectors, typename Op>
__global__ void __launch_bounds__(kLaneThreads, kResident<Op, vectors> / kLaneThreads)
    lane_rows_kernel(const Op op, int rows, int cols) {
  LaneTeam<lanes> team;
  RowStream<vectors, kBatch<Op, vectors>, Op, LaneTeam<lanes>> stream(op, team, rows, cols);
  wait_for_previous();
  let_next_start();
  stream.run();
}

template <int cluster, typename Op>
__device__ __forceinline__ void block_rows(const Op& op, int rows, int cols) {
  using Team = BlockTeam<cluster, kBatch<Op>>;
  __shared__ typename Team::Found found;
  Team team(found);
  RowStream<1, kBatch<Op>, Op, Team> stream(op, team, rows, cols);
  wait_for_previous();
  let_next_start();
  stream.run();
}

template <typename Op>
__global__ void __launch_bounds__(kBlockThreads)
    block_rows_kernel(const Op op, int rows, int cols) {
  block_rows<1>(op, rows, cols);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define CLUSTER(blocks)  // never launched
#else
#define CLUSTER(blocks) __cluster_dims__(blocks)
#endif

template <int cluster, typename Op>
__global__ void CLUSTER(cluster) __launch_bounds__(kBlockThreads)
    cluster_rows_kernel(const Op op, int rows, int cols) {
  block_rows<cluster>(op, rows, cols);
}

// Reads a row three times, from the cache where it is lucky.
template <typename Op>
__global__ void __launch_bounds__(kBlockThreads)
    reread_rows_kernel(const Op op, int rows, int cols) {
  using Team = BlockTeam<1, 1>;
  using First = typename Op::Center::First;
  __shared__ typename Team::Found found;
  Team team(found);
  wait_for_previous();
  let_next_start();
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    // Calls use(col, x) for this thread's pieces of the row.
    const auto for_pieces = [&](auto use) {
#pragma unroll 4
      for (int col = team.rank * Op::kPack; col < cols; col += team.size * Op::kPack) {
        float x[Op::kPack];
        op.load.values(op.load.fetch(row, col), op.load.columns(col), x);
        use(col, x);
      }
    };
    float first[1] = {First::kNeutral}, second[1] = {0.0f};
    for_pieces([&](int, const auto& x) {
      for (float value : x) first[0] = First::combine(first[0], value);
    });
    team.template reduce<First>(first);
    const float center = op.center.center(first[0]);
    for_pieces([&](int, auto& x) {
      for (float& value : x) second[0] += op.center.weigh(value, center);
    });
    team.template reduce<Sum>(second);
    const float factor = op.center.factor(second[0]);
    for_pieces([&](int col, auto& x) {
      for (float& value : x) {
        op.center.weigh(value, center);
        value *= factor;
      }
      op.store.store(row, col, op.store.columns(col), x);
    });
  }
}

template <int lanes, int vectors, typename Op>
void launch_lanes(Stream& stream, const Op& op, int rows, int cols) {
  constexpr int kTurn = int{kWarp} / lanes * kBatch<Op, vectors>;
  const int multiprocessors = stream.device().multiprocessors;
  const int warps = (rows + kTurn - 1) / kTurn;
  // Few rows spread over all multiprocessors.
  const int threads = warps <= multiprocessors ? int{kWarp} : kLaneThreads;
  const int blocks = (warps * int{kWarp} + threads - 1) / threads;
  const int most = multiprocessors * (kResident<Op, vectors> / kLaneThreads);
  launch(stream, lane_rows_kernel<lanes, vectors, Op>, std::min(blocks, most), threads, 0, op, rows,
         cols);
}

template <int cluster, typename Op>
void launch_blocks(Stream& stream, const Op& op, int rows, int cols) {
  const int pieces = (cols + Op::kPack - 1) / Op::kPack;
  const int each = (pieces + cluster - 1) / cluster;
  const int threads = (each + int{kWarp} - 1) / int{kWarp} * int{kWarp};
  const int turns = (rows + kBatch<Op> - 1) / kBatch<Op>;
  const int most = stream.device().multiprocessors * (kBlockThreads / threads) / cluster;
  const int blocks = std::min(turns, most) * cluster;
  if constexpr (cluster == 1) {
    launch(stream, block_rows_kernel<Op>, blocks, threads, 0, op, rows, cols);
  } else {
    launch(stream, cluster_rows_kernel<cluster, Op>, blocks, threads, 0, op, rows, cols);
  }
}

template <typename Op>
void launch_reread(Stream& stream, const Op& op, int rows, int cols) {
  const int pieces = (cols + Op::kPack - 1) / Op::kPack;
  const int threads = std::min(kBlockThreads, (pieces + int{kWarp} - 1) / int{kWarp} * int{kWarp});
  const int most = stream.device().multiprocessors * (2 * kBlockThreads / threads);
  launch(stream, reread_rows_kernel<Op>, std::min(rows, most), threads, 0, op, rows, cols);
}

template <typename Op>
void launch_rows(Stream& stream, const Op& op, int rows, int cols) {
  const int pieces = (cols + Op::kPack - 1) / Op::kPack;
  if constexpr (Op::kPack > 1) {
    const bool clusters = stream.device().major >= 9;
    if (pieces <= 4) return launch_lanes<4, 1>(stream, op, rows, cols);
    if (pieces <= 8) return launch_lanes<8, 1>(stream, op, rows, cols);
    if (pieces <= 16) return launch_lanes<16, 1>(stream, op, rows, cols);
    if (pieces <= 32) return launch_lanes<32, 1>(stream, op, rows, cols);
    if (pieces <= 64) return launch_lanes<32, 2>(stream, op, rows, cols);
    if (pieces <= 128) return launch_lanes<32, 4>(stream, op, rows, cols);
    if constexpr (Op::kPack == 4) {
      if (pieces <= 256) return launch_lanes<32, 8>(stream, op, rows, cols);
    }
    if (pieces <= kBlockThreads) return launch_blocks<1>(stream, op, rows, cols);
    if (clusters && pieces <= 2 * kBlockThreads) return launch_blocks<2>(stream, op, rows, cols);
    if (clusters && pieces <= 4 * kBlockThreads) return launch_blocks<4>(stream, op, rows, cols);
    if (clusters && pieces <= 8 * kBlockThreads) return launch_blocks<8>(stream, op, rows, cols);
  }
  launch_reread(stream, op, rows, cols);
}

}  // namespace decoding::cuda
