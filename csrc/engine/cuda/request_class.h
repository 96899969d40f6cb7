// A class of requests on a GPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "engine/model/request_class.h"
#include "engine/runner.h"
#include "kernels/cuda/resources.h"
#include "kernels/search/report.h"

namespace decoding {

// A class, its requests' configs, and what the host hears of them.
template <typename T>
struct CudaClass : RequestClass<T> {
  SearchConfig* search_config = nullptr;  // on the device
  SentenceConfig* configs = nullptr;      // [R]
  int32_t* words = nullptr;               // [R, words_of_each]
  int words_of_each;
  int32_t *running = nullptr, *steps = nullptr;  // [R], see report.h
  cuda::PinnedMemory host;
  StepState* host_state = nullptr;
  ReportParams report{};
  std::vector<int> sentences;  // that run, as far as the host knows
  bool changed = false;        // since its rows were listed
  int captured_for = 0;

  CudaClass(Arena& arena, const ModelSpec& spec, int index, const Limits& all, int words_of_each)
      : RequestClass<T>(arena, spec, index, all), words_of_each(words_of_each) {
    const int64_t rows = all.batch;
    search_config = reinterpret_cast<SearchConfig*>(
        arena.take<uint8_t>("search_config", {sizeof(SearchConfig)}));
    configs = reinterpret_cast<SentenceConfig*>(
        arena.take<uint8_t>("configs", {rows, sizeof(SentenceConfig)}));
    words = arena.take<int32_t>("words", {rows, words_of_each});
    running = arena.take<int32_t>("running", {rows});
    steps = arena.take<int32_t>("reported_steps", {rows});
  }

  // The host's memory, for so many sentences of one row.
  void take_host(int64_t rows, int64_t target) {
    Arena measured;
    lay_host(measured, rows, target);
    host = cuda::PinnedMemory(measured.bytes());
    Arena arena(host.data(), host.bytes());
    lay_host(arena, rows, target);
  }

  const SentenceReport& report_of(int id) const { return report.reports[id]; }
  // As SentenceReport has it; what it reports is there when this returns.
  int reported_steps(int id) const {
    const int steps = *static_cast<volatile const int32_t*>(&report_of(id).steps);
    std::atomic_thread_fence(std::memory_order_acquire);
    return steps;
  }
  bool has_ended(int id) const { return reported_steps(id) < 0; }

  // The host's copies after so many steps of a sentence.
  SearchResults host_results(int steps) const {
    const int64_t list = int64_t{this->limits.batch} * this->config.max_finished;
    return {{report.host_tokens, report.host_parents, this->limits.rows()},
            report.host_finished + (steps - 1) % kReportedSteps * list,
            report.host_length,
            this->limits.beams,
            this->config.max_finished};
  }

  // What is to be reported of its sentences, when it has been opened.
  void fill_report() {
    const Inputs& in = this->w.inputs;
    report.running = running;
    report.steps = steps;
    report.done = in.done;
    report.fault = in.fault;
    report.finished_count = in.finished_count;
    report.finished = this->w.finished;
    report.length = in.length;
    report.tokens = this->w.tokens;
    report.parents = this->w.parents;
    report.sentences = this->limits.batch;
    report.beams = this->limits.beams;
    report.max_finished = this->config.max_finished;
    report.total_rows = this->limits.rows();
  }

 private:
  void lay_host(Arena& arena, int64_t rows, int64_t target) {
    host_state = take_state(arena, "state");
    report.reports = reinterpret_cast<SentenceReport*>(
        arena.take<int32_t>("reports", {rows, sizeof(SentenceReport) / sizeof(int32_t)}));
    report.host_finished = arena.take<Hypothesis>("finished", {kReportedSteps, rows});
    report.host_length = arena.take<int32_t>("length", {rows});
    report.host_tokens = arena.take<int32_t>("tokens", {target, rows});
    report.host_parents = arena.take<int32_t>("parents", {target, rows});
  }
};

}  // namespace decoding
