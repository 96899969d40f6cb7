// For the tests of kernels whose parameters lie in the device's memory.
#pragma once

#include <string>
#include <vector>

#include "bindings/testing/kernels.h"
#include "kernels/search/config.h"

namespace decoding {

// Numbers of the host where a tensor lies.
template <typename T>
class Placed {
 public:
  Placed(std::vector<T> values, const py::object& like) {
    if (values.empty()) values.emplace_back();  // torch has no buffers of nothing
    const py::bytearray bytes(reinterpret_cast<const char*>(values.data()),
                              values.size() * sizeof(T));
    const py::module_ torch = py::module_::import("torch");
    tensor_ = torch.attr("frombuffer")(bytes, py::arg("dtype") = torch.attr("uint8"));
    tensor_ = tensor_.attr("to")(like.attr("device"));
  }
  const T* data() const {
    return reinterpret_cast<const T*>(tensor_.attr("data_ptr")().template cast<uintptr_t>());
  }

 private:
  py::object tensor_;
};

// Calls op(stream) where a tensor lies.
template <typename Op>
void run_on(const py::object& like, const std::string& isa, int threads, Op&& op) {
  const std::string device = py::str(like.attr("device"));
  if (device == "cpu") return on_cpu(isa, threads, op);
#ifdef DECODING_CUDA
  cuda::Stream stream = current_stream(like);
  op(stream);
#else
  throw Error("this engine was built without CUDA");
#endif
}

// What a search asks for, where a tensor lies.
class PlacedConfig {
 public:
  PlacedConfig(const SearchConfig& search, const std::vector<SentenceConfig>& sentences,
               const std::vector<int32_t>& words, const py::object& like)
      : search_({search}, like), sentences_(sentences, like), words_(words, like) {}
  ConfigView view() const { return {search_.data(), sentences_.data(), words_.data()}; }

 private:
  Placed<SearchConfig> search_;
  Placed<SentenceConfig> sentences_;
  Placed<int32_t> words_;
};

}  // namespace decoding
