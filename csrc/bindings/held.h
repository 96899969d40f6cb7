// Objects of Python's that C++ holds, and lets go of in threads without Python's lock.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <utility>

namespace decoding {

class HeldObjects {
 public:
  // With Python's lock. Any thread may drop the last copy of what is returned; the object is then
  // released by the next call of one of these.
  static std::shared_ptr<const void> hold(pybind11::object object) {
    release_unused();
    return std::shared_ptr<Held>(new Held{std::move(object)}, drop);
  }

  // With Python's lock.
  static void release_unused() {
    Held* held = unused_.exchange(nullptr, std::memory_order_acquire);
    while (held != nullptr) delete std::exchange(held, held->next);
  }

 private:
  struct Held {
    pybind11::object object;
    Held* next = nullptr;
  };

  static void drop(Held* held) {
    held->next = unused_.load(std::memory_order_relaxed);
    while (!unused_.compare_exchange_weak(held->next, held, std::memory_order_release,
                                          std::memory_order_relaxed)) {
    }
  }

  static inline std::atomic<Held*> unused_{nullptr};
};

}  // namespace decoding
