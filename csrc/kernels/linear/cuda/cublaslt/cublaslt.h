// The part of cuBLASLt's C interface that we use, declared here so that building needs none of its
// headers. Handles and descriptors are opaque; everything else is a number, the same in versions
// 12 and 13.
//
// The library itself is taken at run time; where PyTorch has loaded it already, that one.
#pragma once

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/check.h"

namespace decoding::cuda::cublaslt {

using Handle = struct HandleTag*;          // cublasLtHandle_t
using Operation = struct OperationTag*;    // cublasLtMatmulDesc_t
using Layout = struct LayoutTag*;          // cublasLtMatrixLayout_t, column-major by default
using Preference = struct PreferenceTag*;  // cublasLtMatmulPreference_t

enum class Status : int { success = 0, not_supported = 15 };
enum class Compute : int { float32 = 68 };  // multiplies and adds in float32, without TF32
enum class Transpose : int32_t { no = 0, yes = 1 };

// The end of a product. Bits that may be combined; none of them is `nothing`.
enum class Epilogue : uint32_t { nothing = 1, relu = 2, bias = 4, gelu_tanh = 32 };

enum class OperationAttribute : int { transpose_a = 3, epilogue = 7, bias_pointer = 8 };

enum class PreferenceAttribute : int {
  workspace_bytes = 1,    // uint64_t
  reduction_schemes = 3,  // uint32_t, bits
  alignment_a = 5,        // uint32_t, bytes; B, C and D follow
  alignment_b = 6,
  alignment_c = 7,
  alignment_d = 8
};
// Of the ways to add up parts of a sum over K, the one that does it in float32.
constexpr uint32_t kReduceInComputeType = 2;

// May be stored, and used again with the same version of the library.
struct Algorithm {
  uint64_t words[8] = {};

  auto operator<=>(const Algorithm&) const = default;
};

struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  Status status;
  float waves;
  int reserved[4];
};

// The functions, each named as in C without its prefix.
struct Library {
  size_t (*get_version)();
  const char* (*get_status_name)(Status);
  Status (*create)(Handle*);
  Status (*operation_create)(Operation*, Compute, cudaDataType_t scale);
  Status (*operation_destroy)(Operation);
  Status (*operation_set)(Operation, OperationAttribute, const void* value, size_t bytes);
  Status (*layout_create)(Layout*, cudaDataType_t, uint64_t rows, uint64_t cols, int64_t stride);
  Status (*layout_destroy)(Layout);
  Status (*preference_create)(Preference*);
  Status (*preference_destroy)(Preference);
  Status (*preference_set)(Preference, PreferenceAttribute, const void* value, size_t bytes);
  Status (*heuristics)(Handle, Operation, Layout a, Layout b, Layout c, Layout d, Preference,
                       int most, Heuristic* found, int* count);
  // d = alpha a b + beta c
  Status (*matmul)(Handle, Operation, const void* alpha, const void* a, Layout, const void* b,
                   Layout, const void* beta, const void* c, Layout, void* d, Layout,
                   const Algorithm*, void* workspace, size_t bytes, cudaStream_t);
};

// Where library() looks: "/usr/lib/"; "" are the places of the system, and LD_LIBRARY_PATH. Threads
// may call it side by side.
void look_in(std::vector<std::string> folders);

// Throws where there is no cuBLASLt, and says how to get it.
const Library& library();

}  // namespace decoding::cuda::cublaslt

#define CUBLASLT_CHECK(call)                                                                    \
  do {                                                                                          \
    const auto status_ = (call);                                                                \
    CHECK(status_ == ::decoding::cuda::cublaslt::Status::success,                               \
          "cuBLASLt: ", ::decoding::cuda::cublaslt::library().get_status_name(status_), " in ", \
          #call);                                                                               \
  } while (false)
