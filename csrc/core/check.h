// One way to fail: CHECK throws Error, which Python sees as decoding.Error.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace decoding {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <typename... Parts>
[[noreturn]] void fail(const char* condition, const char* file, int line, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  const std::string path = file;
  text << " [" << condition << " at " << path.substr(path.find_last_of('/') + 1) << ':' << line
       << ']';
  throw Error(text.str());
}

}  // namespace decoding

// CHECK(rows > 0, "rows must be positive, got ", rows): for contracts, never inside a step: the
// team's other threads would wait at the next barrier for ever.
#define CHECK(condition, ...) \
  if (!(condition)) ::decoding::fail(#condition, __FILE__, __LINE__, __VA_ARGS__)
