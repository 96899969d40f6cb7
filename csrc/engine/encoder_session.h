// An encoder alone, bound to a device and to one block of memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/spec.h"
#include "engine/model/overflow.h"
#include "engine/model/weights.h"
#include "engine/search/batch.h"

namespace decoding {

class EncoderSession {
 public:
  virtual ~EncoderSession() = default;

  // What the limits need: nothing is allocated or bound. Only batch and source count.
  virtual Arena plan(const Limits& limits) const = 0;
  virtual void bind(const Limits& limits, void* pool, size_t bytes) = 0;

  // The hidden states of all tokens. batch: source, sentences and stream count, nothing else.
  // states: [tokens, H], of the session's numbers, where the session is.
  virtual void encode(const Batch& batch, void* states) = 0;

  // With detect_overflow, of all calls so far.
  virtual std::vector<TensorOverflow> overflow() const = 0;
};

// As for make_cpu_session and make_cuda_session. spec: ends with a norm.
std::unique_ptr<EncoderSession> make_cpu_encoder_session(const StackSpec& spec,
                                                         const StackWeights& weights, int threads,
                                                         const std::string& isa,
                                                         bool detect_overflow);
std::unique_ptr<EncoderSession> make_cuda_encoder_session(const StackSpec& spec,
                                                          const StackWeights& weights,
                                                          WeightKind kind, int device,
                                                          bool deterministic, bool detect_overflow);

}  // namespace decoding
