// What the host hears of sentences on a GPU while it runs ahead: after each step their newest
// tokens go to the host's memory, in the layout of the device's, and at last what they end with.
#pragma once

#include <cstdint>

#include "kernels/search/beam.h"
#include "kernels/stream.h"

namespace decoding {

// Steps whose finished hypotheses the host can still read: more than a GPU runs ahead of it.
constexpr int kReportedSteps = 4;

// Of a sentence, in the host's memory.
struct SentenceReport {
  int32_t finished_count[kReportedSteps];  // of step g at (g - 1) % kReportedSteps
  int32_t fault;                           // as beam.h and update.h say
  // That are there, as are their tokens and parents; this is written last. Negated: it has ended,
  // and where rows competed its last step has no parents.
  int32_t steps;
};

struct ReportParams {
  int32_t* running;                 // [B], 1 from its joining until its end has been reported
  int32_t* steps;                   // [B], that have been reported
  const int32_t* done;              // [B]
  const int32_t* fault;             // [B]
  const int32_t* finished_count;    // [B]
  const Hypothesis* finished;       // [B, max_finished]
  const int32_t* length;            // [total_rows]
  const int32_t *tokens, *parents;  // [target, total_rows]
  // in the host's memory, likewise
  SentenceReport* reports;    // [B]
  Hypothesis* host_finished;  // [kReportedSteps, B, max_finished]
  int32_t *host_length, *host_tokens, *host_parents;
  int sentences;  // B
  int beams, max_finished, total_rows;
};

void report_sentences(cuda::Stream&, const ReportParams&);

}  // namespace decoding
