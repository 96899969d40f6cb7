#include "engine/scheduler/output.h"

#include <algorithm>
#include <iterator>
#include <utility>

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

void Outputs::clear() {
  tokens.clear();
  words.clear();
  ends.clear();
}

void Outputs::put_tokens(int64_t id, const Results& certain, int rows, int& told) {
  const int longest = *std::max_element(certain.lengths, certain.lengths + rows);
  if (longest <= told) return;
  tokens.push_back({id, rows, words.size()});
  for (int row = 0; row < rows; ++row) {
    const int32_t* path = certain.tokens + int64_t{row} * certain.width;
    const int length = std::max(told, certain.lengths[row]);
    words.push_back(length - told);
    words.insert(words.end(), path + told, path + length);
  }
  told = longest;
}

void Outputs::take(Outputs& later) {
  if (empty()) {
    std::swap(*this, later);
    return;
  }
  const size_t before = words.size();
  words.insert(words.end(), later.words.begin(), later.words.end());
  for (NewTokens made : later.tokens) {
    made.begin += before;
    tokens.push_back(made);
  }
  std::move(later.ends.begin(), later.ends.end(), std::back_inserter(ends));
  later.clear();
}

}  // namespace decoding
