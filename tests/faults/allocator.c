// Preloaded (LD_PRELOAD): fails chosen allocations of one library, and counts those that live.
//
// An allocation is the library's where its code asked for it, by itself or through the C++ runtime
// (operator new, std::string, std::thread): the first caller outside of that runtime decides.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
extern void __libc_free(void*);

enum { kFrames = 24, kSlots = 1 << 18, kSpared = 256 };

typedef struct {
  const char* name;
  uintptr_t begin, end, base;
} Range;

static Range ours, runtime = {"libstdc++", 0, 0, 0}, own = {"allocator.so", 0, 0, 0};
static Range spared[kSpared];  // functions of ours whose allocations never fail
static int spared_count;
static atomic_long next, fails_at = -1;
static atomic_bool lasting;
// In static memory of the thread: else the loader allocates it, from within malloc.
static __thread bool inside __attribute__((tls_model("initial-exec")));
static void* failed_at[kFrames];
static int failed_frames;

// Those of ours that live, by hash; a slot that was freed holds kFreed.
static void* const kFreed = (void*)1;
static _Atomic(void*) live[kSlots];
static atomic_long live_count;

static bool is_in(const Range* range, void* at) {
  return range->begin <= (uintptr_t)at && (uintptr_t)at < range->end;
}

static int find(struct dl_phdr_info* info, size_t size, void* data) {
  Range* range = data;
  (void)size;
  if (strstr(info->dlpi_name, range->name) == NULL) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &info->dlpi_phdr[i];
    if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
    range->begin = info->dlpi_addr + part->p_vaddr;
    range->end = range->begin + part->p_memsz;
    range->base = info->dlpi_addr;
  }
  return 1;
}

static bool is_spared(void* caller) {
  for (int i = 0; i < spared_count; ++i) {
    if (is_in(&spared[i], caller)) return true;
  }
  return false;
}

static bool is_ours(void* caller) {
  if (!is_in(&ours, caller) && !is_in(&runtime, caller)) return false;
  void* frames[kFrames];
  const int count = backtrace(frames, kFrames);
  int first = 0;
  while (first < count && (is_in(&runtime, frames[first]) || is_in(&own, frames[first]))) ++first;
  if (first == count || !is_in(&ours, frames[first])) return false;
  for (int i = first; i < count; ++i) {
    if (is_spared(frames[i])) return false;
  }
  return true;
}

// Whether the next allocation fails; counts it.
bool faults_next(void) {
  const long number = atomic_fetch_add(&next, 1), at = atomic_load(&fails_at);
  if (at < 0 || (atomic_load(&lasting) ? number < at : number != at)) return false;
  if (number == at) failed_frames = backtrace(failed_at, kFrames);
  return true;
}

// For kernels/cuda/check.h.
bool decoding_cuda_fault(void) { return faults_next(); }

static bool fails(bool* counts, void* caller) {
  *counts = false;
  if (inside || ours.end == 0) return false;
  inside = true;
  *counts = is_ours(caller);
  const bool found = *counts && faults_next();
  inside = false;
  if (found) errno = ENOMEM;
  return found;
}

static size_t slot_of(void* memory) { return ((uintptr_t)memory >> 4) * 2654435761u % kSlots; }

static void* keep(void* memory, bool counts) {
  if (!counts || memory == NULL) return memory;
  for (size_t slot = slot_of(memory);; slot = (slot + 1) % kSlots) {
    void* held = atomic_load(&live[slot]);
    if (held != NULL && held != kFreed) continue;
    if (atomic_compare_exchange_strong(&live[slot], &held, memory)) break;
  }
  atomic_fetch_add(&live_count, 1);
  return memory;
}

static void forget(void* memory) {
  if (memory == NULL || ours.end == 0) return;
  size_t slot = slot_of(memory);
  for (int i = 0; i < kSlots; ++i, slot = (slot + 1) % kSlots) {
    void* held = atomic_load(&live[slot]);
    if (held == NULL) return;
    if (held != memory) continue;
    atomic_store(&live[slot], kFreed);
    atomic_fetch_sub(&live_count, 1);
    return;
  }
}

#define CALLER __builtin_return_address(0)

void* malloc(size_t size) {
  bool counts;
  if (fails(&counts, CALLER)) return NULL;
  return keep(__libc_malloc(size), counts);
}

void* calloc(size_t count, size_t size) {
  bool counts;
  if (fails(&counts, CALLER)) return NULL;
  return keep(__libc_calloc(count, size), counts);
}

void* realloc(void* old, size_t size) {
  bool counts;
  if (fails(&counts, CALLER)) return NULL;
  forget(old);
  return keep(__libc_realloc(old, size), counts);
}

void* aligned_alloc(size_t alignment, size_t size) {
  bool counts;
  if (fails(&counts, CALLER)) return NULL;
  return keep(__libc_memalign(alignment, size), counts);
}

void free(void* memory) {
  forget(memory);
  __libc_free(memory);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*),
                   void* argument) {
  static int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  if (real == NULL) real = dlsym(RTLD_NEXT, "pthread_create");
  bool counts;
  if (fails(&counts, CALLER)) return EAGAIN;
  return real(thread, attributes, work, argument);
}

// library: a part of its path.
void faults_watch(const char* library) {
  void* frames[1];
  backtrace(frames, 1);  // loads what it needs
  dl_iterate_phdr(find, &runtime);
  dl_iterate_phdr(find, &own);
  Range found = {library, 0, 0, 0};
  dl_iterate_phdr(find, &found);
  ours = found;
}

// A function of the library, as its symbol table has it.
void faults_spare(uintptr_t offset, size_t size) {
  if (spared_count == kSpared) return;
  const uintptr_t begin = ours.base + offset;
  spared[spared_count++] = (Range){NULL, begin, begin + size, ours.base};
}

// The number-th allocation from now on fails, from 0 on, and where it lasts, all after it; -1: none.
void faults_arm(long number, bool lasts) {
  atomic_store(&fails_at, -1);
  if (number >= 0) failed_frames = 0;
  atomic_store(&next, 0);
  atomic_store(&lasting, lasts);
  atomic_store(&fails_at, number);
}

long faults_seen(void) { return atomic_load(&next); }
long faults_live(void) { return atomic_load(&live_count); }

// Who asked for the allocation that failed: offsets in the library, -1 for a caller elsewhere.
int faults_callers(long* offsets, int most) {
  Dl_info info;
  int count = 0;
  for (int i = 0; i < failed_frames && count < most; ++i) {
    const bool known = is_in(&ours, failed_at[i]) && dladdr(failed_at[i], &info) != 0;
    if (known) offsets[count++] = (char*)failed_at[i] - (char*)info.dli_fbase;
  }
  return count;
}
