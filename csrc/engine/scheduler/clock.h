// Time as the scheduler sees it.
#pragma once

#include <chrono>

namespace decoding {

inline double now_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// Adds the seconds of a scope to a sum.
class Timed {
 public:
  explicit Timed(double& sum) : sum_(sum), begin_(now_seconds()) {}
  ~Timed() { sum_ += now_seconds() - begin_; }

 private:
  double& sum_;
  double begin_;
};

}  // namespace decoding
