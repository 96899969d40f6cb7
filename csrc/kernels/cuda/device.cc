// What a device is, and whether there is code for it.
#include "kernels/cuda/check.h"
#include "kernels/cuda/stream.h"

namespace decoding::cuda {

Device Device::of(int id) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  CHECK(error == cudaSuccess && count > 0,
        "there is no usable NVIDIA GPU: ", cudaGetErrorString(error));
  CHECK(id >= 0 && id < count, "there is no cuda:", id, ", only 0 to ", count - 1);
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, id));
  CHECK(properties.major >= 8, properties.name, " has compute capability ", properties.major, '.',
        properties.minor, ", the CUDA engine needs 8.0 (Ampere) or newer: use device=\"cpu\"");
  Device device{.id = id,
                .major = properties.major,
                .minor = properties.minor,
                .multiprocessors = properties.multiProcessorCount,
                .shared_memory = static_cast<int>(properties.sharedMemPerBlockOptin),
                .l2 = properties.l2CacheSize,
                .name = {}};
  std::snprintf(device.name, sizeof(device.name), "%s", properties.name);
  return device;
}

}  // namespace decoding::cuda
