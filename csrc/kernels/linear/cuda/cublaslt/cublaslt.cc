// Finds cuBLASLt in this process, or on this machine.
#include "kernels/linear/cuda/cublaslt/cublaslt.h"

#include <dlfcn.h>

#include <mutex>
#include <utility>

namespace decoding::cuda::cublaslt {
namespace {

struct Folders {
  std::mutex mutex;
  std::vector<std::string> all = {""};
};

Folders& folders() {
  static Folders folders;
  return folders;
}

void* open_in(const std::string& folder, int mode) {
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    const std::string path = folder + name;
    if (void* found = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | mode)) return found;
  }
  return nullptr;
}

// One that is loaded already comes first: two versions in a process cost memory twice.
void* open_library() {
  if (void* found = open_in("", RTLD_NOLOAD)) return found;
  const std::scoped_lock lock(folders().mutex);
  for (const std::string& folder : folders().all) {
    if (void* found = open_in(folder, 0)) return found;
  }
  CHECK(false,
        "cuBLASLt is missing: there is no libcublasLt.so.13 or .12 among Python's packages, on "
        "LD_LIBRARY_PATH and in the CUDA toolkit: run `pip install nvidia-cublas`");
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

void look_in(std::vector<std::string> all) {
  const std::scoped_lock lock(folders().mutex);
  folders().all = std::move(all);
}

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

}  // namespace decoding::cuda::cublaslt
