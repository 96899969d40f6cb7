#include "engine/scheduler/prefix_cache.h"

#include <algorithm>

#include "core/check.h"

namespace decoding {
namespace {

constexpr int32_t kNone = -1;

// Parents that are no entries: of a source, and of the first page of a prompt.
constexpr uint64_t kSource = ~uint64_t{0};
uint64_t start_of(int table) { return table == 0 ? 0 : kSource - static_cast<uint64_t>(table); }

std::span<const int32_t> page_tokens(std::span<const int32_t> tokens, size_t page) {
  const size_t begin = page * kPageSize;
  return tokens.subspan(begin, std::min<size_t>(kPageSize, tokens.size() - begin));
}

uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 32);
}

}  // namespace

PrefixCache::PrefixCache(PageAllocator& pool, bool enabled, int buckets)
    : pool_(pool), enabled_(enabled) {
  CHECK(buckets >= 0, "a hash table must have 1 bucket or more, or 0 for as many as pages, got ",
        buckets);
  if (!enabled) return;
  pages_.resize(pool.total());
  buckets_.assign(buckets > 0 ? buckets : std::max(pool.total(), 1), kNone);
  pool.on_reclaim([this](int32_t page) { forget(page); });
}

PrefixCache::~PrefixCache() {
  if (!enabled_) return;
  clear();
  pool_.on_reclaim(nullptr);
}

int PrefixCache::find(uint64_t salt, int table, std::span<const int32_t> tokens,
                      std::vector<int32_t>& to) {
  if (!enabled_) return 0;
  const size_t full = tokens.size() / kPageSize;
  uint64_t parent = start_of(table);
  size_t found = 0;
  for (; found < full; ++found) {
    const int32_t page = lookup({parent, salt, page_tokens(tokens, found)});
    if (page == kNone) break;
    to.push_back(page);
    pool_.share(page);
    parent = pages_[page].entry;
  }
  count(tokens.size(), found * kPageSize);
  return static_cast<int>(found);
}

void PrefixCache::insert(uint64_t salt, int table, std::span<const int32_t> tokens,
                         std::span<const int32_t> pages) {
  if (!enabled_) return;
  const size_t full = tokens.size() / kPageSize;
  CHECK(pages.size() >= full, tokens.size(), " tokens fill ", full, " pages, got ", pages.size());
  uint64_t parent = start_of(table);
  for (size_t i = 0; i < full; ++i) {
    const Key key{parent, salt, page_tokens(tokens, i)};
    int32_t page = lookup(key);
    if (page == kNone) {
      page = pages[i];
      remember(key, pages.subspan(i, 1));
    }
    parent = pages_[page].entry;
  }
}

bool PrefixCache::find_source(uint64_t salt, std::span<const int32_t> tokens,
                              std::vector<int32_t>& to) {
  if (!enabled_) return false;
  const int32_t first = lookup({kSource, salt, tokens});
  for (int32_t page = first; page != kNone; page = pages_[page].next) {
    to.push_back(page);
    pool_.share(page);
  }
  const bool found = first != kNone;
  count(tokens.size(), found ? tokens.size() : 0);
  return found;
}

void PrefixCache::insert_source(uint64_t salt, std::span<const int32_t> tokens,
                                std::span<const int32_t> pages) {
  if (!enabled_) return;
  const auto needed = static_cast<size_t>(pages_of(static_cast<int64_t>(tokens.size())));
  CHECK(needed > 0, "a source must have a token or more");
  CHECK(pages.size() == needed, "a source of ", tokens.size(), " tokens takes ", needed,
        " pages, got ", pages.size());
  const Key key{kSource, salt, tokens};
  if (lookup(key) == kNone) remember(key, pages);
}

void PrefixCache::clear() {
  for (int32_t page = 0; page < static_cast<int32_t>(pages_.size()); ++page) forget(page);
}

void PrefixCache::forget(std::span<const int32_t> pages) {
  for (const int32_t page : pages) forget(page);
}

size_t PrefixCache::bucket_of(const Key& key) const {
  uint64_t hash = mix(mix(0, key.parent), key.salt);
  for (const int32_t token : key.tokens) hash = mix(hash, static_cast<uint32_t>(token));
  return hash % buckets_.size();
}

bool PrefixCache::equals(int32_t page, const Key& key) const {
  const Page& first = pages_[page];
  if (first.parent != key.parent || first.salt != key.salt) return false;
  if (first.length != key.tokens.size()) return false;
  for (size_t i = 0; page != kNone; ++i, page = pages_[page].next) {
    const auto tokens = page_tokens(key.tokens, i);
    if (!std::equal(tokens.begin(), tokens.end(), pages_[page].tokens.begin())) return false;
  }
  return true;
}

int32_t PrefixCache::lookup(const Key& key) const {
  int32_t page = buckets_[bucket_of(key)];
  while (page != kNone && !equals(page, key)) page = pages_[page].chained;
  return page;
}

void PrefixCache::remember(const Key& key, std::span<const int32_t> pages) {
  for (const int32_t page : pages) {
    CHECK(pool_.references(page) > 0, "page ", page, " is not owned: its tokens may change");
    forget(page);  // it may follow a page that is forgotten
  }
  ++entries_;
  for (size_t i = 0; i < pages.size(); ++i) {
    Page& page = pages_[pages[i]];
    page.entry = entries_;
    page.first = pages[0];
    page.next = i + 1 < pages.size() ? pages[i + 1] : kNone;
    std::ranges::copy(page_tokens(key.tokens, i), page.tokens.begin());
    pool_.set_cached(pages[i], true);
  }
  Page& first = pages_[pages[0]];
  first.parent = key.parent;
  first.salt = key.salt;
  first.length = key.tokens.size();
  first.bucket = bucket_of(key);
  first.chained = buckets_[first.bucket];
  buckets_[first.bucket] = pages[0];
}

void PrefixCache::forget(int32_t page) {
  if (pages_[page].entry == 0) return;
  page = pages_[page].first;
  int32_t* link = &buckets_[pages_[page].bucket];
  while (*link != page) link = &pages_[*link].chained;
  *link = pages_[page].chained;
  for (; page != kNone; page = pages_[page].next) {
    pages_[page].entry = 0;
    pool_.set_cached(page, false);
  }
}

void PrefixCache::count(size_t queries, size_t hits) {
  stats_.queries += static_cast<int64_t>(queries);
  stats_.hits += static_cast<int64_t>(hits);
}

}  // namespace decoding
