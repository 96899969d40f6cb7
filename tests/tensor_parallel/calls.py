"""Calls whose answers must not depend on how many processes share out a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

ROWS = [[5, 6, 7, 8, 9, 10, 3], [11, 12, 3], [4, 3], [20, 21, 22, 23, 3]]
MANY = [[5 + i % 40, 6 + i % 7, 3] for i in range(90)]  # more rows than one sub-batch has
SHOWN: dict[str, Any] = {
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
}


def on_host(numbers: Any) -> Any:
    return numbers.cpu().numpy() if isinstance(numbers, Tensor) else np.asarray(numbers)


def doubled(ids: Any, scores: Any) -> Any:
    return scores * 2


def call(rows: list[list[int]], **options: Any) -> Callable[[Any], Any]:
    def run(model: Any) -> Any:
        found = model.generate(rows, pad_token_id=0, max_new_tokens=12, **options)
        if not options.get("return_dict_in_generate"):
            return {"sequences": on_host(found)}
        kept = {name: found[name] for name in ("sequences", "sequences_scores") if name in found}
        kept |= {name: np.stack([on_host(x) for x in found[name]]) for name in ("logits",)}
        return {name: on_host(value) for name, value in kept.items()}

    return run


CALLS = {
    "greedy": call(ROWS, **SHOWN),
    "beams": call(ROWS, num_beams=4, num_return_sequences=2, **SHOWN),
    "groups": call(ROWS, num_beams=4, num_beam_groups=2, diversity_penalty=0.5, **SHOWN),
    "samples": call(ROWS, do_sample=True, seed=7, top_k=20, top_p=0.9, num_return_sequences=3),
    "sampled beams": call(ROWS, do_sample=True, seed=3, num_beams=3),
    "contrastive": call(ROWS, penalty_alpha=0.6, top_k=4),
    "processors": call(
        ROWS, repetition_penalty=1.3, no_repeat_ngram_size=2, min_new_tokens=4, **SHOWN
    ),
    "functions": call(ROWS, logits_processor=[doubled]),
    "many": call(MANY, num_beams=2),
}


FORCED: dict[str, Any] = {"max_new_tokens": 12, "min_new_tokens": 12, "num_beams": 3}
FP8_NAMES = ("gpt2", "marian", "llama", "gemma2")
FP8: dict[str, Any] = {"dtype": "float16", "kv_cache_dtype": "fp8"}


def first_step(model: Any) -> Any:
    """The logits of the first step, which reads keys and values of a prompt or a source that are
    stored, float32 [B, vocab], and the scores of beams behind twelve, float32 [B]."""
    one = model.generate(ROWS, pad_token_id=0, max_new_tokens=1, **SHOWN)
    shown = {"return_dict_in_generate": True, "output_sequences_scores": True}
    many = model.generate(ROWS, pad_token_id=0, **FORCED, **shown)
    return on_host(one.logits[0].float()), on_host(many.sequences_scores)


def scored(model: Any) -> Any:
    """The log-probabilities of given tokens."""
    given = np.array([[5, 6, 7, 8], [9, 10, 11, 3]])
    labels = {} if model.spec.encoder is None else {"labels": given[:, ::-1].copy()}
    return on_host(model.score(given, **labels).token_logprobs)


def long_texts(model: Any) -> Any:
    """Tokens after long prompts, and the log-probabilities of their tokens."""
    ids = np.random.default_rng(0).integers(5, 900, (40, 60))
    found = model.generate(ids, pad_token_id=0, max_new_tokens=6, num_beams=2)
    return {"sequences": on_host(found), "scores": on_host(model.score(ids).token_logprobs)}
