// A model bound to a device and to one block of memory: start a batch, step, take the results.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/spec.h"
#include "engine/model/labelled.h"
#include "engine/model/overflow.h"
#include "engine/model/weights.h"
#include "engine/search/batch.h"
#include "engine/search/request.h"
#include "engine/search/results.h"
#include "kernels/collective/split_stream.h"
#include "kernels/rows/logprobs.h"

namespace decoding {

class Session {
 public:
  virtual ~Session() = default;

  // What the limits need: nothing is allocated or bound.
  virtual Arena plan(const Limits& limits) const = 0;
  virtual void bind(const Limits& limits, void* pool, size_t bytes) = 0;

  // Runs the encoder or the prompt, so that the next step generates the first tokens.
  virtual void start(const Batch& batch, Request request) = 0;
  // Generates up to `steps` tokens for every sentence; true when no sentence is left alive.
  virtual bool step(int steps) = 0;

  // One step in parts, for a caller whose own functions come between them: the logits of active
  // rows; parts of Stages (processors.h), where the call has controls; what may follow; taking it
  // in, but for what the caller ends: [active, K] rows or [active, m] candidates, null: nothing.
  // Like step(1).
  virtual void compute() = 0;
  virtual void process_logits(int stages) = 0;
  virtual void select() = 0;
  virtual bool update(const uint8_t* ended) = 0;
  // Ends every row with the step that comes next.
  virtual void stop_now() = 0;

  // What there is now, after all that was launched. Views stay valid until the next bind().
  virtual EngineState state() = 0;
  virtual void fetch(const Results& results) const = 0;

  // found: [labelled.tokens()], null without labels. attentions: [labelled.tokens(), longest
  // source], of the last layer to the source, null: not asked for. It ends what was started.
  virtual void score(const Labelled& labelled, LabelScore* found, float* attentions) = 0;

  // With detect_overflow, of all calls so far; and the first tensor that was not finite where the
  // labels of a sentence were scored last.
  virtual std::vector<TensorOverflow> overflow() const = 0;
  virtual std::string first_overflow(int sentence) const = 0;

  // Kernels of the step that was captured last; 0 where none are.
  virtual int graph_nodes() const { return 0; }
  // The matrix products, and what was found to compute each fastest.
  virtual std::string tuned() const { return ""; }
};

// isa: one of cpu::isas(). cache: of keys and values, float32 or bfloat16. collective: of the ranks
// that the model is split over; null: it is whole. detect_overflow: see model/overflow.h.
std::unique_ptr<Session> make_cpu_session(const ModelSpec& spec, const ModelWeights& weights,
                                          int threads, const std::string& isa, WeightKind cache,
                                          std::shared_ptr<cpu::Collective> collective,
                                          bool detect_overflow);
// kind: of the weights, and of the session's own numbers. cache: of keys and values, `kind`, or
// float8 beside float16 and bfloat16. device: CUDA's index of the GPU.
// collective: as above, on the same GPU. deterministic: a row's bits do not depend on its
// neighbours, as they never do on a CPU.
std::unique_ptr<Session> make_cuda_session(const ModelSpec& spec, const ModelWeights& weights,
                                           WeightKind kind, WeightKind cache, int device,
                                           std::shared_ptr<cuda::Collective> collective,
                                           bool deterministic, bool detect_overflow);

}  // namespace decoding
