// What the ranks of a model that is split over processes (tensor parallelism, Shoeybi et al. 2019)
// make together. Each has some heads, some of feed-forward's inner numbers and some tokens, with
// their rows of the weights, and all have the same x. So a product whose inputs are shared out is a
// sum over ranks, as an embedding is, to which all but the rank that has the token add 0; one whose
// outputs are shared out needs nothing, unless somebody asks for all of them: the logits.
//
// A rank's part of that lies in the memory of the stream's collective: as many rows as there is
// room for, and then the next ones.
//
// What all ranks have must have the same bits on all. So a norm of theirs that is read later, too,
// is a kernel of its own: a GPU's product that takes it along is chosen by time, on each rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/check.h"
#include "core/spec.h"
#include "kernels/collective/all_gather.h"
#include "kernels/collective/all_reduce.h"
#include "kernels/linear/linear.h"
#include "kernels/rows/embed.h"
#include "kernels/rows/norm.h"

namespace decoding {

template <typename Stream>
concept HasCollective = requires(Stream& stream) { stream.collective(); };

// Whether other ranks have parts of the model.
template <typename Stream>
bool is_split(const Stream& stream) {
  if constexpr (HasCollective<const Stream>) return stream.collective() != nullptr;
  return false;
}

// Throws where a row of any exchange does not fit into a part of T, or a block has no split form.
// ranks: null where the model is whole.
template <typename T, typename Collective>
void check_split(const ModelSpec& spec, const Collective* ranks) {
  if (ranks == nullptr) return;
  const StackSpec& d = spec.decoder;
  const int tokens = (d.vocab + ranks->size() - 1) / ranks->size() + Collective::kRowAlignment;
  const int widest = std::max({spec.encoder ? spec.encoder->hidden : 0, d.hidden, tokens});
  CHECK(ranks->part_bytes() >= int64_t{sizeof(T)} * widest, "part_bytes must hold ", widest,
        " numbers");
  CHECK(d.first_token == first_of(d.vocab, ranks->rank(), ranks->size()) &&
            d.first_token + d.tokens == first_of(d.vocab, ranks->rank() + 1, ranks->size()),
        "tokens are not those of rank ", ranks->rank());
  CHECK(!d.convolution && !(spec.encoder && spec.encoder->convolution),
        "convolutions cannot be split");
}

// The `count` rows from `first` on of a product.
template <typename T>
LinearParams<T> rows_of(LinearParams<T> p, int first, int count) {
  p.x += int64_t{first} * p.weight.inputs;
  if (p.normed != nullptr) p.normed += int64_t{first} * p.weight.inputs;
  p.rows = count;
  return p;
}

// Calls work(part, first, count): `count` rows from `first` on of a result with `cols` columns,
// until all `rows` are done.
template <typename T, typename Stream, typename Work>
void by_parts(Stream& stream, int rows, int cols, Work&& work) {
  const int64_t room = stream.collective()->part_bytes() / (int64_t{sizeof(T)} * cols);
  const int most = static_cast<int>(std::min<int64_t>(room, rows));
  for (int first = 0; first < rows; first += most) {
    work(stream.collective()->template part<T>(), first, std::min(most, rows - first));
  }
}

// As linear(), of ranks that share out the inputs; without norm and activation.
template <typename T, typename Stream>
void summed_linear(Stream& stream, const LinearParams<T>& p) {
  if constexpr (HasCollective<Stream>) {
    const int cols = p.weight.outputs;
    by_parts<T>(stream, p.rows, cols, [&](T* part, int first, int count) {
      const int64_t at = int64_t{first} * cols;
      LinearParams<T> own = rows_of(p, first, count);
      own.bias = nullptr;
      own.residual = nullptr;
      own.y = part;
      linear<T>(stream, own);
      all_reduce<T>(stream, {.bias = p.bias,
                             .residual = p.residual == nullptr ? nullptr : p.residual + at,
                             .y = p.y + at,
                             .rows = count,
                             .cols = cols});
    });
  }
}

// As embed(), of ranks that share out the tokens.
template <typename T, typename Stream>
void summed_embed(Stream& stream, const EmbedParams<T>& p) {
  if constexpr (HasCollective<Stream>) {
    by_parts<T>(stream, p.rows, p.hidden, [&](T* part, int first, int count) {
      EmbedParams<T> own = p;
      own.norm = {};
      own.ids += first;
      own.positions += first;
      own.y = part;
      own.rows = count;
      embed<T>(stream, own);
      all_reduce<T>(stream,
                    {.y = p.y + int64_t{first} * p.hidden, .rows = count, .cols = p.hidden});
    });
    if (p.norm.gamma == nullptr) return;
    layer_norm<T>(stream, {.x = p.y, .norm = p.norm, .y = p.y, .rows = p.rows, .cols = p.hidden});
  }
}

// A product whose norm has been applied, and is in p.normed.
template <typename T, typename Stream>
LinearParams<T> after_norm(Stream& stream, LinearParams<T> p) {
  if (p.norm.gamma == nullptr) return p;
  layer_norm<T>(stream,
                {.x = p.x, .norm = p.norm, .y = p.normed, .rows = p.rows, .cols = p.weight.inputs});
  p.x = p.normed;
  p.norm = {};
  p.normed = nullptr;
  return p;
}

// As linear(), of ranks that share out `cols` outputs, all of which are in y [rows, cols].
template <typename T, typename Stream>
void gathered_linear(Stream& stream, const LinearParams<T>& p, int cols) {
  if constexpr (HasCollective<Stream>) {
    constexpr int kAlignment = std::decay_t<decltype(*stream.collective())>::kRowAlignment;
    const auto aligned = [](int columns) {
      return (columns + kAlignment - 1) / kAlignment * kAlignment;
    };
    const int ranks = stream.collective()->size(), stride = p.stride > 0 ? p.stride : cols;
    LinearParams<T> product = after_norm(stream, p);
    product.stride = aligned(p.weight.outputs);
    by_parts<T>(
        stream, p.rows, aligned((cols + ranks - 1) / ranks), [&](T* part, int first, int count) {
          LinearParams<T> own = rows_of(product, first, count);
          own.y = part;
          linear<T>(stream, own);
          all_gather<T>(
              stream,
              {.y = p.y + int64_t{first} * stride, .rows = count, .cols = cols, .stride = stride});
        });
  }
}

}  // namespace decoding
