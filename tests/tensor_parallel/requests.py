"""Requests whose results must not depend on how many processes share out an engine's model."""

from __future__ import annotations

import itertools
from typing import Any

from tests.tensor_parallel.calls import ROWS, on_host

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"num_beams": 4, "num_return_sequences": 2},
    {"do_sample": True, "seed": 7, "top_k": 20, "top_p": 0.9, "num_return_sequences": 3},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 4},
    {"do_sample": True, "seed": 3, "num_beams": 3},
    {"num_beams": 2, "max_new_tokens": 30, "bad_words_ids": [[7], [8, 9]]},
)
REQUESTS = [
    (row, {"pad_token_id": 0, "max_new_tokens": 12, **options})
    for options, row in itertools.product(OPTIONS, ROWS)
]
LONG: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": None, "max_new_tokens": 40}
STOPPED: tuple[tuple[str, list[str]], ...] = (
    ("Wie geht es Ihnen?", ["you"]),
    ("Guten Morgen, hast du gut geschlafen?", ["you"]),
    ("Das ist ein Haus.", ["use", "is a"]),
    ("Guten Tag!", []),
)


def generated(model: Any, row: list[int], options: dict[str, Any]) -> Any:
    return on_host(model.generate([row], **options)).tolist()


def stopped(generate: Any, tokenizer: Any) -> Any:
    """generate(ids, **options) for texts with stop strings, all of them begun before one is
    waited for."""
    return [
        generate(
            tokenizer(text)["input_ids"],
            max_new_tokens=20,
            **({"stop_strings": strings, "tokenizer": tokenizer} if strings else {}),
        )
        for text, strings in STOPPED * 3
    ]
