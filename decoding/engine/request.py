"""What goes into the engine for one sub-batch, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decoding import _C
from decoding.engine.limits import Limits
from decoding.engine.observer import StepObserver

Search = _C.Greedy | _C.Sampling | _C.Beam | _C.Diverse | _C.Contrastive | _C.Constrained
ONE_TOKEN = _C.Greedy, _C.Sampling  # searches that consider one next token of a row


@dataclass(frozen=True)
class PackedTokens:
    """Sentences one after the other, without padding."""

    ids: Tensor  # int32 [tokens]
    offsets: Tensor  # int32 [B + 1], sentence b is ids[offsets[b] : offsets[b + 1]]
    positions: Tensor  # int32 [tokens], the column where each stood, masked tokens counted
    longest: int

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class EngineRequest:
    """One sub-batch of a call. Shapes: B sentences, K rows of each."""

    source: PackedTokens | None  # None without an encoder
    prompt: PackedTokens
    items: Tensor  # int32 [B], indices of the sentences in the whole call
    sentences: Tensor  # uint8 [B * bytes], see generation/sentences.py
    rows_per_sentence: int
    max_new: int
    eos: int  # how many ids end a row
    rules: _C.Rules
    search: Search
    fill: int  # stands after a row's end
    max_finished: int = 0  # rows that have ended which a search holds of a sentence; 0: K
    processors: _C.Controls | None = None  # where the rules do not say all
    filters: _C.Warpers | None = None  # need processors
    stop_table: Tensor | None = None  # int32 [states, V], with stop_first int32 [B]
    stop_first: Tensor | None = None
    shortlist: Tensor | None = None  # int32 [n], ascending, all that may follow; None: any token
    unconditional: int = 0  # with guidance half of the sentences, the last ones
    max_time: float | None = None  # seconds
    keep_attentions: bool = False  # to the source, of every step
    keep_scores: bool = False  # of every step; needs processors
    keep_logits: bool = False  # of every step
    observer: StepObserver | None = None  # Python that sees the steps, or takes part in them

    @property
    def batch(self) -> int:
        """Sentences that results are for."""
        return len(self.prompt) - self.unconditional

    @property
    def rows(self) -> int:
        return self.batch * self.rows_per_sentence

    @property
    def steps(self) -> int:
        """Contrastive search chooses the token of a step in the next one."""
        return self.max_new + isinstance(self.search, _C.Contrastive)

    @property
    def in_parts(self) -> bool:
        """Whether something happens between the parts of a step."""
        hooked = self.observer is not None and self.observer.hooked
        return hooked or self.keep_scores or self.keep_logits

    def limits(self) -> Limits:
        """What the memory must hold for it."""
        beams, finished = self.rows_per_sentence, self.max_finished
        return Limits(
            batch=len(self.prompt),
            beams=beams,
            source=0 if self.source is None else self.source.longest,
            prompt=self.prompt.longest,
            target=self.steps,
            eos=0 if isinstance(self.search, ONE_TOKEN) else max(1, self.eos),
            finished=finished if finished > beams else 0,
            controls=0 if self.processors is None else max(1, self.processors.words),
            attentions=int(self.keep_attentions),
            hidden=int(isinstance(self.search, _C.Contrastive)),
            phrases=self.search.words if isinstance(self.search, _C.Constrained) else 0,
            shortlist=0 if self.shortlist is None else len(self.shortlist),
        )


@dataclass(frozen=True)
class ScoreRequest:
    """Sentences whose labels are to be scored: see _C.Session.score."""

    source: PackedTokens | None  # None without an encoder
    ids: Tensor  # int32 [tokens], what the decoder reads
    labels: Tensor  # int32 [tokens], what it should say after each
    offsets: Tensor  # int32 [B + 1]
    longest: int  # at least 1

    def limits(self) -> Limits:
        """What the memory must hold for it."""
        return Limits(
            batch=len(self.offsets) - 1,
            beams=1,
            source=0 if self.source is None else self.source.longest,
            target=1,
            eos=0,
            labels=self.longest,
        )


@dataclass(frozen=True)
class EngineResults:
    """The hypotheses of a sub-batch, best first where rows compete; see _C.Session.take."""

    tokens: Tensor  # int32 [B, K, target], `fill` after a row's length
    lengths: Tensor  # int32 [B, K]
    scores: Tensor  # float32 [B, K]
    sums: Tensor  # float32 [B, K]
    parent_rows: Tensor  # int32 [B, K, target], the row b * K + k that each token extended; -1
    # after a row's length
    fill: int
    # of every step, if kept: float32 [B * K, V], 0 where done
    step_scores: list[Tensor]
    step_logits: list[Tensor]
    attentions: Tensor | None = None  # float32 [steps, B * K, longest source], if kept

    @classmethod
    def empty(cls, batch: int, rows: int, target: int, fill: int) -> EngineResults:
        """To be filled by the engine, which leaves alone what comes after a row's length.

        rows: of each sentence. target: tokens of the longest row.
        """
        shape = (batch, rows)
        return cls(
            tokens=torch.full((*shape, target), fill, dtype=torch.int32),
            lengths=torch.empty(shape, dtype=torch.int32),
            scores=torch.empty(shape),
            sums=torch.empty(shape),
            parent_rows=torch.full((*shape, target), -1, dtype=torch.int32),
            fill=fill,
            step_scores=[],
            step_logits=[],
        )
