"""Generation and scoring, sub-batch by sub-batch, on the engine of one model."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from decoding import _C
from decoding.engine.limits import Limits, next_bucket
from decoding.engine.runner import Runner
from decoding.generation.attentions import covering
from decoding.generation.batching import Packed
from decoding.generation.observer import Step, Watch
from decoding.generation.strategies.base import Search
from decoding.models.spec import ModelSpec
from decoding.models.weights.memory import CPU

ONE_TOKEN = _C.Greedy, _C.Sampling  # searches that consider one next token of a row
BEFORE, MIDDLE, LAST = 1, 2, 4  # parts of what controls do: csrc/kernels/search/processors.h

STEPS = 16  # between two looks at the outside world: Ctrl-C gets through within so many tokens


@dataclass(frozen=True)
class Work:
    """One sub-batch of a call, ready for the engine. Shapes: B sentences, K rows of each."""

    source: Packed | None  # None without an encoder
    prompt: Packed
    items: Tensor  # int32 [B], indices of the sentences in the whole call
    sentences: Tensor  # uint8 [B * bytes], see search/sentences.py
    beams: int
    max_new: int
    eos: int  # how many ids end a row
    rules: _C.Rules
    search: Search
    fill: int  # stands behind a row's end
    places: int = 0  # of a finished list; 0: one for each of the K rows
    controls: _C.Controls | None = None  # where the rules do not say all
    warpers: _C.Warpers | None = None  # need controls
    stop_table: Tensor | None = None  # int32 [states, V], with stop_first int32 [B]
    stop_first: Tensor | None = None
    shortlist: Tensor | None = None  # int32 [n], ascending, all that may follow; None: any token
    shadows: int = 0  # with guidance half of the sentences, the last ones
    max_time: float | None = None  # seconds
    attentions: bool = False  # keep those to the source
    coverage_penalty: float = 0.0  # needs attentions
    keep_scores: bool = False  # of every step; needs controls
    keep_logits: bool = False  # of every step
    watch: Watch | None = None  # Python that looks on, or takes part

    @property
    def searched(self) -> int:
        """Sentences that results are for."""
        return len(self.prompt) - self.shadows

    @property
    def steps(self) -> int:
        """Contrastive search chooses the token of a step in the next one."""
        return self.max_new + isinstance(self.search, _C.Contrastive)

    @property
    def keeps(self) -> bool:
        return self.keep_scores or self.keep_logits

    def limits(self) -> Limits:
        """What the memory must hold for it."""
        return Limits(
            batch=len(self.prompt),
            beams=self.beams,
            source=0 if self.source is None else self.source.longest,
            prompt=self.prompt.longest,
            target=self.steps,
            eos=0 if isinstance(self.search, ONE_TOKEN) else max(1, self.eos),
            finished=self.places if self.places > self.beams else 0,
            controls=0 if self.controls is None else max(1, self.controls.words),
            attentions=int(self.attentions),
            hidden=int(isinstance(self.search, _C.Contrastive)),
            phrases=self.search.words if isinstance(self.search, _C.Constrained) else 0,
            shortlist=0 if self.shortlist is None else len(self.shortlist),
        )


@dataclass(frozen=True)
class Labelled:
    """Sentences whose labels are to be scored: see _C.Session.score."""

    source: Packed | None  # None without an encoder
    ids: Tensor  # int32 [tokens], what the decoder reads
    labels: Tensor  # int32 [tokens], what it should say behind each
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
class Results:
    """What the engine found; see _C.Session.take."""

    tokens: Tensor  # int32 [B, K, target], `fill` behind a row's length
    lengths: Tensor  # int32 [B, K]
    scores: Tensor  # float32 [B, K]
    sums: Tensor  # float32 [B, K]
    slots: Tensor  # int32 [B, K, target], -1 behind a row's length
    fill: int
    # of every step, if kept: float32 [B * K, V], 0 where done
    steps: list[Tensor]  # scores
    logits: list[Tensor]
    attentions: Tensor | None = None  # float32 [steps, B * K, longest source], if kept

    @classmethod
    def empty(cls, batch: int, beams: int, target: int, fill: int) -> Results:
        """To be filled by the engine, which leaves alone what is behind a row's length."""
        shape = (batch, beams)
        return cls(
            tokens=torch.full((*shape, target), fill, dtype=torch.int32),
            lengths=torch.empty(shape, dtype=torch.int32),
            scores=torch.empty(shape),
            sums=torch.empty(shape),
            slots=torch.full((*shape, target), -1, dtype=torch.int32),
            fill=fill,
            steps=[],
            logits=[],
        )


class Session(Runner):
    """What a model that generates does: one sub-batch at a time."""

    _engine: _C.Session

    def __init__(
        self,
        spec: ModelSpec,
        engine: _C.Session,
        *,
        device: torch.device = CPU,
        limits: Limits | None,
    ) -> None:
        self.spec = spec
        super().__init__(engine, device=device, limits=limits)

    @property
    def graph_nodes(self) -> int:
        return self._engine.graph_nodes

    def run(self, work: Work) -> Results:
        """Generates; raises ValueError beyond explicit limits, decoding.Error without the memory.

        On a GPU it is work of the caller's current stream. Ctrl-C is raised between steps. Whatever
        is raised, the next call starts afresh.
        """
        with self._turn:
            stream = self._stream()
            self._reserve(work.limits())
            source = work.source
            self._engine.start(
                None if source is None else source.ids,
                None if source is None else source.at,
                None if source is None else source.offsets,
                work.prompt.ids,
                work.prompt.offsets,
                work.items,
                work.sentences,
                work.beams,
                work.rules,
                work.search,
                controls=work.controls,
                warpers=work.warpers,
                stop_table=work.stop_table,
                stop_first=work.stop_first,
                shortlist=work.shortlist,
                shadows=work.shadows,
                stream=stream,
            )
            # A GPU is busy with the source by now, so this takes none of the call's time.
            found = Results.empty(work.searched, work.beams, work.steps, work.fill)
            if work.watch is None and work.max_time is None and not work.keeps:
                while not self._engine.step(STEPS):
                    pass  # Ctrl-C gets through
            else:
                self._watched(work, found)
            self._engine.take(found.tokens, found.lengths, found.scores, found.sums, found.slots)
            if work.attentions:
                found = replace(found, attentions=self._attentions(work))
            if work.coverage_penalty > 0:
                assert source is not None
                found = covering(found, source.offsets.diff(), work.coverage_penalty)
            if work.watch is not None:
                work.watch.end(found)
            return found

    def _attentions(self, work: Work) -> Tensor:
        """float32 [steps, B * K, longest source], of the steps that were taken."""
        assert work.source is not None
        steps = int(self._buffer("state")[0]) - 1
        rows = work.searched * work.beams
        kept = self._buffer("attentions")[:steps, :rows, : work.source.longest]
        return kept.to("cpu", copy=True)

    def score(self, labelled: Labelled) -> Tensor:
        """float32 [tokens], each label's log-probability. Errors as in `run`."""
        with self._turn:
            stream = self._stream()
            self._reserve(labelled.limits())
            source = labelled.source
            logprobs = torch.empty(len(labelled.ids))
            self._engine.score(
                None if source is None else source.ids,
                None if source is None else source.at,
                None if source is None else source.offsets,
                labelled.ids,
                labelled.labels,
                labelled.offsets,
                logprobs,
                stream=stream,
            )
            return logprobs

    def _watched(self, work: Work, found: Results) -> None:
        """Steps one by one, with whatever of Python comes between their parts."""
        end = None if work.max_time is None else time.monotonic() + work.max_time
        watch, done = work.watch, False
        hooked = watch is not None and watch.hooked
        if watch is not None:
            watch.begin(self.device)
        while not done:
            step = self._look(work, found)
            if not len(step.live):
                break  # the host may hear of the end later than the device
            if end is not None and time.monotonic() >= end:
                self._engine.stop_now()
            if hooked or work.keeps:
                done = self._in_parts(work, found, step)
            else:
                done = self._engine.step(1)
            if watch is not None:
                watch.accepted(step)

    def _in_parts(self, work: Work, found: Results, step: Step) -> bool:
        watch = work.watch if work.watch is not None and work.watch.hooked else None
        self._engine.compute()
        if work.keep_logits:
            rows, vocab = len(step.live) * work.beams, self.spec.decoder.vocab
            found.logits.append(self._kept(work, step, self._buffer("logits")[:rows, :vocab]))
        if work.controls is not None:
            self._engine.process(BEFORE)
            if watch is not None:
                watch.before_middle(step)
            self._engine.process(MIDDLE)
            if watch is not None:
                watch.before_warping(step)
            self._engine.process(LAST)
            if work.keep_scores:
                assert step.scores is not None
                found.steps.append(self._kept(work, step, step.scores))
        self._engine.pick()
        return self._engine.accept(None if watch is None else watch.ended(step))

    def _kept(self, work: Work, step: Step, rows: Tensor) -> Tensor:
        """float32 [B * K, V], a copy; 0 for sentences that are done."""
        every = torch.zeros(work.searched, work.beams, rows.shape[1])
        every[step.live.cpu()] = rows.float().cpu().view(-1, work.beams, rows.shape[1])
        return every.flatten(0, 1)

    def _look(self, work: Work, found: Results) -> Step:
        """The step that comes next, as Python may look at it."""
        number, _, live_count = self._buffer("state").tolist()
        rows, all_rows = live_count * work.beams, work.searched * work.beams
        competing = isinstance(work.search, _C.Beam)
        m = max(2, 1 + work.eos) * work.beams

        def candidates() -> Tensor:
            if not competing:
                return self._raw("best").view(-1, 2)[:rows, 1:].long()
            return self._raw("candidates").view(-1, 2)[: live_count * m, 1].view(-1, m).long()

        def finished() -> tuple[Tensor, Tensor]:
            places = work.places or work.beams
            lists = self._raw("finished").view(-1, 5)[: work.searched * places]
            return lists.view(-1, places, 5), self._buffer("finished_count")[: work.searched]

        return Step(
            number=number,
            vocab=self.spec.decoder.vocab,
            live=self._buffer("live")[:live_count].long(),
            scores=None
            if work.controls is None
            else self._buffer("scores")[:rows, : self.spec.decoder.vocab],
            kept=lambda: tuple(found.steps) if work.keep_scores else None,
            candidates=candidates,
            going=lambda: self._buffer("live")[: int(self._buffer("state")[2])].long(),
            tokens=lambda: self._buffer("tokens")[number - 1, :all_rows].long(),
            parents=lambda: self._buffer("parents")[number - 1, :all_rows].long(),
            ended=lambda: self._buffer("length")[:all_rows].long(),
            finished=finished,
        )

    def _bucket(self, needed: Limits) -> Limits:
        """`needed`, rounded up, but not beyond the model's own tables."""
        encoder, decoder = self.spec.encoder, self.spec.decoder
        source = min(next_bucket(needed.source), encoder.positions) if encoder else 0
        return replace(
            needed,
            batch=next_bucket(needed.batch),
            source=source,
            prompt=min(next_bucket(needed.prompt), decoder.positions),
            target=min(next_bucket(needed.target), decoder.positions),
            labels=min(next_bucket(needed.labels), decoder.positions),
            shortlist=min(next_bucket(needed.shortlist), decoder.vocab),
        )
