"""The rows of a call as its caller knows them, while they grow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decoding.common.arrays import Array
from decoding.engine.observer import Step


@dataclass(frozen=True)
class ObservedRows:
    """The rows of a call, all in one sub-batch."""

    prompt: Array  # int64 [B, P], as given
    rows_per_sentence: int
    max_new: int  # tokens that a row may get
    fill: int  # the token after a row's end
    competing: bool  # the rows of a sentence compete: a step may drop some and copy others
    agreeing: bool  # their common beginning is certain before the search ends


class Histories:
    """Each sentence's prompt, then what was generated. R = B * rows_per_sentence rows."""

    def __init__(self, rows: ObservedRows) -> None:
        self.rows_per_sentence, self._competing = rows.rows_per_sentence, rows.competing
        self._prompt = self.width = rows.prompt.shape[1]
        shape = len(rows.prompt) * rows.rows_per_sentence, self.width + rows.max_new
        self._ids = np.full(shape, rows.fill, np.int64)
        self._ids[:, : self.width] = rows.prompt.repeat(rows.rows_per_sentence, 0)

    @property
    def ids(self) -> Array:
        """int64 [R, n]"""
        return self._ids[:, : self.width]

    @property
    def generated(self) -> Array:
        """int64 [R, g]"""
        return self._ids[:, self._prompt : self.width]

    def rows_of(self, sentences: Array) -> Array:
        """int64 [n * rows_per_sentence], the rows of `sentences`, int64 [n]."""
        first = sentences[:, None] * self.rows_per_sentence
        return (first + np.arange(self.rows_per_sentence)).reshape(-1)

    def extend(self, step: Step) -> None:
        """Appends the tokens that a step has accepted."""
        # The beams of a sentence that is done are gone.
        rows = self.rows_of(step.going() if self._competing else step.active)
        if self._competing:
            self._ids[rows] = self._ids[step.parents()[rows]]
        self._ids[rows, self.width] = step.tokens()[rows]
        self.width += 1
