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

// Pages of a sentence in self_k.
inline int self_pages_of(const ModelSpec& spec, const Limits& limits) {
  if (spec.decoder.convolution) return 0;  // see Cache::inputs
  return static_cast<int>(pages_of(int64_t{limits.beams} * history_of(spec, limits)));
}

template <>
inline const char* type_name<BFloat16>() {
  return "bfloat16";
}

template <typename C>
struct Cache {
  // Layer after layer, each with Nkv heads of its own: layer i begins at kv_before(i) times the
  // other numbers.
  C *cross_k, *cross_v;    // [L][Nkv, B * S, D], once per sentence
  C *prompt_k, *prompt_v;  // [L][Nkv, B * (prompt - 1), D], once per sentence; decoder-only
  C *self_k, *self_v;      // [L][Nkv, pages, kPageSize, D], see kernels/attention/pages.h

  C* inputs =
      nullptr;  // [L][R, N, kernel_size, D], of convolutions, which have no self_k and self_v

  Cache() = default;
  Cache(Arena& a, const ModelSpec& spec, const Limits& limits) {
    const StackSpec& d = spec.decoder;
    const int64_t source = spec.encoder ? int64_t{limits.batch} * limits.source : 0;
    const int64_t prompt = spec.encoder ? 0 : int64_t{limits.batch} * (limits.prompt - 1);
    const int64_t heads = d.kv_before(d.layers) / d.head_dim;
    cross_k = a.take<C>("cross_k", {heads, source, d.head_dim});
    cross_v = a.take<C>("cross_v", {heads, source, d.head_dim});
    prompt_k = a.take<C>("prompt_k", {heads, prompt, d.head_dim});
    prompt_v = a.take<C>("prompt_v", {heads, prompt, d.head_dim});
    if (d.convolution) {
      const int ring = d.convolution->widest_kernel();
      inputs = a.take<C>("inputs", {heads, limits.rows(), ring, d.head_dim});
    }
    const int64_t pages = int64_t{limits.batch} * self_pages_of(spec, limits);
    self_k = a.take<C>("self_k", {heads, pages, kPageSize, d.head_dim});
    self_v = a.take<C>("self_v", {heads, pages, kPageSize, d.head_dim});
  }
};

}  // namespace decoding
