// kernels.*: the attentions.
#include <pybind11/pybind11.h>

#include "bindings/testing/rotary.h"
#include "kernels/attention/decode.h"
#include "kernels/attention/head_dim.h"
#include "kernels/attention/packed.h"

namespace decoding {
namespace {

using py::object;
using std::string;

struct Sizes {
  int64_t rows, heads, kv_heads, dim;
  int64_t parts;  // vectors of a row: of its query heads, then of its keys and values
};

// Of y [rows, N, D] and qkv [rows, N + 2 Nkv, D]; with `keys` [Nkv, capacity, D] it holds only q.
Sizes sizes_of(const Tensors& in, const object& qkv, const object& y, const object& keys) {
  const auto shape = in.sizes(y, "y", 3);
  const int64_t heads = shape[1], dim = shape[2];
  CHECK(dim <= kMaxHeadDim, "head_dim must be at most ", kMaxHeadDim, ", got ", dim);
  const bool own = keys.is_none();
  const int64_t kv_heads =
      own ? (in.sizes(qkv, "qkv", 3)[1] - heads) / 2 : in.sizes(keys, "keys", 3)[0];
  CHECK(kv_heads > 0 && heads % kv_heads == 0, "heads must be a multiple of those of the keys, ",
        "got ", heads, " and ", kv_heads);
  return {shape[0], heads, kv_heads, dim, own ? heads + 2 * kv_heads : heads};
}

AttentionBias bias_of(const Tensors& in, int64_t heads, float cap, int window, const object& slopes,
                      const object& table) {
  const int64_t distances = table.is_none() ? 1 : in.sizes(table, "table", 2)[1];
  return {.cap = cap,
          .window = window,
          .slopes = in.data_or_null<float>(slopes, "slopes", {heads}),
          .table = in.data_or_null<float>(table, "table", {heads, distances}),
          .reach = static_cast<int>(distances / 2)};
}

object zeros(const object& like, const char* dtype, int64_t size) {
  const py::module_ torch = py::module_::import("torch");
  return torch.attr("zeros")(size, py::arg("dtype") = torch.attr(dtype),
                             py::arg("device") = like.attr("device"));
}

void bind_packed_attention(py::module_& kernels) {
  kernels.def(
      "packed_attention",
      [](object qkv, object offsets, object y, float scale, bool causal, object shared_k,
         object shared_v, object shared_offsets, float cap, int window, object slopes, object table,
         int longest, const string& isa, int threads) {
        run_with_cache(
            y, shared_k, isa, threads,
            [&]<typename T, typename C>(const Tensors& in) {
              const auto [tokens, heads, kv_heads, dim, parts] = sizes_of(in, qkv, y, shared_k);
              const bool cross = !shared_k.is_none();
              const int64_t capacity = cross ? in.sizes(shared_k, "shared_k", 3)[1] : 0;
              const std::vector<int64_t> shared{kv_heads, capacity, dim};
              const T* q = in.data<T>(qkv, "qkv", {tokens, parts, dim});
              const auto own = [q, dim = dim](int64_t head) {  // without a cache C is T
                return reinterpret_cast<const C*>(q + head * dim);
              };
              const int64_t sentences = in.sizes(offsets, "offsets", 1)[0] - 1;
              return PackedAttentionParams<T, C>{
                  .q = q,
                  .k = cross ? in.data<C>(shared_k, "shared_k", shared) : own(heads),
                  .v = cross ? in.data<C>(shared_v, "shared_v", shared) : own(heads + kv_heads),
                  .offsets = in.data<int32_t>(offsets, "offsets", {-1}),
                  .key_offsets = in.data<int32_t>(cross ? shared_offsets : offsets, "key offsets",
                                                  {sentences + 1}),
                  .y = in.data<T>(y, "y", {tokens, heads, dim}),
                  .sentences = static_cast<int>(sentences),
                  .longest = longest > 0 ? longest : static_cast<int>(tokens),
                  .heads = static_cast<int>(heads),
                  .kv_heads = static_cast<int>(kv_heads),
                  .head_dim = static_cast<int>(dim),
                  .stride = static_cast<int>(parts * dim),
                  .key_stride = static_cast<int>(cross ? dim : parts * dim),
                  .head_stride = cross ? capacity * dim : dim,
                  .scale = scale,
                  .causal = causal,
                  .bias = bias_of(in, heads, cap, window, slopes, table)};
            },
            [](auto& stream, const auto& params) { packed_attention(stream, params); });
      },
      "qkv: [tokens, N + 2 Nkv, D], or [tokens, N, D], only q, where keys are shared ones; slopes "
      "[N] and table [N, 2 * reach + 1]: float32; longest: most tokens of a sentence, 0: all of "
      "them",
      py::arg("qkv"), py::arg("offsets"), py::arg("y"), py::arg("scale"), py::arg("causal"),
      py::kw_only(), py::arg("shared_k") = py::none(), py::arg("shared_v") = py::none(),
      py::arg("shared_offsets") = py::none(), py::arg("cap") = 0.0f, py::arg("window") = 0,
      py::arg("slopes") = py::none(), py::arg("table") = py::none(), py::arg("longest") = 0,
      py::arg("isa"), py::arg("threads"));
}

void bind_store_shared(py::module_& kernels) {
  kernels.def(
      "store_shared",
      [](object kv, object shared_k, object shared_v, const string& isa, int threads) {
        run_with_cache(
            kv, shared_k, isa, threads,
            [&]<typename T, typename C>(const Tensors& in) {
              const auto shape = in.sizes(kv, "kv", 4);
              const int64_t tokens = shape[0], heads = shape[2], dim = shape[3];
              const int64_t capacity = in.sizes(shared_k, "shared_k", 3)[1];
              const T* k = in.data<T>(kv, "kv", {tokens, 2, heads, dim});
              return StoreSharedParams<T, C>{
                  .k = k,
                  .v = k + heads * dim,
                  .shared_k = in.data<C>(shared_k, "shared_k", {heads, capacity, dim}),
                  .shared_v = in.data<C>(shared_v, "shared_v", {heads, capacity, dim}),
                  .tokens = static_cast<int>(tokens),
                  .heads = static_cast<int>(heads),
                  .head_dim = static_cast<int>(dim),
                  .stride = static_cast<int>(2 * heads * dim),
                  .capacity = static_cast<int>(capacity)};
            },
            [](auto& stream, const auto& params) { store_shared(stream, params); });
      },
      "kv: [tokens, 2, Nkv, D]", py::arg("kv"), py::arg("shared_k"), py::arg("shared_v"),
      py::kw_only(), py::arg("isa"), py::arg("threads"));
}

void bind_decode_attention(py::module_& kernels) {
  kernels.def(
      "decode_attention",
      [](object qkv, object active, object y, float scale, int beams, object shared_k,
         object shared_v, object shared_offsets, object self_k, object self_v, object self_pages,
         object cache_indirection, object state, float cap, int window, object slopes, object table,
         object partial, object split_counters, object positions, object frequencies,
         bool interleaved, float factor, object q_gamma, object k_gamma, float eps,
         const string& isa, int threads) {
        run_with_cache(
            y, self_k.is_none() ? shared_k : self_k, isa, threads,
            [&]<typename T, typename C>(const Tensors& in) {
              const bool history = !self_k.is_none(), shared = !shared_k.is_none();
              const auto [rows, heads, kv_heads, dim, parts] =
                  sizes_of(in, qkv, y, history ? py::none() : shared_k);
              const auto tables = history ? in.sizes(cache_indirection, "cache_indirection", 3)
                                          : std::vector<int64_t>(3, 0);
              const int64_t total = tables[1], target = tables[2];
              const int64_t pages = history ? in.sizes(self_k, "self_k", 4)[1] : 0;
              const int64_t longest = history ? in.sizes(self_pages, "self_pages", 2)[1] : 0;
              const int64_t capacity = shared ? in.sizes(shared_k, "shared_k", 3)[1] : 0;
              const int64_t scratch = partial_size(dim);
              if (in.on_cuda() && partial.is_none()) {
                partial = zeros(y, "float32", scratch);
                split_counters = zeros(y, "int32", kSplitCounters);
              }
              T* q = in.data<T>(qkv, "qkv", {rows, parts, dim});
              return DecodeAttentionParams<T, C>{
                  .state = step_state(in, state),
                  .q = q,
                  .k = history ? q + heads * dim : nullptr,
                  .v = history ? q + (heads + kv_heads) * dim : nullptr,
                  .shared_k = in.data_or_null<C>(shared_k, "shared_k", {kv_heads, capacity, dim}),
                  .shared_v = in.data_or_null<C>(shared_v, "shared_v", {kv_heads, capacity, dim}),
                  .shared_offsets =
                      in.data_or_null<int32_t>(shared_offsets, "shared_offsets", {-1}),
                  .self_k = in.data_or_null<C>(self_k, "self_k", {kv_heads, pages, kPageSize, dim}),
                  .self_v = in.data_or_null<C>(self_v, "self_v", {kv_heads, pages, kPageSize, dim}),
                  .self_pages = {in.data_or_null<int32_t>(self_pages, "self_pages", {-1, longest}),
                                 static_cast<int>(longest), static_cast<int>(pages)},
                  .cache_indirection = in.data_or_null<int32_t>(
                      cache_indirection, "cache_indirection", {2, total, target}),
                  .active = active_sentences(in, active, rows / beams),
                  .y = in.data<T>(y, "y", {rows, heads, dim}),
                  .partial = in.data_or_null<float>(partial, "partial", {scratch}),
                  .split_counters =
                      in.data_or_null<int32_t>(split_counters, "split_counters", {kSplitCounters}),
                  .sentences = static_cast<int>(rows / beams),
                  .beams = beams,
                  .heads = static_cast<int>(heads),
                  .kv_heads = static_cast<int>(kv_heads),
                  .head_dim = static_cast<int>(dim),
                  .stride = static_cast<int>(parts * dim),
                  .shared_capacity = static_cast<int>(capacity),
                  .target = static_cast<int>(target),
                  .total_rows = static_cast<int>(total),
                  .slots = beams,
                  .scale = scale,
                  .bias = bias_of(in, heads, cap, window, slopes, table),
                  .rotary = rotary_of(in, positions, frequencies, 0, 0, interleaved, factor,
                                      q_gamma, k_gamma, eps, rows, dim)};
            },
            [](auto& stream, const auto& params) { decode_attention(stream, params); });
      },
      "qkv: [rows, N + 2 Nkv, D], or [rows, N, D], only q, where there is no history; "
      "active: [rows / beams, 3], id, number and position of each sentence; state: number, "
      "live_count; slopes [N] and table [N, 2 * reach + 1]: float32; partial and "
      "split_counters: CUDA's scratch, made where they are not given; from `positions` on: as in "
      "apply_rotary, which "
      "the CPU does in place",
      py::arg("qkv"), py::arg("active"), py::arg("y"), py::arg("scale"), py::arg("beams"),
      py::kw_only(), py::arg("shared_k") = py::none(), py::arg("shared_v") = py::none(),
      py::arg("shared_offsets") = py::none(), py::arg("self_k") = py::none(),
      py::arg("self_v") = py::none(), py::arg("self_pages") = py::none(),
      py::arg("cache_indirection") = py::none(), py::arg("state"), py::arg("cap") = 0.0f,
      py::arg("window") = 0, py::arg("slopes") = py::none(), py::arg("table") = py::none(),
      py::arg("partial") = py::none(), py::arg("split_counters") = py::none(),
      py::arg("positions") = py::none(), py::arg("frequencies") = py::none(),
      py::arg("interleaved") = false, py::arg("factor") = 1.0f, py::arg("q_gamma") = py::none(),
      py::arg("k_gamma") = py::none(), py::arg("eps") = 1e-6f, py::arg("isa"), py::arg("threads"));
}

void bind_attention_weights(py::module_& kernels) {
  kernels.def(
      "attention_weights",
      [](object q, object active, object y, float scale, int beams, object shared_k,
         object shared_offsets, object state, const string& isa, int threads) {
        run_with_cache(
            q, shared_k, isa, threads,
            [&]<typename T, typename C>(const Tensors& in) {
              const auto [rows, heads, kv_heads, dim, parts] = sizes_of(in, q, q, shared_k);
              const int64_t capacity = in.sizes(shared_k, "shared_k", 3)[1];
              const auto kept = in.sizes(y, "y", 3);
              return AttentionWeightsParams<T, C>{
                  .state = step_state(in, state),
                  .q = in.data<T>(q, "q", {rows, parts, dim}),
                  .shared_k = in.data<C>(shared_k, "shared_k", {kv_heads, capacity, dim}),
                  .shared_offsets = in.data<int32_t>(shared_offsets, "shared_offsets", {-1}),
                  .active = active_sentences(in, active, rows / beams),
                  .y = in.data<float>(y, "y", kept),
                  .sentences = static_cast<int>(rows / beams),
                  .beams = beams,
                  .heads = static_cast<int>(heads),
                  .kv_heads = static_cast<int>(kv_heads),
                  .head_dim = static_cast<int>(dim),
                  .stride = static_cast<int>(parts * dim),
                  .shared_capacity = static_cast<int>(capacity),
                  .total_rows = static_cast<int>(kept[1]),
                  .longest = static_cast<int>(kept[2]),
                  .scale = scale};
            },
            [](auto& stream, const auto& params) { attention_weights(stream, params); });
      },
      "active and state as above", py::arg("q"), py::arg("active"), py::arg("y"), py::arg("scale"),
      py::arg("beams"), py::kw_only(), py::arg("shared_k"), py::arg("shared_offsets"),
      py::arg("state"), py::arg("isa"), py::arg("threads"));
}

}  // namespace

void bind_attention(py::module_& kernels) {
  bind_packed_attention(kernels);
  bind_store_shared(kernels);
  bind_decode_attention(kernels);
  bind_attention_weights(kernels);
}

}  // namespace decoding
