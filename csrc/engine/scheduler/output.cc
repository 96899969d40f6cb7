#include "engine/scheduler/output.h"

#include <algorithm>

namespace decoding {

void Output::resize(int most_rows, int most_tokens) {
  rows = most_rows;
  width = most_tokens;
  const auto grow = [](auto& array, int64_t size) {
    if (static_cast<int64_t>(array.size()) < size) array.resize(size);
  };
  grow(tokens, int64_t{rows} * width);
  grow(parent_rows, int64_t{rows} * width);
  grow(lengths, rows);
  grow(scores, rows);
  grow(sums, rows);
}

Results Output::results() {
  return {tokens.data(), lengths.data(), scores.data(), sums.data(), parent_rows.data(), width};
}

int agreed(const Output& paths, int rows, int from) {
  const int32_t* first = paths.tokens.data();
  int length = paths.lengths[0];
  for (int row = 1; row < rows; ++row) {
    const int32_t* path = first + int64_t{row} * paths.width;
    const int most = std::min(length, paths.lengths[row]);
    length = static_cast<int>(std::mismatch(path + from, path + most, first + from).first - path);
  }
  return length;
}

Output new_tokens(int64_t id, const Output& paths, int rows, std::vector<int>& told) {
  told.resize(rows, 0);
  int width = 0;
  for (int row = 0; row < rows; ++row) width = std::max(width, paths.lengths[row] - told[row]);
  Output output(id, OutputKind::tokens);
  output.rows = rows;
  output.width = width;
  output.tokens.resize(int64_t{rows} * width);
  output.lengths.resize(rows);
  for (int row = 0; row < rows; ++row) {
    const auto path = paths.tokens.begin() + int64_t{row} * paths.width + told[row];
    const int count = output.lengths[row] = std::max(0, paths.lengths[row] - told[row]);
    std::copy(path, path + count, output.tokens.begin() + int64_t{row} * width);
    told[row] += count;
  }
  return output;
}

}  // namespace decoding
