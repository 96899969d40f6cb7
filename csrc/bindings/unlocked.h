// Python's lock, given up for a while.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>
#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace decoding {

// In place of pybind11's gil_scoped_release. Where Python ends meanwhile, it ends each thread that
// wants the lock back (before 3.14), by unwinding it, which in a destructor ends the process with
// "terminate called". Such a thread stays here instead, as it does in 3.14.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
#if defined(__GLIBCXX__)
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      while (true) pause();
    }
#else
    PyEval_RestoreThread(state_);
#endif
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace decoding
