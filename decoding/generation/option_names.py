"""The names of options in other libraries, and which option a misspelt name means."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import ParamSpec, TypeVar

LEAST = 0.8  # similarity of a name to the one that is suggested for it: difflib's ratio

# vLLM, OpenAI, llama.cpp, text-generation-inference; CTranslate2; fairseq; Marian; OpenNMT-py;
# LightSeq, FasterTransformer, TensorRT-LLM. Each by the name of ours that means the same, or that
# does what it is used for.
OTHER_NAMES = {
    "alpha": "length_penalty",
    "bad_words": "bad_words_ids",
    "beam": "num_beams",
    "beam_search_diversity_rate": "diversity_rate",
    "beam_size": "num_beams",
    "beam_width": "num_beams",
    "beams": "num_beams",
    "best_of": "num_beams",
    "beta": "coverage_penalty",
    "block_ngram_repeat": "no_repeat_ngram_size",
    "callback": "streamer",
    "cfg_scale": "guidance_scale",
    "disable_unk": "suppress_tokens",
    "diverse_beam_groups": "num_beam_groups",
    "diverse_beam_strength": "diversity_penalty",
    "diverse_lambda": "diversity_rate",
    "end_id": "eos_token_id",
    "end_token": "eos_token_id",
    "len_penalty": "length_penalty",
    "lenpen": "length_penalty",
    "logit_bias": "sequence_bias",
    "logits_processors": "logits_processor",
    "logprobs": "output_scores",
    "max_decoding_length": "max_new_tokens",
    "max_gen_len": "max_new_tokens",
    "max_len": "max_length",
    "max_len_b": "max_new_tokens",
    "max_output_len": "max_new_tokens",
    "max_step": "max_length",
    "max_tokens": "max_new_tokens",
    "min_decoding_length": "min_new_tokens",
    "min_len": "min_length",
    "min_tokens": "min_new_tokens",
    "n": "num_return_sequences",
    "n_best": "num_return_sequences",
    "n_predict": "max_new_tokens",
    "nbest": "num_return_sequences",
    "ngram_size": "no_repeat_ngram_size",
    "normalize": "length_penalty",
    "num_beam_hyps_to_keep": "num_return_sequences",
    "num_hypotheses": "num_return_sequences",
    "num_predict": "max_new_tokens",
    "num_samples": "num_return_sequences",
    "on_progress": "progress",
    "output_len": "max_new_tokens",
    "output_sampling": "do_sample",
    "pad_id": "pad_token_id",
    "penalty": "repetition_penalty",
    "prefix_tokens": "decoder_input_ids",
    "prompt_token_ids": "input_ids",
    "random_sampling_temp": "temperature",
    "random_sampling_topk": "top_k",
    "random_sampling_topp": "top_p",
    "random_seed": "seed",
    "repeat_penalty": "repetition_penalty",
    "request_output_len": "max_new_tokens",
    "return_attention": "output_attentions",
    "return_logits_vocab": "output_logits",
    "return_scores": "output_scores",
    "sample": "do_sample",
    "sampling": "do_sample",
    "sampling_temperature": "temperature",
    "sampling_topk": "top_k",
    "sampling_topp": "top_p",
    "stop": "stop_strings",
    "stop_sequences": "stop_strings",
    "stop_token_ids": "eos_token_id",
    "stop_words": "stop_strings",
    "suppress_sequences": "bad_words_ids",
    "target_prefix": "decoder_input_ids",
    "temp": "temperature",
    "timeout": "max_time",
    "tokens_to_generate": "max_new_tokens",
    "typical": "typical_p",
    "use_vmap": "shortlist",
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `name` means: what another library calls so, or a near spelling;
    None where nothing is near. Dashes, underscores and capitals count as equal."""
    by_form = {plain(each): each for each in known}
    form = plain(name)
    other = OTHER_NAMES.get(form)
    if form in by_form:
        return by_form[form]
    if other in by_form:
        return by_form[other]
    near = difflib.get_close_matches(form, by_form, n=1, cutoff=LEAST)
    return by_form[near[0]] if near else None


P = ParamSpec("P")
R = TypeVar("R")


def naming_arguments(others: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: the error about an argument that a function does not have says which one is
    meant. others: what other libraries call its arguments, by ours."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = dict.fromkeys(inspect.signature(function).parameters)
        called = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    meant = suggestion(others.get(plain(name), name), known)
                    raise TypeError(f"{called}() has no argument {name!r}{meant}")
            return function(*args, **kwargs)

        return checked

    return decorate


def plain(name: str) -> str:
    return name.strip("-").replace("-", "_").lower()


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: "; did you mean 'top_k'?", or empty."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""
