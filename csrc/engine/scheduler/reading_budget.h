// How many tokens of sources and prompts are read between two steps, so that rows which generate
// wait less than twice as long as for a step, and a prompt no longer than it must.
#pragma once

#include <algorithm>

namespace decoding {

class ReadingBudget {
 public:
  // most: tokens at once. timed: whether it hears how long readings and steps take; else a reading
  // has a fixed share of `most`, kUntimed.
  ReadingBudget(int most, bool timed) : most_(most), timed_(timed) {}

  void has_read(int tokens, double seconds) { average(token_, seconds / tokens); }
  void has_stepped(double seconds) { average(step_, seconds); }

  // stepping: rows. joining: rows that could step too, had they been read: where there are as many
  // of these, a reading may take twice as long as with none. others: whether more than one request
  // waits to be read: then it matters more that no row is idle.
  int tokens(int stepping, int joining, bool others = false) const {
    if (stepping == 0) return most_;
    const bool known = timed_ && token_ > 0 && step_ > 0;
    const double usual = known ? kShare * step_ / token_ : kUntimed * (others ? 2 : 1) * most_;
    const double tokens = usual * (stepping + joining) / stepping;
    return static_cast<int>(std::clamp<double>(tokens, std::min(kLeast, most_), most_));
  }

 private:
  static constexpr int kLeast = 4;       // which take hardly longer than one
  static constexpr double kShare = 0.6;  // of a step's time
  static constexpr double kUntimed = 0.125;
  static constexpr double kWeight = 0.125;  // of the newest time in an average

  static void average(double& of, double newest) {
    of = of == 0 ? newest : of + kWeight * (newest - of);
  }

  const int most_;
  const bool timed_;
  double token_ = 0, step_ = 0;  // seconds of one; 0: not known yet
};

}  // namespace decoding
