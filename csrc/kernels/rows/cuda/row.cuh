// Kernels for operators over rows (row_op.cuh), in three regimes like OneFlow's layer norm and
// softmax, made for Hopper. For two-byte numbers:
//   up to 1024 columns   part of a warp, or a warp, for each row
//   up to 65536 columns  a block, above 16384 columns a cluster of two or four
//   else                 a block that reads the row again for each pass; also rows that cannot be
//                        read 16 bytes at a time
// Columns alone choose, so that a row's bits never depend on the number of rows. Few threads with
// 64 bytes each beat many with 16, since a reduction costs by the warp: on an H200, 2048 columns in
// float16, 3.8 TB/s read and written against 3.1.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/occupancy.cuh"
#include "kernels/rows/cuda/row_stream.cuh"

namespace decoding::cuda {

constexpr int kLaneThreads = 128;   // in a block of a lane kernel
constexpr int kBlockThreads = 512;  // in other blocks, at most

// Bytes that a thread has under way with so many pieces.
template <typename Op, int vectors>
constexpr int kBytes = vectors * (sizeof(typename Op::Load::Raw) +
                                  (Op::Store::kAdds ? sizeof(typename Op::Store::Raw) : 0));

// Blocks of a lane kernel that a multiprocessor shall have registers for.
template <typename Op, int vectors>
constexpr int kLaneBlocks = kBytes<Op, vectors> <= 32   ? 6
                            : kBytes<Op, vectors> <= 64 ? 4
                                                        : 3;

template <typename Op>
constexpr int kBlockVectors = 64 / kBytes<Op, 1>;

// The most pieces of a lane: with two numbers to load for each and something for each column, four
// do not fit into its registers.
template <typename Op>
constexpr int kLaneVectors =
    kBytes<Op, 4> > 64 && !std::is_empty_v<typename Op::Load::Columns> ? 3 : 4;

// Lets the next start before it has waited itself, unlike other kernels: it is followed in a step
// by a product, whose weights are then under way while the kernel before this one still works. That
// product waits for this kernel, and so for all before it.
template <int lanes, int vectors, typename Op>
__global__ void __launch_bounds__(kLaneThreads, (kLaneBlocks<Op, vectors>))
    lane_rows_kernel(const Op op, int rows, int cols) {
  let_next_start();
  LaneTeam<lanes> team;
  RowStream<vectors, Op, LaneTeam<lanes>> stream(op, team, rows, cols);
  wait_for_previous();
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
  __shared__ typename BlockTeam<cluster>::Partials found;
  BlockTeam<cluster> team(found);
  RowStream<kBlockVectors<Op>, Op, BlockTeam<cluster>> stream(op, team, rows, cols);
  wait_for_previous();
  let_next_start();
  stream.run();
}

// Reads a row three times, from the cache where it is lucky.
template <typename Op>
__global__ void __launch_bounds__(1024, 1) reread_rows_kernel(const Op op, int rows, int cols) {
  using First = typename Op::Center::First;
  __shared__ BlockTeam<1>::Partials shared;
  BlockTeam<1> team(shared);
  wait_for_previous();
  let_next_start();
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    // Calls use(col, x) for this thread's pieces of the row.
    const auto for_pieces = [&](auto use) {
#pragma unroll 4
      for (int col = team.rank * Op::kPack; col < cols; col += team.size * Op::kPack) {
        float x[Op::kPack];
        op.load.values(row, col, op.load.fetch(row, col), op.load.columns(col), x);
        use(col, x);
      }
    };
    float found[1] = {First::kNeutral}, sums[Op::Center::kSums] = {};
    for_pieces([&](int col, const auto& x) {
      if constexpr (kKeeps<typename Op::Load>) op.load.keep(row, col, x);
      for (float value : x) found[0] = First::combine(found[0], value);
    });
    if (op.center.has_center()) team.template reduce<First>(found);
    const float center = op.center.center(found[0]);
    for_pieces([&](int, auto& x) {
      for (float& value : x) op.center.weigh(value, center, sums);
    });
    team.template reduce<Sum>(sums);
    const Line line = op.center.line(sums);
    if constexpr (kKeeps<typename Op::Store>) {
      if (team.rank == 0) op.store.keep(row, center, line);
    }
    for_pieces([&](int col, auto& x) {
      for (float& value : x) {
        op.center.weigh(value, center, sums);
        value = fmaf(line.f, value, line.g);
      }
      op.store.store(row, col, op.store.columns(col), op.store.fetch(row, col), x);
    });
  }
}

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
    const bool clusters = stream.device().hopper();
    if (pieces <= 4) return launch_lanes<2, 2>(stream, op, rows, cols);
    if (pieces <= 8) return launch_lanes<4, 2>(stream, op, rows, cols);
    if (pieces <= 16) return launch_lanes<8, 2>(stream, op, rows, cols);
    if (pieces <= 32) return launch_lanes<16, 2>(stream, op, rows, cols);
    if (pieces <= 64) return launch_lanes<32, 2>(stream, op, rows, cols);
    if (pieces <= 96) return launch_lanes<32, 3>(stream, op, rows, cols);
    if constexpr (kLaneVectors<Op> == 4) {
      if (pieces <= 128) return launch_lanes<32, 4>(stream, op, rows, cols);
    }
    if (pieces <= kBlockPieces) return launch_blocks<1>(stream, op, rows, cols);
    if (clusters && pieces <= 2 * kBlockPieces) return launch_blocks<2>(stream, op, rows, cols);
    if (clusters && pieces <= 4 * kBlockPieces) return launch_blocks<4>(stream, op, rows, cols);
  }
  launch_reread(stream, op, rows, cols);
}

}  // namespace decoding::cuda
