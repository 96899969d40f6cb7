// Depthwise convolution; the contract is in depthwise.h. How a block goes through packed rows, and
// a warp through the past of a row, is in packed.cuh and decode.cuh beside this file.
#include "kernels/conv/cuda/decode.cuh"
#include "kernels/conv/cuda/packed.cuh"
#include "kernels/conv/depthwise.h"
#include "kernels/cuda/occupancy.cuh"

namespace decoding {
namespace cuda {
namespace {

// Calls use<made>(): whether weights are the softmax of scores.
template <typename T, typename Use>
void for_weights(const DepthwiseWeights<T>& weights, Use&& use) {
  weights.scores != nullptr ? use.template operator()<true>() : use.template operator()<false>();
}

template <bool made, bool whole, int exact, typename T>
void launch_packed(Stream& stream, const PackedDepthwiseParams<T>& p) {
  const dim3 grid(p.sentences, divide_up(p.longest, kTile),
                  p.heads * divide_up(p.head_dim, kChannels));
  launch(stream, packed_depthwise_kernel<made, whole, exact, T>, grid, dim3(kLanes, kRuns), 0, p);
}

template <bool made, bool whole, typename T>
void launch_decode(Stream& stream, const DecodeDepthwiseParams<T>& p) {
  const dim3 grid(p.sentences * p.beams,
                  divide_up(p.heads * divide_up(p.head_dim, kStepChannels<whole>), kStepWarps));
  launch(stream, decode_depthwise_kernel<made, whole, T>, grid, dim3(kStepWarps * kWarp), 0, p);
}

}  // namespace
}  // namespace cuda

template <typename T>
void packed_depthwise(cuda::Stream& stream, const PackedDepthwiseParams<T>& p) {
  if (p.sentences == 0 || p.longest == 0) return;
  const bool whole = cuda::aligned16<T>(p.x, p.head_dim) && cuda::aligned16<T>(p.y, 0);
  cuda::for_weights(p.weights, [&]<bool made>() {
    if (!whole) return cuda::launch_packed<made, false, 0>(stream, p);
    switch (p.weights.kernel_size) {  // those of Wu et al. 2019
      case 3:
        return cuda::launch_packed<made, true, 3>(stream, p);
      case 7:
        return cuda::launch_packed<made, true, 7>(stream, p);
      case 15:
        return cuda::launch_packed<made, true, 15>(stream, p);
      case 31:
        return cuda::launch_packed<made, true, 31>(stream, p);
      default:
        return cuda::launch_packed<made, true, 0>(stream, p);
    }
  });
}

template <typename T>
void decode_depthwise(cuda::Stream& stream, const DecodeDepthwiseParams<T>& p) {
  if (p.sentences * p.beams == 0) return;
  const bool whole = cuda::aligned16<T>(p.x, p.head_dim) && cuda::aligned16<T>(p.inputs, 0) &&
                     cuda::aligned16<T>(p.y, 0);
  cuda::for_weights(p.weights, [&]<bool made>() {
    whole ? cuda::launch_decode<made, true>(stream, p)
          : cuda::launch_decode<made, false>(stream, p);
  });
}

#define INSTANTIATE(T)                                                            \
  template void packed_depthwise(cuda::Stream&, const PackedDepthwiseParams<T>&); \
  template void decode_depthwise(cuda::Stream&, const DecodeDepthwiseParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
