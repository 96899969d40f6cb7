// The instruction sets that there is code for, and those that this machine runs.
#pragma once

#include <string>
#include <vector>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "core/check.h"
#include "kernels/cpu/stream.h"

namespace decoding::cpu {

// An instruction set by the name that users see: code is compiled for its Isa, and products look at
// its features as they run.
struct InstructionSet {
  const char* name;
  Isa isa;
  Features features;
};

// Whether there is code for it: all of them, or with -DDECODING_ONLY_ISA=avx2 just that one.
constexpr bool built([[maybe_unused]] Isa isa) {
#if defined(DECODING_ONLY_ISA)
  return isa == Isa::DECODING_ONLY_ISA;
#elif defined(__x86_64__)
  return isa != Isa::neon;
#elif defined(__aarch64__)
  return isa == Isa::portable || isa == Isa::neon;
#else
  return isa == Isa::portable;
#endif
}

// Those that this machine runs, best first.
inline std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    const bool vnni = __builtin_cpu_supports("avx512vnni");
    if (vnni && __builtin_cpu_supports("avx512bf16")) {
      sets.push_back({"avx512_bf16", Isa::avx512, {.int8 = true, .bf16 = true}});
    }
    if (vnni) sets.push_back({"avx512_vnni", Isa::avx512, {.int8 = true}});
    sets.push_back({"avx512", Isa::avx512, {}});
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    sets.push_back({"avx2", Isa::avx2, {}});
  }
#elif defined(__aarch64__)
  // Bits of Linux, by number because older headers do not name them all.
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  const bool dotprod = first >> 20 & 1, i8mm = dotprod && second >> 13 & 1;
  if (i8mm && second >> 14 & 1) {
    sets.push_back({"neon_bf16", Isa::neon, {.int8 = true, .int8_mma = true, .bf16 = true}});
  }
  if (i8mm) sets.push_back({"neon_i8mm", Isa::neon, {.int8 = true, .int8_mma = true}});
  if (dotprod) sets.push_back({"neon_dotprod", Isa::neon, {.int8 = true}});
  sets.push_back({"neon", Isa::neon, {}});
#endif
  sets.push_back({"portable", Isa::portable, {}});
  std::erase_if(sets, [](const InstructionSet& set) { return !built(set.isa); });
  return sets;
}

// Their names.
inline std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const InstructionSet& set : instruction_sets()) names.push_back(set.name);
  return names;
}

// Calls use.template operator()<isa>(features) for the instruction set of that name.
template <typename Use>
decltype(auto) with_isa(const std::string& name, Use&& use) {
  const InstructionSet* chosen = nullptr;
  std::string known;
  const auto sets = instruction_sets();
  for (const InstructionSet& set : sets) {
    known += std::string(known.empty() ? "" : ", ") + set.name;
    if (set.name == name) chosen = &set;
  }
  CHECK(chosen != nullptr, "isa must be one of ", known, " on this machine, got ", name);
  if constexpr (built(Isa::avx512)) {
    if (chosen->isa == Isa::avx512) return use.template operator()<Isa::avx512>(chosen->features);
  }
  if constexpr (built(Isa::avx2)) {
    if (chosen->isa == Isa::avx2) return use.template operator()<Isa::avx2>(chosen->features);
  }
  if constexpr (built(Isa::neon)) {
    if (chosen->isa == Isa::neon) return use.template operator()<Isa::neon>(chosen->features);
  }
  if constexpr (built(Isa::portable)) {
    return use.template operator()<Isa::portable>(chosen->features);
  }
  __builtin_unreachable();  // `chosen` is built
}

}  // namespace decoding::cpu
