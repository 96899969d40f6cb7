// Maps a variant to its family of kernels.
#include <type_traits>

#include "kernels/cuda/types.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/linear/cuda/gemm.h"
#include "kernels/linear/cuda/gemm_families.h"

namespace decoding::cuda {

template <typename T>
int fused_linear_variants(const Device& device, const LinearParams<T>& p) {
  const int inputs = p.weight.inputs;
  if (sizeof(T) == sizeof(float) && is_quantized(p.weight.kind)) return 0;
  if (!aligned16<T>(p.x, inputs) || !aligned16<T>(p.weight.data, inputs) ||
      !aligned16<T>(p.normed, inputs) || !aligned16<float>(p.norm.gamma, 0) ||
      !aligned16<float>(p.norm.beta, 0)) {
    return 0;
  }
  if constexpr (std::is_same_v<T, float>) {
    return fp32_variants(device, p);
  } else {
    return small_m_variants(device, p) + streamed_variants(device, p) + tiled_variants(device, p) +
           wgmma_variants(device, p);
  }
}

template <typename T>
void fused_linear(Stream& stream, const LinearParams<T>& p, int variant) {
  if (p.rows == 0) return;
  if constexpr (std::is_same_v<T, float>) {
    fp32_linear(stream, p, variant);
  } else {
    const Device& device = stream.device();
    const int small_m = small_m_variants(device, p);
    if (variant < small_m) return small_m_linear(stream, p, variant);
    variant -= small_m;
    const int streamed = streamed_variants(device, p);
    if (variant < streamed) return streamed_linear(stream, p, variant);
    variant -= streamed;
    const int tiled = tiled_variants(device, p);
    if (variant < tiled) return tiled_linear(stream, p, variant);
    wgmma_linear(stream, p, variant - tiled);
  }
}

template <typename T>
bool adds_in_one_order(const Device& device, const LinearParams<T>& p, int variant) {
  if constexpr (std::is_same_v<T, float>) {
    return true;
  } else {
    const int tiled = variant - small_m_variants(device, p) - streamed_variants(device, p);
    return tiled >= 0 && tiled < tiled_variants(device, p) && tiled_in_one_order(device, p, tiled);
  }
}

#define INSTANTIATE(T)                                                       \
  template int fused_linear_variants(const Device&, const LinearParams<T>&); \
  template void fused_linear(Stream&, const LinearParams<T>&, int);          \
  template bool adds_in_one_order(const Device&, const LinearParams<T>&, int);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding::cuda
