// Calls of every CPU kernel, each with an answer. Shapes are small and odd: rows that fill no tile,
// columns that fill no vector.
#pragma once

#include "tests/aarch64/answers.h"

namespace decoding {

template <cpu::Isa isa>
void pack_cases(Machine<isa>&);
template <cpu::Isa isa>
void linear_cases(Machine<isa>&);
template <cpu::Isa isa>
void attention_cases(Machine<isa>&);
template <cpu::Isa isa>
void decode_cases(Machine<isa>&);
template <cpu::Isa isa>
void rows_cases(Machine<isa>&);
template <cpu::Isa isa>
void training_cases(Machine<isa>&);
template <cpu::Isa isa>
void selection_cases(Machine<isa>&);
template <cpu::Isa isa>
void search_cases(Machine<isa>&);
template <cpu::Isa isa>
void update_cases(Machine<isa>&);

}  // namespace decoding

// Defines a function of these for the instruction sets that there is code for.
#if defined(__aarch64__)
#define DECODING_FOR_ISAS(cases)                     \
  template void cases(Machine<cpu::Isa::portable>&); \
  template void cases(Machine<cpu::Isa::neon>&);
#else
#define DECODING_FOR_ISAS(cases) template void cases(Machine<cpu::Isa::portable>&);
#endif
