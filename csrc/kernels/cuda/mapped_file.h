// A file that several processes map, and that their GPUs read and write over PCIe.
#pragma once

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "kernels/cuda/check.h"

namespace decoding::cuda {

class MappedFile {
 public:
  // The device must be the current one. Throws Error where that cannot be.
  MappedFile(const std::string& path, size_t bytes) : bytes_(bytes) {
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    CHECK(file >= 0, "cannot open ", path, ": ", std::strerror(errno));
    host_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const int error = errno;
    close(file);
    CHECK(host_ != MAP_FAILED, "cannot map ", path, ": ", std::strerror(error));
    const cudaError_t pinned =
        cudaHostRegister(host_, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (pinned != cudaSuccess) {
      cudaGetLastError();  // else the next launch would report it
      munmap(host_, bytes);
      throw Error("a GPU cannot use memory that processes share (cudaHostRegister of " +
                  std::to_string(bytes) + " bytes: " + cudaGetErrorString(pinned) + ")");
    }
  }
  ~MappedFile() {
    cudaHostUnregister(host_);
    munmap(host_, bytes_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // As the current device sees it.
  std::byte* on_device() const {
    void* data = nullptr;
    CUDA_CHECK(cudaHostGetDevicePointer(&data, host_, 0));
    return static_cast<std::byte*>(data);
  }

 private:
  const size_t bytes_;
  void* host_ = nullptr;
};

}  // namespace decoding::cuda
