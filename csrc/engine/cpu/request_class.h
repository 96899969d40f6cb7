// A class of requests on the CPU, whose memory the host reads and writes between steps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cpu/vocab_projection.h"
#include "engine/model/request_class.h"

namespace decoding {

// A class, and what the host keeps of its requests.
template <typename T>
struct CpuClass : RequestClass<T> {
  using RequestClass<T>::RequestClass;

  std::vector<SentenceConfig> configs;  // [sentences]
  std::unique_ptr<int32_t[]> words;     // [sentences, words]
  Choice choice;                        // of most
  // Of each sentence: whether it runs, and whether its choice is another one.
  enum class Running : uint8_t { no, alike, other };
  std::vector<Running> running;
  int others = 0, alike = 0;

  void open(const Request& request, const ModelSpec& spec) {
    RequestClass<T>::open(request, spec.decoder.vocab);
    this->step.key.part = SelectPart::candidates;
    configs.assign(this->limits.batch, {});
    running.assign(this->limits.batch, Running::no);
    this->step.config = {&this->config, configs.data(), words.get()};
    *this->w.inputs.state = {1, 0};
  }

  int active() const { return this->w.inputs.state->active_count; }

  void add(int id, const Choice& theirs) {
    if (others + alike == 0) choice = theirs;
    const bool same = choice.same_lists(theirs);
    running[id] = same ? Running::alike : Running::other;
    ++(same ? alike : others);
    choice.is_shared = others == 0;
  }

  // Drops a sentence from the active ones.
  void drop(int id) {
    Inputs& in = this->w.inputs;
    const auto gone = [&](const ActiveSentence& sentence) { return sentence.id == id; };
    const auto end = std::remove_if(in.active, in.active + active(), gone);
    in.state->active_count = static_cast<int32_t>(end - in.active);
    --(running[id] == Running::alike ? alike : others);
    running[id] = Running::no;
    choice.is_shared = others == 0;
  }
};

}  // namespace decoding
