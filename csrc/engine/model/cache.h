// Keys and values that later steps read again, in C: see kernels/attention/decode.h.
#pragma once

#include <cstdint>

#include "core/arena.h"
#include "core/spec.h"
#include "core/types.h"
#include "kernels/attention/pages.h"

namespace decoding {

// Positions that a row of the decoder keeps, without a prompt that its sentence shares.
inline int history_of(const ModelSpec& spec, const Limits& limits) {
  return limits.target + (spec.encoder ? limits.prompt - 1 : 0);
}

// Positions of the source, or of the prompt, that the rows of a sentence share.
inline int most_shared(const ModelSpec& spec, const Limits& limits) {
  return spec.encoder ? limits.source : limits.prompt - 1;
}

// Pages of a sentence: those that its rows share, and its own.
inline int shared_pages_of(const ModelSpec& spec, const Limits& limits) {
  return static_cast<int>(pages_of(most_shared(spec, limits)));
}
inline int self_pages_of(const ModelSpec& spec, const Limits& limits) {
  if (spec.decoder.convolution) return 0;  // see Cache::inputs
  return static_cast<int>(pages_of(int64_t{limits.beams} * history_of(spec, limits)));
}
// Tokens of a packed pass that leaves shared keys and values.
inline int64_t shared_tokens(const ModelSpec& spec, const Limits& limits) {
  return limits.tokens > 0 ? limits.tokens : int64_t{limits.batch} * most_shared(spec, limits);
}
// Of the pool.
inline int64_t pages_of(const ModelSpec& spec, const Limits& limits) {
  if (limits.pages > 0) return limits.pages;
  return int64_t{limits.batch} * (shared_pages_of(spec, limits) + self_pages_of(spec, limits));
}

template <>
inline const char* type_name<BFloat16>() {
  return "bfloat16";
}

template <>
inline const char* type_name<Float8>() {
  return "float8_e4m3fn";
}

template <typename C>
struct Cache {
  // Layer after layer, each with Nkv heads of its own: layer i begins at kv_before(i) times the
  // other numbers.
  C *k_pages, *v_pages;  // [L][Nkv, pages, kPageSize, D], see kernels/attention/pages.h
  float *k_scales = nullptr, *v_scales = nullptr;  // [L][Nkv, pages, kPageSize], of e4m3
  int64_t pages;
  int64_t heads;  // of keys and values, in all layers
  int head_dim;

  // Of convolutions, which have no own pages: [L][input_rows, N, kernel_size, D].
  C* inputs = nullptr;
  int64_t input_rows = 0;

  Cache() = default;
  Cache(Arena& a, const ModelSpec& spec, const Limits& limits) {
    const StackSpec& d = spec.decoder;
    head_dim = d.head_dim;
    heads = d.kv_before(d.layers) / d.head_dim;
    if (d.convolution) {
      const int ring = d.convolution->widest_kernel();
      input_rows = limits.input_rows > 0 ? limits.input_rows : limits.rows();
      inputs = a.take<C>("inputs", {heads, input_rows, ring, d.head_dim});
    }
    pages = pages_of(spec, limits);
    k_pages = a.take<C>("k_pages", {heads, pages, kPageSize, d.head_dim});
    v_pages = a.take<C>("v_pages", {heads, pages, kPageSize, d.head_dim});
    if constexpr (kIsFloat8<C>) {
      k_scales = a.take<float>("k_scales", {heads, pages, kPageSize});
      v_scales = a.take<float>("v_scales", {heads, pages, kPageSize});
    }
  }

  // Layer i's.
  PagePool<C> pool(const StackSpec& decoder, int i) const {
    const int64_t before = decoder.kv_before(i) * kPageSize * pages;
    PagePool<C> pool{k_pages + before, v_pages + before, static_cast<int>(pages)};
    if constexpr (kIsFloat8<C>) {
      pool.k_scales = k_scales + before / head_dim;
      pool.v_scales = v_scales + before / head_dim;
    }
    return pool;
  }

  // Layer i's inputs of rows from `row` on.
  C* inputs_of(const StackSpec& decoder, int i, int64_t row) const {
    const int64_t before = decoder.kv_before(i) * input_rows + row * decoder.kv_inner(i);
    return inputs + before * decoder.convolution->widest_kernel();
  }

  // A page has a stretch of memory in each head: of keys, as many of values, and where they have
  // scales, of these. Calls call(stretch, bytes) for each.
  template <typename Call>
  void each_stretch(int32_t page, Call&& call) const {
    const auto each = [&](auto* first, int64_t size) {
      for (int64_t i = 0; i < heads; ++i) {
        call(first + (i * pages + page) * size, sizeof(*first) * size);
      }
    };
    each(k_pages, int64_t{kPageSize} * head_dim);
    each(v_pages, int64_t{kPageSize} * head_dim);
    if constexpr (kIsFloat8<C>) each(k_scales, kPageSize), each(v_scales, kPageSize);
  }
  size_t page_bytes() const {
    const size_t scale = kIsFloat8<C> ? sizeof(float) : 0;
    return 2 * heads * kPageSize * (sizeof(C) * head_dim + scale);
  }
};

}  // namespace decoding
