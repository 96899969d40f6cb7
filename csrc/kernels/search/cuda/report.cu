// The contract is in report.h.
#include "kernels/cuda/launch.cuh"
#include "kernels/search/report.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 256;

// A warp to each sentence.
__global__ void __launch_bounds__(kThreads) report_kernel(const ReportParams p) {
  wait_for_previous();
  let_next_start();
  const int id = (blockIdx.x * kThreads + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (id >= p.sentences || p.running[id] == 0) return;
  const int step = p.steps[id], first = id * p.beams, fault = p.fault[id];
  const bool ends = p.done[id] != 0;
  const int count = p.max_finished > 0 ? p.finished_count[id] : 0;
  for (int row = first + lane; row < first + p.beams; row += 32) {
    const int64_t at = int64_t{step} * p.total_rows + row;
    p.host_tokens[at] = p.tokens[at];
    p.host_parents[at] = p.parents[at];
    p.host_length[row] = p.length[row];
  }
  const int64_t list = int64_t{id} * p.max_finished;
  Hypothesis* to = p.host_finished + int64_t{step % kReportedSteps} * p.sentences * p.max_finished;
  for (int i = lane; i < (ends ? p.max_finished : count); i += 32) {
    to[list + i] = p.finished[list + i];
  }
  SentenceReport& report = p.reports[id];
  if (lane == 0) {
    report.finished_count[step % kReportedSteps] = count;
    report.fault = fault;
  }
  __threadfence_system();
  __syncwarp();
  if (lane > 0) return;
  p.steps[id] = step + 1;
  if (ends) p.running[id] = 0;
  *static_cast<volatile int32_t*>(&report.steps) = ends ? -(step + 1) : step + 1;
}

}  // namespace
}  // namespace cuda

void report_sentences(cuda::Stream& stream, const ReportParams& p) {
  const int blocks = (p.sentences * 32 + cuda::kThreads - 1) / cuda::kThreads;
  cuda::launch(stream, cuda::report_kernel, dim3(blocks), dim3(cuda::kThreads), 0, p);
}

}  // namespace decoding
