#include "engine/scheduler/output.h"

#include <algorithm>

namespace decoding {

void Output::resize(int most_rows, int most_tokens) {
  rows = most_rows;
  width = most_tokens;
  const size_t all = static_cast<size_t>(rows) * width;
  tokens.assign(all, 0);
  parent_rows.assign(all, -1);
  lengths.assign(rows, 0);
  scores.assign(rows, 0.0f);
  sums.assign(rows, 0.0f);
}

Results Output::results() {
  return {tokens.data(), lengths.data(), scores.data(), sums.data(), parent_rows.data(), width};
}

int agreed(const Output& paths, int rows) {
  int length = paths.lengths[0];
  for (int row = 1; row < rows; ++row) {
    const int32_t* path = paths.tokens.data() + int64_t{row} * paths.width;
    const int most = std::min(length, paths.lengths[row]);
    length = static_cast<int>(std::mismatch(path, path + most, paths.tokens.data()).first - path);
  }
  return length;
}

Output new_tokens(int64_t id, const Output& paths, int rows, std::vector<int>& told) {
  told.resize(rows, 0);
  int width = 0;
  for (int row = 0; row < rows; ++row) width = std::max(width, paths.lengths[row] - told[row]);
  Output output(id, OutputKind::tokens);
  output.resize(rows, width);
  for (int row = 0; row < rows; ++row) {
    const auto path = paths.tokens.begin() + int64_t{row} * paths.width + told[row];
    const int count = output.lengths[row] = std::max(0, paths.lengths[row] - told[row]);
    std::copy(path, path + count, output.tokens.begin() + int64_t{row} * width);
    told[row] += count;
  }
  return output;
}

}  // namespace decoding
