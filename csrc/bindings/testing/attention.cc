// kernels.*: the attentions.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <span>
#include <vector>

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

// Of y [rows, N, D] and qkv [rows, N + 2 Nkv, D]; with `k_pages` it holds only q.
Sizes sizes_of(const Tensors& in, const object& qkv, const object& y, const object& k_pages) {
  const auto shape = in.sizes(y, "y", 3);
  const int64_t heads = shape[1], dim = shape[2];
  CHECK(dim <= kMaxHeadDim, "head_dim must be at most ", kMaxHeadDim, ", got ", dim);
  const bool own = k_pages.is_none();
  const int64_t kv_heads =
      own ? (in.sizes(qkv, "qkv", 3)[1] - heads) / 2 : in.sizes(k_pages, "k_pages", 4)[0];
  CHECK(kv_heads > 0 && heads % kv_heads == 0, "heads must be a multiple of those of the keys, ",
        "got ", heads, " and ", kv_heads);
  return {shape[0], heads, kv_heads, dim, own ? heads + 2 * kv_heads : heads};
}

// k, v: [Nkv, pages, kPageSize, D]; k_scales, v_scales: [Nkv, pages, kPageSize], where k and v are
// uint8, the bytes of e4m3
struct Pool {
  object k, v, k_scales, v_scales;

  template <typename C>
  PagePool<C> of(const Tensors& in, int64_t kv_heads, int64_t dim) const {
    const int64_t pages = in.sizes(k, "k_pages", 4)[1];
    std::vector<int64_t> shape{kv_heads, pages, kPageSize, dim};
    PagePool<C> pool{in.data<C>(k, "k_pages", shape), in.data<C>(v, "v_pages", shape),
                     static_cast<int>(pages)};
    shape.pop_back();
    if constexpr (kIsFloat8<C>) {
      pool.k_scales = in.data<float>(k_scales, "k_scales", shape);
      pool.v_scales = in.data<float>(v_scales, "v_scales", shape);
    }
    return pool;
  }
};

// As run_with_cache, also for e4m3.
template <typename Make, typename Op>
void run_with_pages(const object& like, const object& pages, const string& isa, int threads,
                    Make&& make, Op op) {
#ifdef DECODING_CUDA
  const Tensors tensors(py::str(like.attr("device")));
  if (tensors.on_cuda() && tensors.view(pages, "k_pages").type() == number_type<uint8_t>) {
    return on_cuda(like, [&]<typename T>(cuda::Stream& stream) {
      if constexpr (sizeof(T) == 2) {
        return op(stream, make.template operator()<T, Float8>(tensors));
      }
      throw Error("e4m3 goes with float16 and bfloat16");
    });
  }
#endif
  run_with_cache(like, pages, isa, threads, make, op);
}

// pages: [B, longest], or none
PageTable page_table(const Tensors& in, const object& pages, const char* name) {
  if (pages.is_none()) return {};
  const int64_t longest = in.sizes(pages, name, 2)[1];
  return {in.data<int32_t>(pages, name, {-1, longest}), static_cast<int>(longest)};
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
      [](object qkv, object offsets, object y, float scale, bool causal, float cap, int window,
         object slopes, object table, int longest, const string& isa, int threads) {
        run_kernel(
            y, isa, threads,
            [&]<typename T>(const Tensors& in) {
              const Sizes sizes = sizes_of(in, qkv, y, py::none());
              const T* q = in.data<T>(qkv, "qkv", {sizes.rows, sizes.parts, sizes.dim});
              const T* k = q + sizes.heads * sizes.dim;
              return PackedAttentionParams<T>{
                  .q = q,
                  .keys = {k, k + sizes.kv_heads * sizes.dim},
                  .offsets = in.data<int32_t>(offsets, "offsets", {-1}),
                  .y = in.data<T>(y, "y", {sizes.rows, sizes.heads, sizes.dim}),
                  .sentences = static_cast<int>(in.sizes(offsets, "offsets", 1)[0] - 1),
                  .longest = longest > 0 ? longest : static_cast<int>(sizes.rows),
                  .heads = static_cast<int>(sizes.heads),
                  .kv_heads = static_cast<int>(sizes.kv_heads),
                  .head_dim = static_cast<int>(sizes.dim),
                  .stride = static_cast<int>(sizes.parts * sizes.dim),
                  .scale = scale,
                  .causal = causal,
                  .bias = bias_of(in, sizes.heads, cap, window, slopes, table)};
            },
            [](auto& stream, const auto& params) { packed_attention(stream, params); });
      },
      "qkv: [tokens, N + 2 Nkv, D]; slopes [N] and table [N, 2 * reach + 1]: float32; longest: "
      "most tokens of a sentence, 0: all of them",
      py::arg("qkv"), py::arg("offsets"), py::arg("y"), py::arg("scale"), py::arg("causal"),
      py::kw_only(), py::arg("cap") = 0.0f, py::arg("window") = 0, py::arg("slopes") = py::none(),
      py::arg("table") = py::none(), py::arg("longest") = 0, py::arg("isa"), py::arg("threads"));
}

void bind_paged_attention(py::module_& kernels) {
  kernels.def(
      "paged_attention",
      [](object q, object offsets, object y, float scale, bool causal, object k_pages,
         object v_pages, object pages, object lengths, object first_queries, float cap, int window,
         object slopes, object table, object k_scales, object v_scales, const string& isa,
         int threads) {
        const Pool pool{k_pages, v_pages, k_scales, v_scales};
        run_with_pages(
            y, k_pages, isa, threads,
            [&]<typename T, typename C>(const Tensors& in) {
              const Sizes sizes = sizes_of(in, q, y, k_pages);
              const int64_t sentences = in.sizes(offsets, "offsets", 1)[0] - 1;
              return PackedAttentionParams<T, PagedKeys<C>>{
                  .q = in.data<T>(q, "q", {sizes.rows, sizes.heads, sizes.dim}),
                  .keys = {pool.of<C>(in, sizes.kv_heads, sizes.dim),
                           page_table(in, pages, "pages"),
                           in.data<int32_t>(lengths, "lengths", {sentences}),
                           in.data_or_null<int32_t>(first_queries, "first_queries", {sentences})},
                  .offsets = in.data<int32_t>(offsets, "offsets", {sentences + 1}),
                  .y = in.data<T>(y, "y", {sizes.rows, sizes.heads, sizes.dim}),
                  .sentences = static_cast<int>(sentences),
                  .longest = static_cast<int>(sizes.rows),
                  .heads = static_cast<int>(sizes.heads),
                  .kv_heads = static_cast<int>(sizes.kv_heads),
                  .head_dim = static_cast<int>(sizes.dim),
                  .stride = static_cast<int>(sizes.heads * sizes.dim),
                  .scale = scale,
                  .causal = causal,
                  .bias = bias_of(in, sizes.heads, cap, window, slopes, table)};
            },
            [](auto& stream, const auto& params) { packed_attention(stream, params); });
      },
      "Packed attention to keys in pages. q: [tokens, N, D]; pages: [sentences, longest]; lengths "
      "and first_queries: [sentences]; slopes and table as above; k_pages, v_pages, k_scales and "
      "v_scales: of one layer, see pages.h",
      py::arg("q"), py::arg("offsets"), py::arg("y"), py::arg("scale"), py::arg("causal"),
      py::kw_only(), py::arg("k_pages"), py::arg("v_pages"), py::arg("pages"), py::arg("lengths"),
      py::arg("first_queries") = py::none(), py::arg("cap") = 0.0f, py::arg("window") = 0,
      py::arg("slopes") = py::none(), py::arg("table") = py::none(),
      py::arg("k_scales") = py::none(), py::arg("v_scales") = py::none(), py::arg("isa"),
      py::arg("threads"));
}

void bind_store_shared(py::module_& kernels) {
  kernels.def(
      "store_shared",
      [](object kv, object cells, object k_pages, object v_pages, object k_scales, object v_scales,
         const string& isa, int threads) {
        const Pool pool{k_pages, v_pages, k_scales, v_scales};
        run_with_pages(
            kv, k_pages, isa, threads,
            [&]<typename T, typename C>(const Tensors& in) {
              const auto shape = in.sizes(kv, "kv", 4);
              const int64_t tokens = shape[0], heads = shape[2], dim = shape[3];
              const T* k = in.data<T>(kv, "kv", {tokens, 2, heads, dim});
              return StoreSharedParams<T, C>{.k = k,
                                             .v = k + heads * dim,
                                             .pool = pool.of<C>(in, heads, dim),
                                             .cells = in.data<int32_t>(cells, "cells", {tokens}),
                                             .tokens = static_cast<int>(tokens),
                                             .heads = static_cast<int>(heads),
                                             .head_dim = static_cast<int>(dim),
                                             .stride = static_cast<int>(2 * heads * dim)};
            },
            [](auto& stream, const auto& params) { store_shared(stream, params); });
      },
      "kv: [tokens, 2, Nkv, D]", py::arg("kv"), py::arg("cells"), py::arg("k_pages"),
      py::arg("v_pages"), py::kw_only(), py::arg("k_scales") = py::none(),
      py::arg("v_scales") = py::none(), py::arg("isa"), py::arg("threads"));
}

// Room for histories of any length, in a deterministic launch or another.
SplitScratch scratch_for(int64_t rows, int64_t heads, int64_t kv_heads) {
  const auto all = SplitScratch::for_all(rows, static_cast<int>(heads), static_cast<int>(kv_heads),
                                         int64_t{kSplits} * kSplitRows);
  const SplitScratch few;
  return {std::max(all.histories, few.histories), std::max(all.queries, few.queries)};
}

// A step whose sentences are divided over parts, each with a state of its own.
template <typename T, typename C>
std::vector<DecodeAttentionParams<T, C>> parts_of(const DecodeAttentionParams<T, C>& whole,
                                                  const std::vector<int>& sentences) {
  if (sentences.empty()) return {whole};
  std::vector<DecodeAttentionParams<T, C>> parts;
  int first = 0;
  for (const int count : sentences) {
    auto part = whole;
    const int64_t row = int64_t{first} * whole.beams, elements = row * whole.stride;
    part.state += parts.size();
    part.q += elements;
    if (part.k != nullptr) part.k += elements, part.v += elements;
    part.active += first;
    part.y += row * whole.heads * whole.head_dim;
    part.sentences = count;
    if (part.rotary.positions != nullptr) part.rotary.positions += row;
    parts.push_back(part);
    first += count;
  }
  return parts;
}

void bind_decode_attention(py::module_& kernels) {
  kernels.def(
      "decode_attention",
      [](object qkv, object active, object y, float scale, int beams, object k_pages,
         object v_pages, object shared_pages, object shared_lengths, object self_pages,
         object cache_indirection, object state, float cap, int window, object slopes, object table,
         object partial, object split_counters, object positions, object frequencies,
         bool interleaved, float factor, object q_gamma, object k_gamma, float eps,
         const std::vector<int>& sentences, object k_scales, object v_scales, const string& isa,
         int threads) {
        const Pool pool{k_pages, v_pages, k_scales, v_scales};
        run_with_pages(
            y, k_pages, isa, threads,
            [&]<typename T, typename C>(const Tensors& in) {
              const bool history = !self_pages.is_none();
              const auto [rows, heads, kv_heads, dim, parts] =
                  sizes_of(in, qkv, y, history ? py::none() : k_pages);
              const auto tables = history ? in.sizes(cache_indirection, "cache_indirection", 3)
                                          : std::vector<int64_t>(3, 0);
              const int64_t total = tables[1], target = tables[2];
              SplitScratch scratch;
              if (in.on_cuda() && partial.is_none()) {
                scratch = scratch_for(rows, heads, kv_heads);
                partial = zeros(y, "float32", scratch.queries * (dim + 2));
                split_counters = zeros(y, "int32", scratch.histories);
              }
              T* q = in.data<T>(qkv, "qkv", {rows, parts, dim});
              return DecodeAttentionParams<T, C>{
                  .state = step_state(in, state, std::max<int64_t>(1, sentences.size())),
                  .q = q,
                  .k = history ? q + heads * dim : nullptr,
                  .v = history ? q + (heads + kv_heads) * dim : nullptr,
                  .pool = pool.of<C>(in, kv_heads, dim),
                  .shared_pages = page_table(in, shared_pages, "shared_pages"),
                  .shared_lengths =
                      in.data_or_null<int32_t>(shared_lengths, "shared_lengths", {-1}),
                  .self_pages = page_table(in, self_pages, "self_pages"),
                  .cache_indirection = in.data_or_null<int32_t>(
                      cache_indirection, "cache_indirection", {2, total, target}),
                  .active = active_sentences(in, active, rows / beams),
                  .y = in.data<T>(y, "y", {rows, heads, dim}),
                  .partial =
                      in.data_or_null<float>(partial, "partial", {scratch.queries * (dim + 2)}),
                  .split_counters = in.data_or_null<int32_t>(split_counters, "split_counters",
                                                             {scratch.histories}),
                  .sentences = static_cast<int>(rows / beams),
                  .beams = beams,
                  .heads = static_cast<int>(heads),
                  .kv_heads = static_cast<int>(kv_heads),
                  .head_dim = static_cast<int>(dim),
                  .stride = static_cast<int>(parts * dim),
                  .target = static_cast<int>(target),
                  .total_rows = static_cast<int>(total),
                  .slots = beams,
                  .scale = scale,
                  .bias = bias_of(in, heads, cap, window, slopes, table),
                  .rotary = rotary_of(in, positions, frequencies, 0, 0, interleaved, factor,
                                      q_gamma, k_gamma, eps, rows, dim)};
            },
            [sentences](auto& stream, const auto& params) {
              const auto parts = parts_of(params, sentences);
              decode_attention(stream, std::span(parts));
            });
      },
      "qkv: [rows, N + 2 Nkv, D], or [rows, N, D], only q, where there is no history; "
      "active: [rows / beams, 3], id, number and position of each sentence; state: number, "
      "active_count; slopes [N] and table [N, 2 * reach + 1]: float32; partial and "
      "split_counters: CUDA's scratch, made where they are not given, as deterministic kernels "
      "need it; from `positions` on: as in "
      "apply_rotary, which "
      "the CPU does in place; sentences: of each part, where the step has several: then state is "
      "[parts * 2]",
      py::arg("qkv"), py::arg("active"), py::arg("y"), py::arg("scale"), py::arg("beams"),
      py::kw_only(), py::arg("k_pages"), py::arg("v_pages"), py::arg("shared_pages") = py::none(),
      py::arg("shared_lengths") = py::none(), py::arg("self_pages") = py::none(),
      py::arg("cache_indirection") = py::none(), py::arg("state"), py::arg("cap") = 0.0f,
      py::arg("window") = 0, py::arg("slopes") = py::none(), py::arg("table") = py::none(),
      py::arg("partial") = py::none(), py::arg("split_counters") = py::none(),
      py::arg("positions") = py::none(), py::arg("frequencies") = py::none(),
      py::arg("interleaved") = false, py::arg("factor") = 1.0f, py::arg("q_gamma") = py::none(),
      py::arg("k_gamma") = py::none(), py::arg("eps") = 1e-6f,
      py::arg("sentences") = std::vector<int>(), py::arg("k_scales") = py::none(),
      py::arg("v_scales") = py::none(), py::arg("isa"), py::arg("threads"));
}

void bind_attention_weights(py::module_& kernels) {
  kernels.def(
      "attention_weights",
      [](object q, object active, object y, float scale, int beams, object k_pages,
         object shared_pages, object shared_lengths, object state, object k_scales,
         const string& isa, int threads) {
        const Pool pool{k_pages, k_pages, k_scales, k_scales};
        run_with_pages(
            q, k_pages, isa, threads,
            [&]<typename T, typename C>(const Tensors& in) {
              const auto [rows, heads, kv_heads, dim, parts] = sizes_of(in, q, q, k_pages);
              const auto kept = in.sizes(y, "y", 3);
              return AttentionWeightsParams<T, C>{
                  .state = step_state(in, state),
                  .q = in.data<T>(q, "q", {rows, parts, dim}),
                  .pool = pool.of<C>(in, kv_heads, dim),
                  .shared_pages = page_table(in, shared_pages, "shared_pages"),
                  .shared_lengths = in.data<int32_t>(shared_lengths, "shared_lengths", {-1}),
                  .active = active_sentences(in, active, rows / beams),
                  .y = in.data<float>(y, "y", kept),
                  .sentences = static_cast<int>(rows / beams),
                  .beams = beams,
                  .heads = static_cast<int>(heads),
                  .kv_heads = static_cast<int>(kv_heads),
                  .head_dim = static_cast<int>(dim),
                  .stride = static_cast<int>(parts * dim),
                  .total_rows = static_cast<int>(kept[1]),
                  .longest = static_cast<int>(kept[2]),
                  .scale = scale};
            },
            [](auto& stream, const auto& params) { attention_weights(stream, params); });
      },
      "active and state as above", py::arg("q"), py::arg("active"), py::arg("y"), py::arg("scale"),
      py::arg("beams"), py::kw_only(), py::arg("k_pages"), py::arg("shared_pages"),
      py::arg("shared_lengths"), py::arg("state"), py::arg("k_scales") = py::none(), py::arg("isa"),
      py::arg("threads"));
}

}  // namespace

void bind_attention(py::module_& kernels) {
  bind_packed_attention(kernels);
  bind_paged_attention(kernels);
  bind_store_shared(kernels);
  bind_decode_attention(kernels);
  bind_attention_weights(kernels);
}

}  // namespace decoding
