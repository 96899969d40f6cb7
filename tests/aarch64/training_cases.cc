// Operators of training, both passes, in each of their types.
#include <algorithm>
#include <numeric>

#include "kernels/rows/cross_entropy.h"
#include "kernels/rows/dropout.h"
#include "kernels/rows/embed.h"
#include "kernels/rows/norm.h"
#include "kernels/rows/softmax.h"
#include "tests/aarch64/cases.h"

namespace decoding {
namespace {

constexpr int kRows = 7, kCols = 77, kSize = kRows * kCols;
const Dropout kDropout = Dropout::of(0.3, nullptr, 1234567);

template <typename T, cpu::Isa isa>
void softmaxes(Machine<isa>& machine, const std::string& type) {
  const auto x = machine.template numbers<T>(kSize), dy = machine.template numbers<T>(kSize);
  std::vector<T> y(kSize), dx(kSize);
  const SoftmaxParams<T> p{
      .x = x.data(), .y = y.data(), .rows = kRows, .cols = kCols, .scale = 3.0f};
  machine.run([&](auto& stream) { softmax(stream, p); });
  machine.answer("softmax/" + type, y);
  const SoftmaxBackwardParams<T> back{y.data(), dy.data(), dx.data(), kRows, kCols};
  machine.run([&](auto& stream) { softmax_backward(stream, back); });
  machine.answer("softmax_backward/" + type, dx);
}

template <typename T, cpu::Isa isa>
void norms(Machine<isa>& machine, const std::string& type) {
  const auto x = machine.template numbers<T>(kSize), residual = machine.template numbers<T>(kSize);
  const auto bias = machine.template numbers<T>(kCols), gamma = machine.template numbers<T>(kCols);
  const auto beta = machine.template numbers<T>(kCols), dy = machine.template numbers<T>(kSize);
  std::vector<T> sum(kSize), y(kSize), dx(kSize), dresidual(kSize);
  std::vector<T> dgamma(kCols), dbeta(kCols), dbias(kCols);
  std::vector<Real<T>> mean(kRows), rstd(kRows), partial(3 * kNormLines * kCols);
  const TrainingNormParams<T> p{.x = x.data(),
                                .residual = residual.data(),
                                .bias = {.same = bias.data()},
                                .gamma = {.same = gamma.data()},
                                .beta = {.same = beta.data()},
                                .sum = sum.data(),
                                .y = y.data(),
                                .mean = mean.data(),
                                .rstd = rstd.data(),
                                .rows = kRows,
                                .cols = kCols,
                                .dropout = kDropout};
  machine.run([&](auto& stream) { training_norm(stream, p); });
  machine.answer("training_norm/" + type, y);
  machine.answer("training_norm/rstd/" + type, rstd);
  const NormBackwardParams<T> back{.s = sum.data(),
                                   .dy = dy.data(),
                                   .gamma = {.same = gamma.data()},
                                   .mean = mean.data(),
                                   .rstd = rstd.data(),
                                   .dx = dx.data(),
                                   .dresidual = dresidual.data(),
                                   .dgamma = {.same = dgamma.data()},
                                   .dbeta = {.same = dbeta.data()},
                                   .dbias = {.same = dbias.data()},
                                   .partial = partial.data(),
                                   .rows = kRows,
                                   .cols = kCols,
                                   .dropout = kDropout};
  machine.run([&](auto& stream) { norm_backward(stream, back); });
  machine.answer("norm_backward/dx/" + type, dx);
  machine.answer("norm_backward/dresidual/" + type, dresidual);
  machine.answer("norm_backward/dgamma/" + type, dgamma);
  machine.answer("norm_backward/dbias/" + type, dbias);
}

template <typename T, cpu::Isa isa>
void embeddings(Machine<isa>& machine, const std::string& type) {
  constexpr int kVocab = 20;
  const auto table = machine.template numbers<T>(kVocab * kCols);
  const auto places = machine.template numbers<T>(kRows * kCols);
  auto ids = machine.template ids<int64_t>(kRows, kVocab);
  std::vector<T> y(kSize), dtable(kVocab * kCols);
  const TrainingEmbedParams<T> p{.ids = ids.data(),
                                 .token_table = table.data(),
                                 .position_table = places.data(),
                                 .y = y.data(),
                                 .dropout = kDropout,
                                 .rows = kRows,
                                 .hidden = kCols,
                                 .vocab = kVocab,
                                 .max_positions = kRows,
                                 .length = kRows,
                                 .scale = 8.5};
  machine.run([&](auto& stream) { training_embed(stream, p); });
  machine.answer("training_embed/" + type, y);
  std::sort(ids.begin(), ids.end());
  std::vector<int64_t> order(kRows);
  std::iota(order.rbegin(), order.rend(), 0);
  const EmbedBackwardParams<T> back{.dy = y.data(),
                                    .ids = ids.data(),
                                    .order = order.data(),
                                    .dtable = dtable.data(),
                                    .dropout = kDropout,
                                    .rows = kRows,
                                    .hidden = kCols,
                                    .vocab = kVocab,
                                    .scale = 8.5};
  machine.run([&](auto& stream) { embed_backward(stream, back); });
  machine.answer("embed_backward/" + type, dtable);
  const DropoutParams<T> drop{table.data(), y.data(), kDropout, kSize};
  machine.run([&](auto& stream) { decoding::dropout(stream, drop); });
  machine.answer("dropout/" + type, y);
}

template <typename T, cpu::Isa isa>
void losses(Machine<isa>& machine, const std::string& type) {
  using R = Real<T>;
  const auto x = machine.template numbers<T>(kSize);
  auto labels = machine.template ids<int64_t>(kRows, kCols);
  labels[3] = -100;
  const auto weight = machine.template numbers<R>(kCols);
  R weight_sum = 0;
  for (const R w : weight) weight_sum += w;
  const Targets<R> targets{.labels = labels.data(),
                           .weight = weight.data(),
                           .weight_sum = &weight_sum,
                           .smoothing = R(0.125),
                           .rows = kRows,
                           .classes = kCols};
  std::vector<R> losses(kRows), kept(2 * kRows), totals(2);
  std::vector<T> dx(kSize);
  const CrossEntropyParams<T> p{x.data(), targets, losses.data(), kept.data()};
  machine.run([&](auto& stream) { cross_entropy(stream, p); });
  machine.answer("cross_entropy/" + type, losses);
  const TotalLossParams<R> total{losses.data(), targets, &totals[0], &totals[1], true};
  machine.run([&](auto& stream) { total_loss(stream, total); });
  machine.answer("total_loss/" + type, totals);
  const CrossEntropyBackwardParams<T> back{.x = x.data(),
                                           .targets = targets,
                                           .softmax = kept.data(),
                                           .upstream = &totals[0],
                                           .count = &totals[1],
                                           .dx = dx.data(),
                                           .each = false};
  machine.run([&](auto& stream) { cross_entropy_backward(stream, back); });
  machine.answer("cross_entropy_backward/" + type, dx);
}

template <typename T, cpu::Isa isa>
void all_of(Machine<isa>& machine, const std::string& type) {
  softmaxes<T>(machine, type);
  norms<T>(machine, type);
  embeddings<T>(machine, type);
  losses<T>(machine, type);
}

}  // namespace

template <cpu::Isa isa>
void training_cases(Machine<isa>& machine) {
  all_of<float>(machine, "float32");
  all_of<double>(machine, "float64");
  all_of<Float16>(machine, "float16");
  all_of<BFloat16>(machine, "bfloat16");
}

DECODING_FOR_ISAS(training_cases)

}  // namespace decoding
