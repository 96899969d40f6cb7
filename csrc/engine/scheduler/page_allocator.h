// Who uses the pages of the K/V pool (kernels/attention/pages.h). Numbers alone: the memory itself
// is in the plan. A page is
//   free    on a stack: the page that was released last is taken first, since caches may hold it;
//   owned   by as many users as it has references;
//   cached  without references, but with keys and values that the prefix cache may find again.
//           These are in a list, least recently used first, and are reclaimed in that order where
//           no page is free.
// One thread uses a pool. Nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace decoding {

class PageAllocator {
 public:
  explicit PageAllocator(int pages);
  PageAllocator(const PageAllocator&) = delete;
  PageAllocator& operator=(const PageAllocator&) = delete;

  int total() const { return static_cast<int>(pages_.size()) - 1; }
  int available() const { return static_cast<int>(free_.size()) + reclaimable_; }
  int used() const { return total() - available(); }

  // Appends so many pages with one reference each, in ascending order, since neighbours are read as
  // one stretch of memory. All or nothing: false where fewer are available.
  bool allocate(int count, std::vector<int32_t>& to);

  // One reference more, of an owned or cached page.
  void share(int32_t page);
  // One reference less.
  void release(int32_t page);
  // From last to first: the cached pages of a prompt are then reclaimed from its end, and free ones
  // are allocated in their order again.
  void release(std::span<const int32_t> pages);
  int references(int32_t page) const;

  // Whether an owned page is kept as cached when its last reference goes. A cached page that is to
  // be kept no longer becomes free.
  void set_cached(int32_t page, bool cached);
  // Called with each page that is reclaimed, which is free by then; it may call set_cached.
  void on_reclaim(std::function<void(int32_t page)> reclaimed);

  // Throws Error unless every page is free, owned or cached, and only one of them.
  void check() const;

 private:
  struct Page {
    int32_t references = 0;
    int32_t older = 0, newer = 0;  // neighbours in the list of cached pages
    bool cached = false;
  };

  int32_t valid(int32_t page) const;  // the page; throws Error where the pool has none of it
  int32_t sentinel() const { return total(); }  // its `newer` is the least recently used page
  void append(int32_t page);
  void unlink(int32_t page);
  void reclaim();

  std::vector<Page> pages_;    // [total + 1]
  std::vector<int32_t> free_;  // the last is taken first
  int reclaimable_ = 0;
  std::function<void(int32_t)> reclaimed_;
};

}  // namespace decoding
