#include "engine/scheduler/page_allocator.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace decoding {

PageAllocator::PageAllocator(int pages) {
  CHECK(pages >= 0, "a pool must have 0 pages or more, got ", pages);
  pages_.resize(size_t(pages) + 1);
  pages_[pages].older = pages_[pages].newer = pages;
  free_.reserve(pages);
  for (int32_t page = pages - 1; page >= 0; --page) free_.push_back(page);
}

int32_t PageAllocator::valid(int32_t page) const {
  CHECK(page >= 0 && page < total(), "page must be 0 to ", total() - 1, ", got ", page);
  return page;
}

int PageAllocator::references(int32_t page) const { return pages_[valid(page)].references; }

void PageAllocator::append(int32_t page) {
  const int32_t newest = pages_[sentinel()].older;
  pages_[page].older = newest;
  pages_[page].newer = sentinel();
  pages_[newest].newer = pages_[sentinel()].older = page;
  ++reclaimable_;
}

void PageAllocator::unlink(int32_t page) {
  pages_[pages_[page].older].newer = pages_[page].newer;
  pages_[pages_[page].newer].older = pages_[page].older;
  --reclaimable_;
}

void PageAllocator::reclaim() {
  const int32_t page = pages_[sentinel()].newer;
  set_cached(page, false);
  if (reclaimed_) reclaimed_(page);
}

bool PageAllocator::allocate(int count, std::vector<int32_t>& to) {
  CHECK(count >= 0, "0 pages or more can be allocated, got ", count);
  if (count > available()) return false;
  const auto first = static_cast<std::ptrdiff_t>(to.size());
  to.resize(to.size() + count);
  for (auto place = to.begin() + first; place != to.end(); ++place) {
    if (free_.empty()) reclaim();
    *place = free_.back();
    free_.pop_back();
    pages_[*place].references = 1;
  }
  std::sort(to.begin() + first, to.end());
  return true;
}

void PageAllocator::share(int32_t page) {
  Page& shared = pages_[valid(page)];
  CHECK(shared.references > 0 || shared.cached, "page ", page, " is free: nothing is in it");
  if (shared.references++ == 0) unlink(page);
}

void PageAllocator::release(int32_t page) {
  Page& released = pages_[valid(page)];
  CHECK(released.references > 0, "page ", page, " has no references to release");
  if (--released.references > 0) return;
  if (released.cached) return append(page);
  free_.push_back(page);
}

void PageAllocator::release(std::span<const int32_t> pages) {
  for (auto page = pages.rbegin(); page != pages.rend(); ++page) release(*page);
}

void PageAllocator::set_cached(int32_t page, bool cached) {
  Page& changed = pages_[valid(page)];
  if (changed.cached == cached) return;
  CHECK(changed.references > 0 || !cached, "page ", page, " is free: nothing is in it");
  changed.cached = cached;
  if (changed.references > 0) return;
  unlink(page);
  free_.push_back(page);
}

void PageAllocator::on_reclaim(std::function<void(int32_t page)> reclaimed) {
  reclaimed_ = std::move(reclaimed);
}

void PageAllocator::check() const {
  std::vector<int> listed(total(), 0);
  for (const int32_t page : free_) {
    CHECK(!pages_[page].cached, "page ", page, " is both free and cached");
    ++listed[page];
  }
  int cached = 0;
  for (int32_t page = pages_[sentinel()].newer; page != sentinel(); page = pages_[page].newer) {
    CHECK(pages_[page].cached, "page ", page, " is reclaimable, but not cached");
    CHECK(pages_[pages_[page].newer].older == page, "the list is broken at page ", page);
    CHECK(++cached <= reclaimable_, "more pages are listed as cached than the ", reclaimable_);
    ++listed[page];
  }
  CHECK(cached == reclaimable_, cached, " pages are listed as cached instead of ", reclaimable_);
  for (int32_t page = 0; page < total(); ++page) {
    const int references = pages_[page].references;
    CHECK(references >= 0, "page ", page, " has ", references, " references");
    CHECK(listed[page] == (references == 0 ? 1 : 0), "page ", page, " with ", references,
          " references is listed ", listed[page], " times as free or cached");
  }
}

}  // namespace decoding
