// Starts threads: where the system gives none, an Error says so.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/check.h"

namespace decoding {

template <typename Work>
std::thread start_thread(Work&& work) {
  try {
    return std::thread(std::forward<Work>(work));
  } catch (const std::system_error& error) {
    throw Error(std::string("no thread can be started (") + error.what() +
                "): the process may have no more of them; ask for fewer with threads");
  }
}

}  // namespace decoding
