// What a session is given to do: decoding._C.Request and its kin, and decoding._C.Batch.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "engine/search/batch.h"
#include "engine/search/request.h"

namespace decoding {

// With the tensor that a session points into.
struct PyRequest : Request {
  pybind11::object stop_on_device;  // int32 [states, V], or None

  // For a session on that device.
  Request on(const std::string& device) const;
};

// The tensors of a batch.
struct PyBatch {
  pybind11::object source, source_positions, source_offsets, prompt, prompt_offsets, sentence_ids,
      shortlist;
  uintptr_t stream;

  Batch view() const;
};

void bind_request(pybind11::module_& module);

}  // namespace decoding
