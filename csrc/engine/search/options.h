// The options of a request: each keyword of decoding._C.Request with the field of a sentence's
// config that it sets, whose default is the option's. The options that fill several fields are read
// one by one in bindings/request.cc.
#pragma once

#include <tuple>

#include "kernels/search/config.h"

namespace decoding {

// Span: the option is a list of ids.
template <typename Config, typename T>
struct Option {
  const char* name;
  T Config::* field;
};

inline constexpr std::tuple kSentenceOptions = {
    Option{"max_new", &SentenceConfig::max_new},
    Option{"min_new", &SentenceConfig::min_new},
    Option{"eos", &SentenceConfig::eos},
    Option{"pad", &SentenceConfig::pad},
    Option{"forced_first", &SentenceConfig::forced_first},
    Option{"forced_last", &SentenceConfig::forced_last},
    Option{"seed", &SentenceConfig::seed},
    Option{"random_first", &SentenceConfig::random_first},
    Option{"penalty_alpha", &SentenceConfig::alpha},
    Option{"renormalize", &SentenceConfig::renormalize}};

inline constexpr std::tuple kBeamOptions = {
    Option{"length_penalty", &BeamConfig::length_penalty},
    Option{"length_normalization", &BeamConfig::normalization},
    Option{"early_stopping", &BeamConfig::early_stopping},
    Option{"diversity_rate", &BeamConfig::sibling_penalty},
    Option{"diversity_penalty", &BeamConfig::group_penalty}};

inline constexpr std::tuple kFilterOptions = {
    Option{"temperature", &FilterConfig::temperature},
    Option{"top_k", &FilterConfig::top_k},
    Option{"top_p", &FilterConfig::top_p},
    Option{"top_h", &FilterConfig::top_h},
    Option{"min_p", &FilterConfig::min_p},
    Option{"typical_p", &FilterConfig::typical_p},
    Option{"epsilon_cutoff", &FilterConfig::epsilon},
    Option{"eta_cutoff", &FilterConfig::eta},
    Option{"min_tokens_to_keep", &FilterConfig::min_tokens}};

inline constexpr std::tuple kProcessorOptions = {
    Option{"guidance_scale", &ProcessorConfig::guidance},
    Option{"repetition_penalty", &ProcessorConfig::penalty},
    Option{"frequency_penalty", &ProcessorConfig::frequency},
    Option{"presence_penalty", &ProcessorConfig::presence},
    Option{"no_repeat_ngram_size", &ProcessorConfig::ngram},
    Option{"encoder_no_repeat_ngram_size", &ProcessorConfig::encoder_ngram},
    Option{"remove_invalid_values", &ProcessorConfig::remove_invalid},
    Option{"decay_start", &ProcessorConfig::decay_start},
    Option{"decay_factor", &ProcessorConfig::decay_factor},
    Option{"suppress_tokens", &ProcessorConfig::suppressed},
    Option{"begin_suppress_tokens", &ProcessorConfig::begin_suppressed}};

// Calls use(name, field) for all of them; field(config) is what the option sets in a
// SentenceConfig.
template <typename Use>
void for_options(Use&& use) {
  const auto of = [&](const auto& options, auto part) {
    const auto each = [&](const auto& option) {
      use(option.name, [&](SentenceConfig& config) -> auto& { return part(config).*option.field; });
    };
    std::apply([&](const auto&... option) { (each(option), ...); }, options);
  };
  of(kSentenceOptions, [](SentenceConfig& c) -> SentenceConfig& { return c; });
  of(kBeamOptions, [](SentenceConfig& c) -> BeamConfig& { return c.beam; });
  of(kFilterOptions, [](SentenceConfig& c) -> FilterConfig& { return c.filters; });
  of(kProcessorOptions, [](SentenceConfig& c) -> ProcessorConfig& { return c.processors; });
}

}  // namespace decoding
