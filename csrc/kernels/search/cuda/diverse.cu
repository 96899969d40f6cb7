// Group diverse beam search, one block a sentence: all threads find and sort the candidates of a
// group, one does the bookkeeping, and all copy where the histories lie. The rules are in
// diverse.h.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/types.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/search/cuda/order.cuh"
#include "kernels/search/diverse.h"
#include "kernels/search/shared/diverse.h"

namespace decoding {
namespace {

using namespace cuda::selection;

template <typename T>
__device__ void step_group(const BeamGroup<T>& group, Queue queue) {
  if (group.stopped()) {  // for all threads alike: the last group's step lies behind a barrier
    if (threadIdx.x == 0) group.idle();
    return;
  }
  const int places = group.places();
  for (int place = threadIdx.x; place < places; place += kThreads) {
    const Candidate next = group.candidate(place, [](T x) { return cuda::to_float(x); });
    queue.keys[place] = next.id < 0 ? static_cast<Key>(place) : key_of(next.value, next.id);
  }
  __syncthreads();
  sort(queue, places);
  if (threadIdx.x != 0) return;
  int best = 0;
  while (best < min(group.p.m, places) && queue.keys[best] >> 32 != 0) ++best;
  group.choose(best,
               [&](int c) -> Candidate { return {value_of(queue.keys[c]), id_of(queue.keys[c])}; });
}

template <typename T>
__global__ void diverse_kernel(const __grid_constant__ DiverseStepParams<T> params,
                               const __grid_constant__ ProcessLogitsParams<T> processors,
                               int capacity) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ bool going;
  cuda::wait_for_previous();
  cuda::let_next_start();
  const int i = blockIdx.x;
  if (i >= params.search.state->active_count) return;
  DiverseStepParams<T> p = params;
  if (p.processors != nullptr) p.processors = &processors;  // it named the host's
  const BeamSentence sentence(p.search, i);
  if (threadIdx.x == 0) going = !sentence.faulty();
  __syncthreads();
  if (!going) return;
  const Queue queue{.keys = reinterpret_cast<Key*>(memory), .capacity = capacity};
  for (int n = 0; n < p.search.config.search->groups; ++n) {
    step_group(BeamGroup<T>(p, sentence, n), queue);
    __syncthreads();
  }
  if (threadIdx.x == 0) going = merge_groups(p, sentence);
  __syncthreads();
  if (going) sentence.inherit(threadIdx.x, kThreads);
}

}  // namespace

template <typename T>
void diverse_step(cuda::Stream& stream, const DiverseStepParams<T>& p) {
  int capacity = 2 * kThreads;
  while (capacity < p.search.beams * p.k) capacity *= 2;  // not less than any group's places
  const ProcessLogitsParams<T> processors =
      p.processors != nullptr ? *p.processors : ProcessLogitsParams<T>{};
  cuda::launch(stream, diverse_kernel<T>, dim3(p.sentences), dim3(kThreads), capacity * sizeof(Key),
               p, processors, capacity);
}

#define INSTANTIATE(T) template void diverse_step(cuda::Stream&, const DiverseStepParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
