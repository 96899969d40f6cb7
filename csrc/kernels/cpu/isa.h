// The instruction sets that there is code for, and those that this machine runs.
#pragma once

#include <string>
#include <utility>
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

inline std::vector<InstructionSet> find_instruction_sets() {
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

// Those that this machine runs, best first.
inline const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> sets = find_instruction_sets();
  return sets;
}

// Their names.
inline std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const InstructionSet& set : instruction_sets()) names.push_back(set.name);
  return names;
}

// The instruction set of that name.
inline const InstructionSet& instruction_set(const std::string& name) {
  std::string known;
  for (const InstructionSet& set : instruction_sets()) {
    if (set.name == name) return set;
    known += std::string(known.empty() ? "" : ", ") + set.name;
  }
  CHECK(false, "isa must be one of ", known, " on this machine, got ", name);
  __builtin_unreachable();
}

// Calls use.template operator()<isa>(features) for an instruction set of this machine.
template <typename Use>
decltype(auto) with_isa(const InstructionSet& set, Use&& use) {
  if constexpr (built(Isa::avx512)) {
    if (set.isa == Isa::avx512) return use.template operator()<Isa::avx512>(set.features);
  }
  if constexpr (built(Isa::avx2)) {
    if (set.isa == Isa::avx2) return use.template operator()<Isa::avx2>(set.features);
  }
  if constexpr (built(Isa::neon)) {
    if (set.isa == Isa::neon) return use.template operator()<Isa::neon>(set.features);
  }
  if constexpr (built(Isa::portable)) {
    return use.template operator()<Isa::portable>(set.features);
  }
  __builtin_unreachable();  // `set` is built
}

template <typename Use>
decltype(auto) with_isa(const std::string& name, Use&& use) {
  return with_isa(instruction_set(name), std::forward<Use>(use));
}

}  // namespace decoding::cpu
