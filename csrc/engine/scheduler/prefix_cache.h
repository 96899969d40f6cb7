// Finds the pages of keys and values that were written for the same tokens before.
//
// An entry is some tokens, their pages and the entry before them: one full page of a prompt behind
// the page before it, or a whole source, whose keys and values all depend on all of its tokens. The
// hash of an entry only chooses a bucket; parents, salts and tokens are compared, so that no two
// texts are ever taken for one another. The parent of a prompt's first page says by which table its
// keys are rotated (rotary.h), where a model has several.
//
// The pool keeps the pages and says which of them it reclaims; then their entry is forgotten. A
// page of a prompt whose parent is forgotten before it is never found again: numbers of entries are
// not used twice.
//
// One thread uses a cache. Nothing is allocated after construction.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/scheduler/page_allocator.h"
#include "kernels/attention/pages.h"

namespace decoding {

// In tokens, so that hits / queries is the share that is found.
struct PrefixCacheStats {
  int64_t queries = 0;  // that were looked for
  int64_t hits = 0;     // of them, whose keys and values need not be computed
};

class PrefixCache {
 public:
  // enabled: otherwise nothing is remembered. buckets: of the hash table; 0: as many as pages.
  explicit PrefixCache(PageAllocator& pool, bool enabled = true, int buckets = 0);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Appends the pages of the longest known beginning of a prompt, with a reference on each, and
  // returns their number. Without its last token, where that is to be computed in any case.
  // salt: of a tenant, who finds the pages of no other. table: of the prompt's rotation.
  int find(uint64_t salt, int table, std::span<const int32_t> tokens, std::vector<int32_t>& to);
  // Remembers the full pages of a prompt, which must be owned and written. Where tokens are known
  // with another page, that one stays.
  void insert(uint64_t salt, int table, std::span<const int32_t> tokens,
              std::span<const int32_t> pages);

  // As find and insert, of all pages of an encoder's whole source, whose positions must be those
  // of its tokens. false: nothing was appended.
  bool find_source(uint64_t salt, std::span<const int32_t> tokens, std::vector<int32_t>& to);
  void insert_source(uint64_t salt, std::span<const int32_t> tokens,
                     std::span<const int32_t> pages);

  // Forgets all entries, or those of some pages. Their pages become free, or will, when their
  // owners release them.
  void clear();
  void forget(std::span<const int32_t> pages);
  const PrefixCacheStats& stats() const { return stats_; }

 private:
  struct Key {
    uint64_t parent;  // number of the entry before it, or start_of() or kSource
    uint64_t salt;
    std::span<const int32_t> tokens;
  };
  struct Page {
    uint64_t entry = 0;  // its number; 0: this page is in none
    int32_t first;       // page of the entry
    int32_t next;        // page of the entry, or kNone
    std::array<int32_t, kPageSize> tokens;
    // Of the first page of an entry:
    uint64_t parent, salt;
    size_t length;    // tokens of the entry
    size_t bucket;    // it is in
    int32_t chained;  // first page of the next entry in the bucket, or kNone
  };

  size_t bucket_of(const Key& key) const;
  bool equals(int32_t page, const Key& key) const;
  int32_t lookup(const Key& key) const;
  void remember(const Key& key, std::span<const int32_t> pages);
  void forget(int32_t page);
  void count(size_t queries, size_t hits);

  PageAllocator& pool_;
  const bool enabled_;
  uint64_t entries_ = 0;          // the number of the newest
  std::vector<Page> pages_;       // [total of the pool]
  std::vector<int32_t> buckets_;  // first page of the first entry, or kNone
  PrefixCacheStats stats_;
};

}  // namespace decoding
