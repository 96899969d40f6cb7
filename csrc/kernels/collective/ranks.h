// The processes of one machine that share out a model, as their hosts see each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace decoding {

class Ranks {
 public:
  virtual ~Ranks() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The largest value of any rank, inside a call that all make; none has it before all have come.
  // Throws Error where a rank is lost.
  virtual int64_t max_of(int64_t value) = 0;
  // Gives all ranks what rank 0 has in `bytes`, in place of what they have there; likewise.
  virtual void broadcast(std::vector<std::byte>& bytes) = 0;
  // Ends the call of all other ranks.
  virtual void fail(const std::string& why) = 0;
  // Whether some rank has left the present call with an error, or has ended. Any thread may ask.
  virtual bool is_torn() const = 0;
  // Throws Error that names this rank.
  virtual void check_torn() const = 0;
};

}  // namespace decoding
