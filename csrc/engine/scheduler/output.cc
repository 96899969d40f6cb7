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

Output Output::trimmed(int64_t of) const {
  Output found(of, kind);
  found.rows = rows;
  found.lengths.assign(lengths.begin(), lengths.begin() + rows);
  found.scores.assign(scores.begin(), scores.begin() + rows);
  found.sums.assign(sums.begin(), sums.begin() + rows);
  found.width = *std::max_element(found.lengths.begin(), found.lengths.end());
  const auto cut = [&](const std::vector<int32_t>& from, std::vector<int32_t>& to) {
    to.reserve(int64_t{rows} * found.width);
    for (int row = 0; row < rows; ++row) {
      const auto begin = from.begin() + int64_t{row} * width;
      to.insert(to.end(), begin, begin + found.width);
    }
  };
  cut(tokens, found.tokens);
  cut(parent_rows, found.parent_rows);
  return found;
}

const Output* BatchOutput::failed() const {
  const Output* first = nullptr;
  for (const Output& end : ends) {
    if (end.kind == OutputKind::fault) return &end;
    if (end.kind != OutputKind::end && first == nullptr) first = &end;
  }
  return first;
}

void Outputs::clear() {
  tokens.clear();
  words.clear();
  ends.clear();
  batches.clear();
}

void Outputs::put_tokens(int64_t id, const Results& certain, int rows, int& delivered) {
  const int longest = *std::max_element(certain.lengths, certain.lengths + rows);
  if (longest <= delivered) return;
  tokens.push_back({id, rows, words.size()});
  for (int row = 0; row < rows; ++row) {
    const int32_t* path = certain.tokens + int64_t{row} * certain.width;
    const int length = std::max(delivered, certain.lengths[row]);
    words.push_back(length - delivered);
    words.insert(words.end(), path + delivered, path + length);
  }
  delivered = longest;
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
  std::move(later.batches.begin(), later.batches.end(), std::back_inserter(batches));
  later.clear();
}

void Batches::add(int64_t first, int count) {
  open_.emplace(first, Open{{first, std::vector<Output>(count)}, count});
}

void Batches::append_ids(int64_t id, std::vector<int64_t>& to) const {
  const auto found = open_.find(id);
  const size_t count = found == open_.end() ? 1 : found->second.output.ends.size();
  for (size_t i = 0; i < count; ++i) to.push_back(id + static_cast<int64_t>(i));
}

void Batches::collect(Outputs& made, std::vector<int64_t>& cancelled) {
  if (open_.empty()) return;
  std::vector<Output> alone;
  for (Output& end : made.ends) {
    const auto batch = batch_of(end.id);
    if (batch == open_.end()) {
      alone.push_back(std::move(end));
      continue;
    }
    auto& [output, left] = batch->second;
    if (end.kind == OutputKind::fault) append_ids(output.id, cancelled);
    output.ends[end.id - output.id] = std::move(end);
    if (--left > 0) continue;
    made.batches.push_back(std::move(output));
    open_.erase(batch);
  }
  made.ends = std::move(alone);
}

std::map<int64_t, Batches::Open>::iterator Batches::batch_of(int64_t id) {
  const auto next = open_.upper_bound(id);
  if (next == open_.begin()) return open_.end();
  const auto before = std::prev(next);
  const bool is_in = id < before->first + static_cast<int64_t>(before->second.output.ends.size());
  return is_in ? before : open_.end();
}

}  // namespace decoding
