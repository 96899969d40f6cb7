// Beam search in two launches, one block a sentence: candidates are sorted by all threads; one of
// them does the bookkeeping (beam.h), and all copy where the histories lie. For the searches
// that select.cu does not do in one launch; the rules are in beam.h.
#include "kernels/cuda/launch.cuh"
#include "kernels/search/beam.h"
#include "kernels/search/cuda/order.cuh"
#include "kernels/search/shared/beam.h"

namespace decoding {
namespace {

using namespace cuda::selection;

// What stands in place `at` of an active sentence's lists; id -1: nothing. key: what it competes
// by.
__device__ Candidate candidate_at(const MergeBeamsParams& p, int i, int at, float& key) {
  const int beam = at / p.k, c = at % p.k;
  const int64_t row = int64_t{i} * p.beams + beam;
  const Candidate next = p.best[row * p.k + c];
  const float lse = p.lse != nullptr ? p.lse[row] : 0.0f;
  // Logits that are not finite are a fault, which beam_step reports.
  if (next.id < 0 || !isfinite(lse)) return {-INFINITY, -1};
  const int sentence = p.active[i].id;
  const float total = p.sums[sentence * p.beams + beam] + (next.value - lse);
  key = p.keys != nullptr ? p.keys[row * p.k + c] : total;
  key -= p.config.sentences[sentence].beam.sibling_penalty * (c + 1);
  return {total, beam * p.vocab + next.id};
}

// Equals stand in the order of their ids, since each row's list is sorted.
__global__ void merge_kernel(const __grid_constant__ MergeBeamsParams p, int capacity) {
  extern __shared__ __align__(16) unsigned char memory[];
  cuda::wait_for_previous();
  cuda::let_next_start();
  const int i = blockIdx.x, count = p.beams * p.k;
  if (i >= p.state->active_count) return;
  const Queue queue{.keys = reinterpret_cast<Key*>(memory), .capacity = capacity};
  for (int at = threadIdx.x; at < count; at += kThreads) {
    float key = 0.0f;
    const Candidate candidate = candidate_at(p, i, at, key);
    queue.keys[at] = candidate.id < 0 ? static_cast<Key>(at) : key_of(key, at);
  }
  __syncthreads();
  sort(queue, count);
  for (int c = threadIdx.x; c < p.m; c += kThreads) {
    const bool there = c < count && queue.keys[c] >> 32 != 0;
    float key = 0.0f;
    p.candidates[int64_t{i} * p.m + c] =
        there ? candidate_at(p, i, id_of(queue.keys[c]), key) : Candidate{-INFINITY, -1};
  }
}

__global__ void step_kernel(const __grid_constant__ BeamStepParams p) {
  __shared__ bool going;
  cuda::wait_for_previous();
  cuda::let_next_start();
  const int i = blockIdx.x;
  if (i >= p.search.state->active_count) return;
  if (threadIdx.x == 0) going = step_sentence(p, i);
  __syncthreads();
  if (going) BeamSentence(p.search, i).inherit(threadIdx.x, kThreads);
}

}  // namespace

void merge_beams(cuda::Stream& stream, const MergeBeamsParams& p) {
  int capacity = 2 * kThreads;
  while (capacity < p.beams * p.k) capacity *= 2;
  cuda::launch(stream, merge_kernel, dim3(p.sentences), dim3(kThreads), capacity * sizeof(Key), p,
               capacity);
}

void beam_step(cuda::Stream& stream, const BeamStepParams& p) {
  cuda::launch(stream, step_kernel, dim3(p.sentences), dim3(kThreads), 0, p);
}

}  // namespace decoding
