// Requests that step side by side: their searches run the same kernels, with as many rows each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/search/request.h"
#include "engine/search/step.h"

namespace decoding {

struct ClassKey {
  StepKey step;  // for no sentences
  int max_finished, groups;

  auto operator<=>(const ClassKey&) const = default;
  // Rows of memory that one of its requests takes.
  int rows() const { return std::max(step.beams, max_finished); }
};

inline ClassKey class_key(const Request& request) {
  const SelectPart part = is_fused(request) ? SelectPart::all : SelectPart::candidates;
  return {step_key(request, 0, part), request.max_finished(), request.groups()};
}

// The request of one of several sentences, with the words that its config names.
Request sentence_of(const Request& all, int sentence);

// The config of a request of one sentence; its words are written to those from `first` on.
SentenceConfig place_config(const Request& request, int32_t first, int32_t* words);

}  // namespace decoding
