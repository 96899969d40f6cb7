// What a thread does in a loop in which it waits.
#pragma once

namespace decoding::cpu {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace decoding::cpu
