"""Log-probabilities of tokens that a model has written: it reads them again, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import decoding
from decoding.engine.request import IGNORED

Text = str | bytes


@dataclass(frozen=True)
class TokenLogprobs:
    """top: the most likely tokens at its place with theirs, or none where nobody asked."""

    text: Text
    logprob: float
    top: tuple[tuple[Text, float], ...]


def sums_of(model: decoding.Model, prompt: Sequence[int], rows: Sequence[Sequence[int]]) -> Any:
    """Of each row of new tokens the sum of its log-probabilities."""
    return scored(model, prompt, rows, rows).sums.tolist()


def logprobs_of(
    model: decoding.Model,
    prompt: Sequence[int],
    rows: Sequence[Sequence[int]],
    top: int,
    text_of: Callable[[int], Text],
) -> list[list[TokenLogprobs]]:
    """Of each row of new tokens. top: 1 for the most likely token of each place, too."""
    found = scored(model, prompt, rows, rows)
    likely = [row[len(prompt) :] for row in found.argmax.tolist()]
    likely = [row[: len(ids)] for row, ids in zip(likely, rows, strict=True)]
    values = [row[len(prompt) :] for row in found.token_logprobs.tolist()]
    best = values
    if top and likely != list(rows):
        best = [
            row[len(prompt) :]
            for row in scored(model, prompt, rows, likely).token_logprobs.tolist()
        ]
    return [
        [
            TokenLogprobs(text_of(id), value, ((text_of(likeliest), high),) if top else ())
            for id, value, likeliest, high in zip(ids, own, own_likely, own_best, strict=False)
        ]
        for ids, own, own_likely, own_best in zip(rows, values, likely, best, strict=True)
    ]


def scored(
    model: decoding.Model,
    prompt: Sequence[int],
    rows: Sequence[Sequence[int]],
    labels: Sequence[Sequence[int]],
) -> Any:
    """labels: at the places of each row's tokens."""
    ignored = [IGNORED] * len(prompt)
    return model.score([[*prompt, *row] for row in rows], [[*ignored, *row] for row in labels])
