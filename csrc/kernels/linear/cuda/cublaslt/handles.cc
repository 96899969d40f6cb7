#include "kernels/linear/cuda/cublaslt/handles.h"

#include <map>
#include <mutex>
#include <vector>

namespace decoding::cuda::cublaslt {
namespace {

// Those that nobody has.
struct Free {
  std::mutex mutex;
  std::map<int, std::vector<Handle>> of_device;
};

Free& free_handles() {
  static Free* const all = new Free;  // sessions may end when statics have
  return *all;
}

}  // namespace

OwnHandle::OwnHandle(int device) : device_(device) {
  {
    const std::scoped_lock lock(free_handles().mutex);
    std::vector<Handle>& free = free_handles().of_device[device];
    if (!free.empty()) {
      handle_ = free.back();
      free.pop_back();
      return;
    }
    free.reserve(free.capacity() + 1);  // so that the destructor allocates nothing
  }
  CUBLASLT_CHECK(library().create(&handle_));
}

OwnHandle::~OwnHandle() {
  const std::scoped_lock lock(free_handles().mutex);
  free_handles().of_device[device_].push_back(handle_);
}

}  // namespace decoding::cuda::cublaslt
