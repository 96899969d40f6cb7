// The properties of a device, and whether there is code for it.
#include <cstdio>
#include <sstream>

#include "kernels/cuda/check.h"
#include "kernels/cuda/resources.h"
#include "kernels/cuda/stream.h"

namespace decoding {

extern const char* const kCudaArchs;  // "80 90", written by setup.py

namespace cuda {
namespace {

// The newest target up to a capability; 0 where there is none.
int newest_code(int capability) {
  std::istringstream targets(kCudaArchs);
  int newest = 0;
  for (int target; targets >> target;) {
    if (target <= capability && target > newest) newest = target;
  }
  return newest;
}

}  // namespace

int device_count() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  CHECK(error != cudaErrorInitializationError,
        "a child of fork() cannot use CUDA: start the process with \"spawn\"");
  CHECK(error == cudaSuccess && count > 0, "CUDA finds no NVIDIA GPU (", cudaGetErrorString(error),
        "): see what `nvidia-smi` prints, or pass device=\"cpu\"");
  return count;
}

Device Device::of(int id) {
  const int count = device_count();
  CHECK(id >= 0 && id < count, "there is no cuda:", id, ", only 0 to ", count - 1);
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, id));
  CHECK(properties.major >= 8, properties.name, " has compute capability ", properties.major, '.',
        properties.minor, ", the CUDA engine needs 8.0 (Ampere) or newer: use device=\"cpu\"");
  const int capability = 10 * properties.major + properties.minor;
  Device device{.id = id,
                .capability = capability,
                .code = newest_code(capability),
                .multiprocessors = properties.multiProcessorCount,
                .shared_memory = static_cast<int>(properties.sharedMemPerBlockOptin),
                .l2 = properties.l2CacheSize,
                .name = {}};
  std::snprintf(device.name, sizeof(device.name), "%s", properties.name);
  CHECK(device.code > 0, "the engine was built for compute capabilities ", kCudaArchs, ", ",
        properties.name, " has ", capability, ": build with DECODING_CUDA_ARCHS=", capability);
  return device;
}

}  // namespace cuda
}  // namespace decoding
