// One thread's part in an operator over rows. It stays with its columns, so what belongs to them
// (gamma, beta, a bias) is loaded once, before the previous kernel has ended; and its team's next
// row is on its way while the present one is reduced. A row is read once and lies in registers, not
// in shared memory: the threads that load numbers are the ones that need them.
#pragma once

#include "kernels/rows/cuda/row_op.cuh"
#include "kernels/rows/cuda/row_team.cuh"

namespace decoding::cuda {

// `vectors` pieces of kPack columns.
template <int vectors, typename Op, typename Team>
class RowStream {
 public:
  // Loads what belongs to the columns.
  __device__ __forceinline__ RowStream(const Op& op, Team& team, int rows, int cols)
      : op_(op), team_(team), rows_(rows), cols_(cols) {
    for_pieces([&](int v) {
      load_columns_[v] = op_.load.columns(col_of(v));
      store_columns_[v] = op_.store.columns(col_of(v));
    });
  }

  // All rows of the team. Teams that share a warp take as many turns as the first of them.
  __device__ __forceinline__ void run() {
    const int step = team_.units * Team::kRows;
    fetch(team_.unit * Team::kRows + team_.row);
    for (int first = team_.unit * Team::kRows; first < rows_; first += step) {
      const int row = first + team_.row;
      fetch_added(row);
      Values x;
      float found[1] = {read(row, x)}, sums[kSums];
      keep(row, x);
      fetch(row + step);
      if (op_.center.has_center()) team_.template reduce<First>(found);
      const float center = op_.center.center(found[0]);
      weigh(x, center, sums);
      team_.template reduce<Sum>(sums);
      if (row < rows_) store(row, x, center, op_.center.line(sums));
    }
  }

 private:
  static constexpr int kPack = Op::kPack;
  static constexpr int kSums = Op::Center::kSums;
  using First = typename Op::Center::First;
  using Values = float[vectors][kPack];

  // Pieces of a thread lie a fixed distance apart: one address does for all.
  __device__ __forceinline__ int col_of(int v) const {
    constexpr int kSpan = Team::kLanes;
    return (team_.rank / kSpan * vectors * kSpan + v * kSpan + team_.rank % kSpan) * kPack;
  }
  // Calls use(v) for this thread's pieces.
  template <typename Use>
  __device__ __forceinline__ void for_pieces(Use use) const {
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (col_of(v) < cols_) use(v);
    }
  }

  __device__ __forceinline__ void fetch(int row) {
    if (row >= rows_) return;
    for_pieces([&](int v) { next_[v] = op_.load.fetch(row, col_of(v)); });
  }

  __device__ __forceinline__ void fetch_added(int row) {
    if (row >= rows_) return;
    for_pieces([&](int v) { added_[v] = op_.store.fetch(row, col_of(v)); });
  }

  // Returns this thread's part of the first reduction. Pieces are reduced apart: short chains.
  __device__ __forceinline__ float read(int row, Values& x) {
    float first = First::kNeutral;
    for_pieces([&](int v) {
      op_.load.values(row, col_of(v), next_[v], load_columns_[v], x[v]);
      float piece = First::kNeutral;
#pragma unroll
      for (float value : x[v]) piece = First::combine(piece, value);
      first = First::combine(first, piece);
    });
    return first;
  }

  __device__ __forceinline__ void keep(int row, const Values& x) {
    if constexpr (kKeeps<typename Op::Load>) {
      if (row < rows_) for_pieces([&](int v) { op_.load.keep(row, col_of(v), x[v]); });
    }
  }

  __device__ __forceinline__ void weigh(Values& x, float center, float (&sums)[kSums]) {
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    for_pieces([&](int v) {
      float piece[kSums] = {};
#pragma unroll
      for (float& value : x[v]) op_.center.weigh(value, center, piece);
#pragma unroll
      for (int s = 0; s < kSums; ++s) sums[s] += piece[s];
    });
  }

  __device__ __forceinline__ void store(int row, Values& x, float center, const Line& line) {
    if constexpr (kKeeps<typename Op::Store>) {
      if (team_.rank == 0) op_.store.keep(row, center, line);
    }
    for_pieces([&](int v) {
#pragma unroll
      for (float& value : x[v]) value = fmaf(line.f, value, line.g);
      op_.store.store(row, col_of(v), store_columns_[v], added_[v], x[v]);
    });
  }

  const Op& op_;
  Team& team_;
  const int rows_, cols_;
  typename Op::Load::Columns load_columns_[vectors];
  typename Op::Store::Columns store_columns_[vectors];
  typename Op::Load::Raw next_[vectors];
  typename Op::Store::Raw added_[vectors];  // to the present row
};

}  // namespace decoding::cuda
