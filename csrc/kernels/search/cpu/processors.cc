// Scores of rows, rows shared over the threads. The contract is in processors.h, what is done to a
// token in shared/processors.h.
#include "kernels/search/processors.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/stream.h"
#include "kernels/search/shared/processors.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kBlock = 512;  // columns added up apart, so that errors of long sums stay small

// NaN or +inf exactly where the row holds a NaN or +inf; -inf where all is -inf.
float log_sum_exp(const float* row, int vocab) {
  const Floats none = broadcast(-INFINITY);
  Floats top = none;
  for_vectors(vocab, [&](int c, auto... count) {
    Floats x = load(row + c, count...);
    ((x = lane_ids() < count ? x : none), ...);
    top = max(x, top);
  });
  float peak = max_of(top);
  if (peak == -INFINITY) peak = 0.0f;
  Floats sum = {};
  for (int begin = 0; begin < vocab; begin += kBlock) {
    Floats part = {};
    for_vectors(std::min(kBlock, vocab - begin), [&](int c, auto... count) {
      Floats weight = exp(load(row + begin + c, count...) - peak);
      ((weight = lane_ids() < count ? weight : Floats{}), ...);
      part += weight;
    });
    sum += part;
  }
  return peak + std::log(sum_of(sum));
}

// x - lse; NaN everywhere, as Hugging Face has it, where lse is not finite.
void subtract(const float* x, float lse, float* y, int vocab) {
  const float shift = std::isfinite(lse) ? lse : NAN;
  for_vectors(vocab,
              [&](int c, auto... count) { store(y + c, load(x + c, count...) - shift, count...); });
}

template <typename T>
void open(const ProcessLogitsParams<T>& p, const ProcessedRow& row, int64_t i) {
  const float* logits = p.logits + i * p.stride;
  float* scores = p.scores + i * p.score_stride;
  float& lse = p.lse[i];
  lse = log_sum_exp(logits, p.vocab);
  if (p.competing || row.guided) {
    subtract(logits, lse, scores, p.vocab);
  } else {
    std::copy(logits, logits + p.vocab, scores);
  }
  if (row.guided) {
    const float* without = p.unconditional + i * p.stride;
    const float other = p.unconditional_lse[i] = log_sum_exp(without, p.vocab);
    const Floats w = broadcast(row.processors().guidance);
    for_vectors(p.vocab, [&](int c, auto... count) {
      const Floats u = load(without + c, count...) - other;
      store(scores + c, fma(w, load(scores + c, count...) - u, u), count...);
    });
    if (!std::isfinite(other)) lse = NAN;
  }
  if (row.processors().remove_invalid && !std::isfinite(lse)) lse = 0.0f;
}

// The marks of a row, a bitmap for each reason.
class Marks {
 public:
  Marks(uint32_t* words, int vocab) : words_(words), vocab_(vocab), each_(words_per_mark(vocab)) {
    std::fill(words_, words_ + kMarks * each_, 0);
  }

  void operator()(Mark why, int token) {
    // A source may hold tokens that the decoder has not.
    if (token < vocab_) words_[why * each_ + token / 32] |= 1u << token % 32;
  }

  // Takes a mark away; false: there was none.
  bool take(Mark why, int token) {
    uint32_t& word = words_[why * each_ + token / 32];
    const uint32_t bit = 1u << token % 32;
    const bool is_marked = word & bit;
    word &= ~bit;
    return is_marked;
  }

  // x = edit(marks, token, x) for all tokens that have some.
  template <typename Edit>
  void apply(float* scores, Edit&& edit) const {
    for (int word = 0; word < each_; ++word) {
      uint32_t any = 0;
      for (int why = 0; why < kMarks; ++why) any |= words_[why * each_ + word];
      for (; any != 0; any &= any - 1) {
        const int bit = std::countr_zero(any), token = word * 32 + bit;
        unsigned marks = 0;
        for (int why = 0; why < kMarks; ++why) {
          marks |= (words_[why * each_ + word] >> bit & 1u) << why;
        }
        scores[token] = edit(marks, token, scores[token]);
      }
    }
  }

 private:
  uint32_t* words_;
  int vocab_, each_;
};

// What ProcessedRow::edit_pre() does to each token by a walk over the row, in one walk for all.
void count(const ProcessedRow& row, Marks& marks, float* scores) {
  for (int i = row.row.width; i < row.row.length; ++i) {
    const int token = row.row[i];
    scores[token] = row.counted(scores[token], marks.take(kInRow, token));
  }
}

template <typename T>
void process_row(const ProcessLogitsParams<T>& p, int64_t i, uint32_t* scratch) {
  const ProcessedRow row = processed_row(p, i);
  float* scores = p.scores + i * p.score_stride;
  if (p.stages & kPre) {
    Marks marks(scratch, p.vocab);
    row.mark_pre(0, 1, marks);
    open(p, row, i);
    marks.apply(scores, [&](unsigned has, int token, float x) {
      return row.edit_uncounted(has, token, x, 0.0f);
    });
    if (row.processors().counts()) count(row, marks, scores);
  }
  if (p.stages & kMid) {
    Marks marks(scratch, p.vocab);
    row.mark_mid(0, 1, marks);
    for (int token = 0; row.forces() && token < p.vocab; ++token) {
      scores[token] = row.force(token, scores[token]);
    }
    marks.apply(scores,
                [&](unsigned has, int token, float x) { return row.edit_mid(has, token, x); });
  }
  if (p.stages & kPost && row.config->renormalize) {
    const float left = log_sum_exp(scores, p.vocab);
    // Nothing is left to choose: the row stays as it is.
    if (left != -INFINITY) subtract(scores, left, scores, p.vocab);
  }
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void process_logits(cpu::Stream<isa>& stream, const ProcessLogitsParams<T>& p) {
  const cpu::Range mine = stream.share(p.state->active_count * p.beams);
  uint32_t* scratch = p.marks + stream.rank() * marks_size(p.vocab);
  for (int i = mine.begin; i < mine.end; ++i) cpu::process_row(p, i, scratch);
  stream.barrier();
}

template void process_logits(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                             const ProcessLogitsParams<float>&);

}  // namespace decoding
