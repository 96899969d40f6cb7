#include "bindings/training/training.h"

#include <pthread.h>

#include <memory>
#include <mutex>

namespace decoding {
namespace {

struct SharedTeam {
  std::mutex mutex;
  std::unique_ptr<cpu::Team> team;
};

// Outlives Python. A child of fork() has none of the threads, and maybe a locked mutex: it begins
// with a new one.
SharedTeam*& shared_team() {
  static auto* shared = new SharedTeam;
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { shared_team() = new SharedTeam; });
  static_cast<void>(registered);
  return shared;
}

}  // namespace

void on_training_team(int threads, const std::function<void(cpu::Team&)>& use) {
  SharedTeam& shared = *shared_team();
  const std::scoped_lock lock(shared.mutex);
  if (shared.team == nullptr || shared.team->size() != threads) {
    shared.team = nullptr;  // the old threads end before the new ones start
    shared.team = std::make_unique<cpu::Team>(threads);
  }
  use(*shared.team);
}

int torch_threads() {
  static const py::handle function =  // outlives Python
      py::module_::import("torch").attr("get_num_threads").cast<py::object>().release();
  return function().cast<int>();
}

}  // namespace decoding
