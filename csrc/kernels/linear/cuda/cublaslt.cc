// Finds cuBLASLt in this process.
#include "kernels/linear/cuda/cublaslt.h"

#include <dlfcn.h>

namespace decoding::cuda::cublaslt {
namespace {

// One that is loaded already comes first: two versions in a process cost memory twice.
void* open_library() {
  for (int mode : {RTLD_NOLOAD, 0}) {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
      if (void* found = dlopen(name, RTLD_NOW | RTLD_LOCAL | mode)) return found;
    }
  }
  const char* const why = dlerror();
  CHECK(false,
        "cuBLASLt is missing: neither libcublasLt.so.13 nor libcublasLt.so.12 is loaded or found (",
        why,
        "). PyTorch for CUDA brings it; without, `pip install nvidia-cublas` and add its folder to "
        "LD_LIBRARY_PATH");
  return nullptr;
}

Library load() {
  void* const file = open_library();
  const auto find = [file](auto& function, const char* name) {
    void* const address = dlsym(file, name);
    CHECK(address != nullptr, "this cuBLASLt has no function ", name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  Library library;
  find(library.get_version, "cublasLtGetVersion");
  find(library.get_status_name, "cublasLtGetStatusName");
  find(library.create, "cublasLtCreate");
  find(library.destroy, "cublasLtDestroy");
  find(library.operation_create, "cublasLtMatmulDescCreate");
  find(library.operation_destroy, "cublasLtMatmulDescDestroy");
  find(library.operation_set, "cublasLtMatmulDescSetAttribute");
  find(library.layout_create, "cublasLtMatrixLayoutCreate");
  find(library.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(library.preference_create, "cublasLtMatmulPreferenceCreate");
  find(library.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(library.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(library.heuristics, "cublasLtMatmulAlgoGetHeuristic");
  find(library.matmul, "cublasLtMatmul");
  return library;
}

}  // namespace

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

}  // namespace decoding::cuda::cublaslt
