#include "kernels/cuda/use_device.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "kernels/cuda/check.h"

namespace decoding::cuda {
namespace {

// What CUDA's runtime does not offer, from the driver that it loads. Null where there is none.
struct Driver {
  decltype(&cuCtxGetCurrent) get_current = nullptr;
  decltype(&cuCtxSetCurrent) set_current = nullptr;

  static const Driver& loaded() {
    static const Driver driver;
    return driver;
  }

 private:
  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    get_current = reinterpret_cast<decltype(get_current)>(dlsym(library, "cuCtxGetCurrent"));
    set_current = reinterpret_cast<decltype(set_current)>(dlsym(library, "cuCtxSetCurrent"));
  }
};

// Null where there is none, and before CUDA's first call.
CUcontext current_context() {
  CUcontext context = nullptr;
  const auto get_current = Driver::loaded().get_current;
  return get_current != nullptr && get_current(&context) == CUDA_SUCCESS ? context : nullptr;
}

}  // namespace

UseDevice::UseDevice(int device) : before_(current_context()) { CUDA_CHECK(cudaSetDevice(device)); }

UseDevice::UseDevice(int device, std::nothrow_t) noexcept : before_(current_context()) {
  cudaSetDevice(device);
}

UseDevice::~UseDevice() {
  const auto set_current = Driver::loaded().set_current;
  if (set_current != nullptr) set_current(before_);
}

}  // namespace decoding::cuda
