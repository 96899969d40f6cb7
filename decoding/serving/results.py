"""What an engine tells of a request, in the form that the rest of generate() has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from decoding import _C
from decoding.common.arrays import Array
from decoding.engine.request import EngineResults
from decoding.generation.call import FIRST, ResultForm
from decoding.generation.outputs import GenerateOutput
from decoding.generation.results import SubBatchResult
from decoding.generation.streaming import Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CallEnd:
    """How a call ended that stepped alone. kind: "end", with results, "cancelled", "expired", or
    "raised", with what it has raised."""

    kind: str
    results: Sequence[SubBatchResult] = ()
    error: BaseException | None = None

    @property
    def tokens(self) -> Array:
        """int32 [K, n], those of its only sentence."""
        tokens: Array = self._only.tokens[0]
        return tokens

    @property
    def lengths(self) -> Array:
        """int32 [K]"""
        lengths: Array = self._only.lengths[0]
        return lengths

    @property
    def _only(self) -> EngineResults:
        [sub] = self.results
        return sub.results


End = _C.Output | CallEnd


def result_of(end: End, form: ResultForm, prompt: Array) -> Tensor | GenerateOutput:
    """What generate() returns for a request. prompt: int64 [1, P], its sentence's as the caller
    gave it."""
    fill = form.options.fill
    if isinstance(end, CallEnd):
        return form.as_tensors(form.output(end.results))
    if not form.config.return_dict_in_generate:
        return form.as_tensors(end.sequences(prompt, form.strategy.returned, fill))
    sub = SubBatchResult(FIRST, prompt, engine_results(end, fill))
    return form.as_tensors(form.output([sub]))


def engine_results(end: _C.Output, fill: int) -> EngineResults:
    """The results of one sentence. fill: the token after a row's end."""
    lengths = np.asarray(end.lengths, np.int32)
    return EngineResults(
        tokens=filled(end.tokens, lengths, fill),
        lengths=lengths[None],
        scores=np.asarray(end.scores, np.float32)[None],
        sums=np.asarray(end.sums, np.float32)[None],
        parent_rows=filled(end.parent_rows, lengths, -1),
        fill=fill,
        step_scores=[],
        step_logits=[],
    )


def filled(rows: Array, lengths: Array, fill: int) -> Array:
    """int32 [1, K, n]: `fill` after each row's length. rows: [K, n]."""
    there = np.arange(rows.shape[1]) < lengths[:, None]
    return np.where(there, rows, fill).astype(np.int32)[None]


def rest(end: End, counts: list[int]) -> Tokens:
    """The tokens of each result behind those that have been delivered. counts: how many these are.

    Raises Error where the result is the empty row that transformers returns once the scores of all
    beams are below its -1e9: only a model whose numbers overflow comes to that.
    """
    tokens, lengths = end.tokens.tolist(), end.lengths.tolist()
    if any(count > length for count, length in zip(counts, lengths[: len(counts)], strict=True)):
        raise _C.Error(
            "the tokens that were streamed are not the result's, which is empty: the scores of all "
            "beams fell below -1e9. The model's numbers overflow; remove_invalid_values hides that"
        )
    return [tokens[row][count : lengths[row]] for row, count in enumerate(counts)]
