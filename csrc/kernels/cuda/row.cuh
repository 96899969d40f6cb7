// Operators over rows: y = store(f * weigh(load(x), c) + g), where c stems from one reduction over
// the row, and f and g from a second one. Layer norm: c is the mean, weigh subtracts it, f is one
// over the standard deviation. Softmax: c is the maximum, weigh takes exp(x - c), f is one over
// their sum.
//
// Three regimes, chosen by columns alone, so that a row's bits never depend on the number of rows.
// They and the load and store functors are OneFlow's idea (layer_norm.cuh, softmax.cuh); what
// follows is made for Hopper. For two-byte numbers:
//   up to 1024 columns   part of a warp, or a warp
//   up to 65536 columns  a block, above 16384 columns a cluster of two or four
//   else                 a block that reads the row again for each pass; also rows that cannot be
//                        read 16 bytes at a time
// In the first two a row is read once and lies in registers, not in shared memory: the threads that
// load numbers are the ones that need them. A thread stays with its columns, so what belongs to
// them (gamma, beta, a bias) is loaded once, before the previous kernel has ended; and the next
// rows are on their way while the present ones are reduced. Few threads with 64 bytes each beat
// many with 16: a reduction costs by the warp.
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

// f * x + g
struct Line {
  float f, g;
};

// One thread of a team: `vectors` pieces of kPack columns of `batch` rows at a time.
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
      Values x;
      float found[batch], sums[batch * kSums];
      read(x, found);
      fetch(first + team_.units * kTurn);
      team_.template reduce<First>(found);
      weigh(x, found, sums);
      team_.template reduce<Sum>(sums);
      store(first, x, sums);
    }
  }

 private:
  static constexpr int kPack = Op::kPack;
  static constexpr int kSums = Op::Center::kSums;
  using First = typename Op::Center::First;
  using Values = float[batch][vectors][kPack];
  using Sums = float[kSums];

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

  __device__ __forceinline__ void read(Values& x, float (&found)[batch]) {
#pragma unroll
    for (float& value : found) value = First::kNeutral;
    for_pieces([&](int r, int v) {
      op_.load.values(next_[r][v], load_columns_[v], x[r][v]);
      float piece = First::kNeutral;
#pragma unroll
      for (float value : x[r][v]) piece = First::combine(piece, value);
      found[r] = First::combine(found[r], piece);
    });
  }

  __device__ __forceinline__ void weigh(Values& x, const float (&found)[batch],
                                        float (&sums)[batch * kSums]) {
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    for_pieces([&](int r, int v) {
      const float center = op_.center.center(found[r]);
      Sums piece = {};
#pragma unroll
      for (float& value : x[r][v]) op_.center.weigh(value, center, piece);
#pragma unroll
      for (int s = 0; s < kSums; ++s) sums[r * kSums + s] += piece[s];
    });
  }

  __device__ __forceinline__ void store(int first, Values& x, const float (&sums)[batch * kSums]) {
    Line lines[batch];
#pragma unroll
    for (int r = 0; r < batch; ++r) {
      lines[r] = op_.center.line(reinterpret_cast<const Sums&>(sums[r * kSums]));
    }
    for_pieces([&](int r, int v) {
#pragma unroll
      for (float& value : x[r][v]) value = fmaf(lines[r].f, value, lines[r].g);
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

constexpr int kLaneThreads = 128;   // in a block of a lane kernel
constexpr int kBlockThreads = 512;  // in other blocks, at most

// Bytes that a thread has under way with so many pieces.
template <typename Op, int vectors>
constexpr int kBytes = vectors * sizeof(typename Op::Load::Raw);

// Blocks of a lane kernel that a multiprocessor shall have registers for.
template <typename Op, int vectors>
constexpr int kLaneBlocks = kBytes<Op, vectors> <= 32   ? 6
                            : kBytes<Op, vectors> <= 64 ? 4
                                                        : 3;

template <typename Op>
constexpr int kBlockVectors = 64 / kBytes<Op, 1>;

template <int lanes, int vectors, typename Op>
__global__ void __launch_bounds__(kLaneThreads, (kLaneBlocks<Op, vectors>))
    lane_rows_kernel(const Op op, int rows, int cols) {
  LaneTeam<lanes> team;
  RowStream<vectors, 1, Op, LaneTeam<lanes>> stream(op, team, rows, cols);
  wait_for_previous();
  let_next_start();
  stream.run();
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define CLUSTER(blocks)  // never launched
#else
#define CLUSTER(blocks) __cluster_dims__(blocks)
#endif

template <int cluster, typename Op>
__global__ void CLUSTER(cluster) __launch_bounds__(kBlockThreads)
    block_rows_kernel(const Op op, int rows, int cols) {
  __shared__ typename BlockTeam<cluster>::Found found;
  BlockTeam<cluster> team(found);
  RowStream<kBlockVectors<Op>, 1, Op, BlockTeam<cluster>> stream(op, team, rows, cols);
  wait_for_previous();
  let_next_start();
  stream.run();
}

// Reads a row three times, from the cache where it is lucky.
template <typename Op>
__global__ void __launch_bounds__(1024, 1) reread_rows_kernel(const Op op, int rows, int cols) {
  using First = typename Op::Center::First;
  __shared__ BlockTeam<1>::Found shared;
  BlockTeam<1> team(shared);
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
    float found[1] = {First::kNeutral}, sums[Op::Center::kSums] = {};
    for_pieces([&](int, const auto& x) {
      for (float value : x) found[0] = First::combine(found[0], value);
    });
    team.template reduce<First>(found);
    const float center = op.center.center(found[0]);
    for_pieces([&](int, auto& x) {
      for (float& value : x) op.center.weigh(value, center, sums);
    });
    team.template reduce<Sum>(sums);
    const Line line = op.center.line(sums);
    for_pieces([&](int col, auto& x) {
      for (float& value : x) {
        op.center.weigh(value, center, sums);
        value = fmaf(line.f, value, line.g);
      }
      op.store.store(row, col, op.store.columns(col), x);
    });
  }
}

// How many such blocks the device runs at once: no kernel here gains by more.
template <typename Op>
int most_blocks(const Stream& stream, void (*kernel)(Op, int, int), int threads) {
  int each = 0;
  CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, 0));
  return each * stream.device().multiprocessors;
}

// Blocks of a cluster lie in one group of multiprocessors, and groups differ in size.
template <typename Op>
int most_clusters(void (*kernel)(Op, int, int), int cluster, int threads) {
  cudaLaunchAttribute size{};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = cluster;
  config.blockDim = threads;
  config.attrs = &size;
  config.numAttrs = 1;
  int clusters = 0;
  CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  return clusters;
}

inline int divide_up(int a, int b) { return (a + b - 1) / b; }
inline int whole_warps(int threads) { return divide_up(threads, kWarp) * int{kWarp}; }

template <int lanes, int vectors, typename Op>
void launch_lanes(Stream& stream, const Op& op, int rows, int cols) {
  const auto kernel = lane_rows_kernel<lanes, vectors, Op>;
  const int warps = divide_up(rows, LaneTeam<lanes>::kRows);
  // Few rows spread over all multiprocessors.
  const int threads = warps <= stream.device().multiprocessors ? int{kWarp} : kLaneThreads;
  const int blocks =
      std::min(divide_up(warps * int{kWarp}, threads), most_blocks(stream, kernel, threads));
  launch(stream, kernel, blocks, threads, 0, op, rows, cols);
}

template <int cluster, typename Op>
void launch_blocks(Stream& stream, const Op& op, int rows, int cols) {
  const auto kernel = block_rows_kernel<cluster, Op>;
  const int threads = whole_warps(divide_up(cols, Op::kPack * kBlockVectors<Op> * cluster));
  const int most =
      cluster == 1 ? most_blocks(stream, kernel, threads) : most_clusters(kernel, cluster, threads);
  launch(stream, kernel, std::min(rows, most) * cluster, threads, 0, op, rows, cols);
}

template <typename Op>
void launch_reread(Stream& stream, const Op& op, int rows, int cols) {
  const auto kernel = reread_rows_kernel<Op>;
  const int threads = std::min(1024, whole_warps(divide_up(cols, Op::kPack)));
  const int blocks = std::min(rows, most_blocks(stream, kernel, threads));
  launch(stream, kernel, blocks, threads, 0, op, rows, cols);
}

template <typename Op>
void launch_rows(Stream& stream, const Op& op, int rows, int cols) {
  if constexpr (Op::kPack > 1) {
    const int pieces = divide_up(cols, Op::kPack);
    constexpr int kBlockPieces = kBlockThreads * kBlockVectors<Op>;
    const bool clusters = stream.device().major >= 9;
    if (pieces <= 4) return launch_lanes<2, 2>(stream, op, rows, cols);
    if (pieces <= 8) return launch_lanes<4, 2>(stream, op, rows, cols);
    if (pieces <= 16) return launch_lanes<8, 2>(stream, op, rows, cols);
    if (pieces <= 32) return launch_lanes<16, 2>(stream, op, rows, cols);
    if (pieces <= 64) return launch_lanes<32, 2>(stream, op, rows, cols);
    if (pieces <= 96) return launch_lanes<32, 3>(stream, op, rows, cols);
    if (pieces <= 128) return launch_lanes<32, 4>(stream, op, rows, cols);
    if (pieces <= kBlockPieces) return launch_blocks<1>(stream, op, rows, cols);
    if (clusters && pieces <= 2 * kBlockPieces) return launch_blocks<2>(stream, op, rows, cols);
    if (clusters && pieces <= 4 * kBlockPieces) return launch_blocks<4>(stream, op, rows, cols);
  }
  launch_reread(stream, op, rows, cols);
}

}  // namespace decoding::cuda
