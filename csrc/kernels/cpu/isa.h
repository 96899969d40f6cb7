// Which instruction sets there is code for, and which this machine runs.
#pragma once

#include <string>
#include <vector>

#include "core/check.h"
#include "kernels/cpu/stream.h"

namespace decoding::cpu {

// The names of the instruction sets that this machine runs, best first.
inline std::vector<std::string> isas() {
  std::vector<std::string> names;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    names.push_back("avx512");
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    names.push_back("avx2");
  }
#endif
  names.push_back("portable");
  return names;
}

// Calls use.template operator()<isa>() for the instruction set of that name.
template <typename Use>
decltype(auto) with_isa(const std::string& name, Use&& use) {
  std::string known;
  bool runs = false;
  for (const std::string& isa : isas()) {
    known += (known.empty() ? "" : ", ") + isa;
    runs = runs || isa == name;
  }
  CHECK(runs, "isa must be one of ", known, " on this machine, got ", name);
#if defined(__x86_64__)
  if (name == "avx512") return use.template operator()<Isa::avx512>();
  if (name == "avx2") return use.template operator()<Isa::avx2>();
#endif
  return use.template operator()<Isa::portable>();
}

}  // namespace decoding::cpu
