#include "engine/search/batch.h"

#include <algorithm>

namespace decoding {
namespace {

void check_search(const Request& request, const ModelSpec& spec, const Limits& limits) {
  if (is_contrastive(request.search)) {
    CHECK(limits.hidden > 0, "contrastive search needs hidden=1, it is 0");
    CHECK(!spec.decoder.pre_norm || spec.decoder.final_norm,
          "contrastive search needs a norm behind the last layer");
  }
  if (const auto* constrained = std::get_if<Constrained>(&request.search)) {
    CHECK(constrained->phrases.words() <= static_cast<size_t>(limits.phrases), "phrases must be ",
          constrained->phrases.words(), " or more, it is ", limits.phrases);
  }
  if (beam_of(request.search) != nullptr) {
    CHECK(request.row_candidates() <= limits.candidates, "candidates must be ",
          request.row_candidates(), " or more, they are ", limits.candidates);
    CHECK(request.max_finished() <= limits.places(), "finished must be ", request.max_finished(),
          " or more, it is ", limits.places());
  }
}

}  // namespace

void check_fits(const Batch& batch, const Request& request, const ModelSpec& spec,
                const Limits& limits) {
  const int prompts = request.sentences() * (request.is_guided() ? 2 : 1);
  CHECK(batch.sentences == prompts, "there must be ", prompts, " prompts, got ", batch.sentences);
  CHECK(batch.sentences > 0 && batch.sentences <= limits.batch, "batch must be 1 to ", limits.batch,
        ", got ", batch.sentences);
  CHECK(request.rows_per_sentence > 0 && request.rows_per_sentence <= limits.beams,
        "beams must be 1 to ", limits.beams, ", got ", request.rows_per_sentence);
  check_request(request, spec.decoder.vocab);
  CHECK(request.steps() <= limits.target, "target must be 1 to ", limits.target, ", got ",
        request.steps());
  check_search(request, spec, limits);
  if (const size_t words = request.words.size(); request.is_processed()) {
    CHECK(limits.controls > 0 && words <= static_cast<size_t>(limits.controls), "controls must be ",
          std::max<size_t>(1, words), " or more, it is ", limits.controls);
  }
  check_shortlist(batch, spec.decoder.vocab, limits);
  check_packed("prompt", batch.prompt, batch.prompt_offsets, batch.sentences, limits.prompt,
               spec.decoder.vocab, spec.decoder.positions - request.steps() + 1);
  if (!spec.encoder) return;
  check_source(batch, *spec.encoder, limits);
  const int length = batch.prompt_offsets[1];
  for (int b = 0; b < batch.sentences; ++b) {
    CHECK(batch.prompt_offsets[b + 1] - batch.prompt_offsets[b] == length,
          "prompts of an encoder-decoder must be equally long");
  }
}

}  // namespace decoding
