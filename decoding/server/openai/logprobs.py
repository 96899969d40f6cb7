"""Log-probabilities of tokens that a model has written: it reads them again, in one pass, or where
more than the most likely token is asked for step by step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import decoding
from decoding.engine.request import IGNORED
from decoding.generation.config import OPTIONS

if TYPE_CHECKING:
    from torch import Tensor

MOST = 20  # likely tokens of a place
Text = str | bytes


@dataclass(frozen=True)
class TokenLogprobs:
    """logprob: None of a text's first token. top: the most likely tokens at its place with theirs,
    or none where nobody asked."""

    text: Text
    logprob: float | None
    top: tuple[tuple[Text, float], ...]


def sums_of(model: decoding.Model, prompt: Sequence[int], rows: Sequence[Sequence[int]]) -> Any:
    """Of each row of new tokens the sum of its log-probabilities."""
    return scored(model, [prompt] * len(rows), rows, rows).sums.tolist()


def logprobs_of(
    model: decoding.Model,
    known: Sequence[Sequence[int]],
    rows: Sequence[Sequence[int]],
    top: int,
    text_of: Callable[[int], Text],
    cancel: threading.Event,
) -> list[list[TokenLogprobs]]:
    """Of each row of new tokens. known: those before them, at least one, and as many of each row.
    top: so many of the most likely tokens of each place, too. cancel: ends it where several of them
    are asked for."""
    if top > 1:
        forced = Forced(model, known, rows, top, cancel)
        return [
            [
                TokenLogprobs(text_of(id), value, tuple((text_of(i), high) for i, high in likely))
                for id, value, likely in zip(ids, *forced.of(row), strict=True)
            ]
            for row, ids in enumerate(rows)
        ]
    width = len(known[0])

    def there(table: Any) -> list[Any]:
        found = zip(table.tolist(), rows, strict=True)
        return [row[width : width + len(ids)] for row, ids in found]

    found = scored(model, known, rows, rows)
    likely, values = there(found.argmax), there(found.token_logprobs)
    best = values
    if top and likely != list(rows):
        best = there(scored(model, known, rows, likely).token_logprobs)
    return [
        [
            TokenLogprobs(text_of(id), value, ((text_of(likeliest), high),) if top else ())
            for id, value, likeliest, high in zip(ids, own, own_likely, own_best, strict=True)
        ]
        for ids, own, own_likely, own_best in zip(rows, values, likely, best, strict=True)
    ]


def scored(
    model: decoding.Model,
    known: Sequence[Sequence[int]],
    rows: Sequence[Sequence[int]],
    labels: Sequence[Sequence[int]],
) -> Any:
    """labels: at the places of each row's tokens."""
    texts = [[*before, *row] for before, row in zip(known, rows, strict=True)]
    ignored = [IGNORED] * len(known[0])
    return model.score(texts, [[*ignored, *row] for row in labels])


class Forced:
    """Rows of new tokens, written once more by a greedy search that has no choice."""

    def __init__(
        self,
        model: decoding.Model,
        known: Sequence[Sequence[int]],
        rows: Sequence[Sequence[int]],
        top: int,
        cancel: threading.Event,
    ) -> None:
        """top: tokens that are kept of each step."""
        self._rows, self._top, self._width = rows, top, len(known[0])
        # Of each step: the log-probability of each row's token, and the likeliest ones and theirs.
        self._steps: list[tuple[list[float], list[list[int]], list[list[float]]]] = []
        off = {name: None for name in model.generation_config if name in OPTIONS}
        lengths = [len(row) for row in rows]
        options: dict[str, Any] = {**off, "max_new_tokens": lengths, "do_sample": False}
        model.generate(
            list(map(list, known)), logits_processor=[self._step], cancel=cancel, **options
        )

    def of(self, row: int) -> tuple[list[float], list[list[tuple[int, float]]]]:
        """Of each of its tokens the log-probability, and the likeliest tokens with theirs."""
        steps = self._steps[: len(self._rows[row])]
        own = [logprobs[row] for logprobs, _, _ in steps]
        return own, [list(zip(ids[row], high[row], strict=True)) for _, ids, high in steps]

    def _step(self, ids: Tensor, logits: Tensor) -> Tensor:
        step = ids.shape[1] - self._width
        wanted = [[row[min(step, len(row) - 1)]] for row in self._rows]
        logprobs, column = logits.log_softmax(-1), ids.new_tensor(wanted)
        high, likely = logprobs.topk(min(self._top, logits.shape[1]))
        own = logprobs.gather(1, column)[:, 0]
        self._steps.append((own.tolist(), likely.tolist(), high.tolist()))
        return logits.new_full(logits.shape, -float("inf")).scatter_(1, column, 0.0)


def shown(text: Text) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text
