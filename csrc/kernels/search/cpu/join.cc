// The contract is in join.h.
#include "kernels/search/join.h"

#include "kernels/cpu/stream.h"
#include "kernels/search/shared/join.h"

namespace decoding {

template <cpu::Isa isa>
void join_sentences(cpu::Stream<isa>& stream, const JoinParams& p) {
  if (stream.rank() == 0) {
    for (int i = 0; i < p.count; ++i) {
      const JoiningSentence& joining = p.joining[i];
      join_sentence(p, i, p.state->active_count);
      for (int beam = 0; beam < p.beams; ++beam) {
        join_row(p, joining.id, beam);
        for (int table = 0; table < 2; ++table) {
          int32_t* history =
              p.cache_indirection +
              (int64_t{table} * p.total_rows + joining.id * p.beams + beam) * p.history;
          for (int at = 0; at < p.history; ++at)
            history[at] = first_cache_row(p, joining, beam, at);
        }
      }
    }
    p.state->active_count += p.count;
  }
  stream.barrier();
}

template <cpu::Isa isa>
void fill_rows(cpu::Stream<isa>& stream, const FillRowsParams& p) {
  if (stream.rank() == 0) {
    for (int i = 0; i < p.state->active_count; ++i) {
      for (int beam = 0; beam < p.beams; ++beam) fill_row(p, i, beam);
    }
  }
  stream.barrier();
}

template void join_sentences(cpu::Stream<cpu::Isa::DECODING_ISA>&, const JoinParams&);
template void fill_rows(cpu::Stream<cpu::Isa::DECODING_ISA>&, const FillRowsParams&);

}  // namespace decoding
