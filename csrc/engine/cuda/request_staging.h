// What a GPU's steps know of a request, staged as it joins its class, and as it changes.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cuda/request_class.h"
#include "engine/cuda/staging.h"
#include "engine/runner.h"
#include "engine/search/request_class.h"

namespace decoding {

// What it is made from must outlive it. All is on the device after the staging's next send().
template <typename T>
class CudaRequestStaging {
  using Class = CudaClass<T>;

 public:
  CudaRequestStaging(const ModelSpec& spec, CudaStaging& staging)
      : spec_(spec), staging_(staging) {}

  void join(Class& c, const Admitted& admitted) {
    const int id = admitted.slot.sentence;
    const bool has_encoder = spec_.encoder.has_value();
    config(c, id, admitted.request->request);
    const Inputs& in = c.w.inputs;
    staging_.stage(in.shared_pages + int64_t{id} * shared_pages_of(spec_, c.limits),
                   admitted.shared_pages);
    own_pages(c, admitted, 0);
    one(in.shared_lengths + id, admitted.request->shared(has_encoder));
    one(c.steps + id, 0);
    running(c, id, true);
    c.joining.push_back(joining_sentence(admitted, has_encoder));
    c.report.reports[id] = {};
  }

  // Those from `first` on.
  void own_pages(const Class& c, const Admitted& admitted, int first) {
    const int64_t list = int64_t{admitted.slot.sentence} * self_pages_of(spec_, c.limits);
    staging_.stage(c.w.inputs.self_pages + list + first, admitted.own_pages.data() + first,
                   admitted.own_pages.size() - first);
  }

  void active(Class& c, StepState state, const std::vector<ActiveSentence>& active) {
    state.active_count = static_cast<int32_t>(active.size());
    staging_.stage(c.w.inputs.state, &state, 1);
    staging_.stage(c.w.inputs.active, active);
    c.changed = true;
  }

  void running(Class& c, int id, bool runs) {
    one(c.running + id, runs);
    if (runs) {
      c.sentences.push_back(id);
    } else {
      std::erase(c.sentences, id);
    }
  }

 private:
  void one(int32_t* to, int32_t value) { staging_.stage(to, &value, 1); }

  void config(const Class& c, int id, const Request& request) {
    std::vector<int32_t> words(request.words.size());
    const int32_t first = id * c.words_of_each;
    const SentenceConfig config = place_config(request, first, words.data() - first);
    staging_.stage(c.configs + id, &config, 1);
    staging_.stage(c.words + first, words);
  }

  const ModelSpec& spec_;
  CudaStaging& staging_;
};

}  // namespace decoding
