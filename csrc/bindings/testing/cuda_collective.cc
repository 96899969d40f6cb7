// decoding._kernels: exchanges between the GPUs of ranks.
#include "bindings/cuda.h"
#include "bindings/testing/kernels.h"
#include "kernels/collective/all_gather.h"
#include "kernels/collective/all_reduce.h"
#include "kernels/cuda/split_stream.h"

namespace decoding {
namespace {

using py::object;

// Calls use(stream, sizes of y) with the stream of a rank, once its part is in place. part: null
// where it is still there.
template <typename Use>
void exchange(cuda::Collective& ranks, const object& y, const object& part, Use&& use) {
  on_cuda(y, [&]<typename T>(cuda::Stream& current) {
    const Tensors in(py::str(y.attr("device")));
    cuda::SplitStream stream(current.handle(), current.device(), current.matmul(), &ranks);
    if (!part.is_none()) {
      const auto view = in.view(part, "part");
      const auto bytes = static_cast<int64_t>(sizeof(T)) * view.numel();
      CHECK(bytes <= ranks.part_bytes(), "a part must have at most ", ranks.part_bytes(), " bytes");
      CUDA_CHECK(cudaMemcpyAsync(ranks.part<T>(), view.data<T>(), bytes, cudaMemcpyDeviceToDevice,
                                 stream.handle()));
    }
    use.template operator()<T>(stream, in, in.sizes(y, "y", 2));
  });
}

}  // namespace

void bind_exchanges(py::module_& kernels) {
  kernels.def(
      "all_reduce",
      [](cuda::Collective& ranks, object y, object part, object bias, object residual) {
        exchange(ranks, y, part, [&]<typename T>(auto& stream, const Tensors& in, auto shape) {
          all_reduce<T>(stream, {.bias = in.data_or_null<float>(bias, "bias", {shape[1]}),
                                 .residual = in.data_or_null<T>(residual, "residual", shape),
                                 .y = in.data<T>(y, "y", shape),
                                 .rows = static_cast<int>(shape[0]),
                                 .cols = static_cast<int>(shape[1])});
        });
      },
      "y: [rows, cols]; part: this rank's, of y's shape; None: what the last call has left",
      py::arg("ranks"), py::arg("y"), py::arg("part") = py::none(), py::arg("bias") = py::none(),
      py::arg("residual") = py::none());
  kernels.def(
      "all_gather",
      [](cuda::Collective& ranks, object y, object part, int cols) {
        exchange(ranks, y, part, [&]<typename T>(auto& stream, const Tensors& in, auto shape) {
          CHECK(cols <= shape[1], "cols must be ", shape[1], " or less, got ", cols);
          all_gather<T>(stream, {.y = in.data<T>(y, "y", shape),
                                 .rows = static_cast<int>(shape[0]),
                                 .cols = cols,
                                 .stride = static_cast<int>(shape[1])});
        });
      },
      "y: [rows, stride], of which the first `cols` columns are made; part: this rank's columns, "
      "in "
      "rows on multiples of 8",
      py::arg("ranks"), py::arg("y"), py::arg("part"), py::arg("cols"));
}

}  // namespace decoding
