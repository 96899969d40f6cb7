"""The engine's input and output for one sub-batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from decoding import _C
from decoding.common.arrays import Array
from decoding.common.progress import Event
from decoding.engine.limits import Limits
from decoding.engine.observer import StepObserver


@dataclass(frozen=True)
class PackedTokens:
    """Sentences one after the other, without padding."""

    ids: Array  # int32 [tokens]
    offsets: Array  # int32 [B + 1], sentence b is ids[offsets[b] : offsets[b + 1]]
    positions: Array  # int32 [tokens], the column where each stood, masked tokens counted
    longest: int

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class EngineRequest:
    """One sub-batch of a call. Shapes: B sentences, K rows of each."""

    options: _C.Request
    source: PackedTokens | None  # None without an encoder
    prompt: PackedTokens  # with guidance 2 B: the unconditional ones follow the others
    sentence_ids: Array  # int32, one for each prompt: its sentence's index in the whole call
    limits: Limits  # that the memory is planned for
    fill: int  # the token after a row's end
    shortlist: Array | None = None  # int32 [n], ascending, all that may follow; None: any token
    max_time: float = math.inf  # seconds
    keep_attentions: bool = False  # to the source, of every step
    keep_scores: bool = False  # of every step; needs options that process them
    keep_logits: bool = False  # of every step
    observer: StepObserver | None = None  # Python that sees the steps, or takes part in them
    cancel: Event | None = None  # ends the call where it is set
    reached: Callable[[int], None] | None = None  # is told the number of steps that are done

    @property
    def sentences(self) -> int:
        """B"""
        return len(self.prompt) // (2 if self.options.guided else 1)

    @property
    def rows_per_sentence(self) -> int:
        return self.limits.beams

    @property
    def steps(self) -> int:
        """The most steps that a row takes."""
        return self.limits.target

    @property
    def in_parts(self) -> bool:
        """Whether something happens between the parts of a step."""
        hooked = self.observer is not None and self.observer.hooked
        return hooked or self.keep_scores or self.keep_logits

    def content(self) -> list[bytes]:
        """Equal where two requests ask for the same, but for max_time and who looks on."""
        kept = (self.keep_scores, self.keep_logits, self.observer is not None, self.in_parts)
        how = (self.limits, self.fill, self.max_time < math.inf, *kept)
        texts = [part for each in (self.source, self.prompt) for part in packed_content(each)]
        return [repr(how).encode(), self.options.content, self.sentence_ids.tobytes(), *texts]

    def batch(self, stream: int) -> _C.Batch:
        """stream: the CUDA stream of the call."""
        source = self.source
        return _C.Batch(
            source=None if source is None else source.ids,
            source_positions=None if source is None else source.positions,
            source_offsets=None if source is None else source.offsets,
            prompt=self.prompt.ids,
            prompt_offsets=self.prompt.offsets,
            sentence_ids=self.sentence_ids,
            shortlist=self.shortlist,
            stream=stream,
        )


def packed_content(tokens: PackedTokens | None) -> list[bytes]:
    if tokens is None:
        return []
    return [array.tobytes() for array in (tokens.ids, tokens.offsets, tokens.positions)]


IGNORED = -100  # a label that does not count, as in torch


@dataclass(frozen=True)
class ScoreRequest:
    """Sentences whose labels are to be scored, or whose attentions are asked for: see
    _C.Session.score and attend."""

    source: PackedTokens | None  # each source once; None without an encoder
    sources: Array | None  # int32 [B], the number of each sentence's source, at most its own
    ids: Array  # int32 [tokens], what the decoder reads
    labels: Array  # int32 [tokens], what it should say after each
    offsets: Array  # int32 [B + 1]
    longest: int  # at least 1
    items: Array  # [B], of each sentence in the caller's batch, which errors name
    keep_attentions: bool = False

    def content(self) -> list[bytes]:
        """Equal where two requests ask for the same."""
        sources = b"" if self.sources is None else self.sources.tobytes()
        own = [array.tobytes() for array in (self.ids, self.labels, self.offsets)]
        return [b"score", sources, *own, *packed_content(self.source)]

    @property
    def limits(self) -> Limits:
        """The limits that the memory is planned for."""
        return Limits(
            batch=len(self.offsets) - 1,
            beams=1,
            source=0 if self.source is None else self.source.longest,
            target=1,
            eos=0,
            attentions=int(self.keep_attentions),
            labels=self.longest,
        )


@dataclass(frozen=True)
class ScoreResults:
    """What the engine says of labels: see _C.Session.score. Shapes [tokens]."""

    logprobs: Array  # float32
    ranks: Array  # int32
    argmax: Array  # int32

    @classmethod
    def empty(cls, tokens: int) -> ScoreResults:
        ranks, argmax = np.empty((2, tokens), np.int32)
        return cls(np.empty(tokens, np.float32), ranks, argmax)


@dataclass(frozen=True)
class EngineResults:
    """The hypotheses of a sub-batch, best first where rows compete; see _C.Session.fetch."""

    tokens: Array  # int32 [B, K, target], `fill` after a row's length
    lengths: Array  # int32 [B, K]
    scores: Array  # float32 [B, K]
    sums: Array  # float32 [B, K]
    parent_rows: Array  # int32 [B, K, target], the row b * K + k that each token extended; -1
    # after a row's length
    fill: int
    # of every step, if kept: float32 [B * K, V], 0 where done
    step_scores: list[Array]
    step_logits: list[Array]
    attentions: Array | None = None  # float32 [steps, B * K, longest source], if kept

    @classmethod
    def empty(cls, batch: int, rows: int, target: int, fill: int) -> EngineResults:
        """To be filled by the engine, which leaves alone what comes after a row's length.

        rows: of each sentence. target: tokens of the longest row.
        """
        shape = (batch, rows)
        return cls(
            tokens=np.full((*shape, target), fill, np.int32),
            lengths=np.empty(shape, np.int32),
            scores=np.empty(shape, np.float32),
            sums=np.empty(shape, np.float32),
            parent_rows=np.full((*shape, target), -1, np.int32),
            fill=fill,
            step_scores=[],
            step_logits=[],
        )
