"""The engine of one model, its one block of memory, and the queue of its callers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from decoding import _C
from decoding.batching import Packed
from decoding.limits import Limits, next_bucket
from decoding.memory import MemoryPlan, available_memory, available_text, readable
from decoding.models.memory import CPU, empty
from decoding.models.spec import ModelSpec

Search = _C.Greedy | _C.Sampling | _C.Beam
Scores = Callable[[Tensor, Tensor], Tensor]  # of a step's logits and their log-sum-exp

STEPS = 16  # between two looks at the outside world: Ctrl-C gets through within so many tokens
SPARE = 4  # times what a call needs: so much is planned to serve other shapes of calls too
SENTENCE = 64  # tokens; what memory_plan() speaks of before anything ran


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
    scores: Scores | None = None  # keeps those of each step, if given

    def limits(self) -> Limits:
        """What the memory must hold for it."""
        return Limits(
            batch=len(self.prompt),
            beams=self.beams,
            source=0 if self.source is None else self.source.longest,
            prompt=self.prompt.longest,
            target=self.max_new,
            eos=self.eos,
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
    steps: list[Tensor]  # float32 [B * K, V], if kept: Work.scores of each step, 0 where done

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
        )


def engine_limits(limits: Limits) -> _C.Limits:
    return _C.Limits(
        batch=limits.batch,
        beams=limits.beams,
        source=limits.source,
        prompt=limits.prompt,
        target=limits.target,
        candidates=limits.candidates,
    )


class Session:
    """Runs one sub-batch at a time; callers of other threads wait for their turn.

    engine: made for `spec` on `device`. limits: plans the memory once, here, and refuses what is
    beyond; None: the plan follows each request, in buckets, and the pool grows to the largest so
    far. It never shrinks.
    """

    def __init__(
        self,
        spec: ModelSpec,
        engine: _C.Session,
        *,
        device: torch.device = CPU,
        limits: Limits | None,
    ) -> None:
        self.spec = spec
        self.device = device
        self.limits = limits
        self._engine = engine
        self._turn = threading.Lock()
        self._bound: Limits | None = None
        self._reserved: Limits | None = None  # what the last call needed
        self._pool = empty(0, device)
        if limits is not None:
            self._bind(limits)

    @property
    def threads(self) -> int:
        return self._engine.threads

    @property
    def isa(self) -> str:
        return self._engine.isa

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
                stream=stream,
            )
            # A GPU is busy with the source by now, so this takes none of the call's time.
            found = Results.empty(len(work.prompt), work.beams, work.max_new, work.fill)
            if work.scores is None:
                while not self._engine.step(STEPS):
                    pass  # Ctrl-C gets through
            else:
                found.steps.extend(self._scored_steps(work.scores, len(work.prompt), work.beams))
            self._engine.take(found.tokens, found.lengths, found.scores, found.sums, found.slots)
            return found

    def _stream(self) -> int:
        """The caller's current stream on the model's GPU."""
        if self.device.type == "cpu":
            return 0
        try:
            return torch.cuda.current_stream(self.device).cuda_stream
        except RuntimeError as error:  # torch refuses in a forked child
            raise _C.Error(str(error)) from error

    def _scored_steps(self, scores: Scores, batch: int, beams: int) -> list[Tensor]:
        """Steps one by one; of each, float32 [batch * beams, V]: what it chose from, 0 for those
        done."""
        steps, done, vocab = [], False, self.spec.decoder.vocab
        while not done:
            live = self._buffer("live")[: int(self._buffer("state")[2])].cpu()
            rows = (live[:, None] * beams + torch.arange(beams)).flatten()  # of the step to come
            if not len(rows):
                break  # the host may hear of the end later than the device
            done = self._engine.step(1)
            logits, lse = self._buffer("logits")[: len(rows), :vocab], self._buffer("lse")
            every = torch.zeros(batch * beams, vocab)
            every[rows] = scores(logits.float(), lse[: len(rows)]).cpu()
            steps.append(every)
        return steps

    def _buffer(self, name: str) -> Tensor:
        """A buffer of the bound plan, as a view of the pool."""
        buffer = self._plan_in_use[name]
        view = self._pool[buffer.offset : buffer.offset + buffer.bytes]
        return view.view(getattr(torch, buffer.type)).view(buffer.shape)

    def memory_plan(self, limits: Limits | None = None) -> MemoryPlan:
        """The plan for `limits`; None: the present one, before the first call one sentence's."""
        with self._turn:
            if limits is None:
                limits = self._bound or self._bucket(
                    Limits(batch=1, beams=1, source=SENTENCE, target=SENTENCE)
                )
            return self._plan(limits)

    def _plan(self, limits: Limits) -> MemoryPlan:
        buffers, size = self._engine.plan(engine_limits(limits))
        return MemoryPlan(limits, tuple(buffers), size)

    def _reserve(self, needed: Limits) -> None:
        """Makes sure that the engine is bound to memory for `needed`.

        What is bound stays as long as it serves: with it a GPU's captured steps would go.
        """
        if needed == self._reserved:
            return
        if self.limits is not None:
            self._check(needed, self.limits)
            wanted = self.limits
        elif self._bound is not None and self._bound.cover(needed):
            wanted = self._bound
        else:
            wanted = self._grown(needed)
        if wanted != self._bound:
            self._bind(wanted)
        self._reserved = needed

    def _grown(self, needed: Limits) -> Limits:
        """A plan for `needed`, and for what is bound now where both together are not too much."""
        alone = self._bucket(needed)
        if self._bound is not None:
            both = self._bound.joined(alone)
            if self._fits(both) and self._plan(both).bytes <= SPARE * self._plan(alone).bytes:
                return both
        return alone if self._fits(alone) else needed

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
            eos=max(needed.eos, 1),
        )

    def _fits(self, limits: Limits) -> bool:
        available = available_memory(self.device)
        size = self._plan(limits).bytes
        return available is None or size <= max(available, len(self._pool))

    def _check(self, needed: Limits, limits: Limits) -> None:
        for name in ("beams", "source", "prompt", "target", "eos"):
            asked, most = getattr(needed, name), getattr(limits, name)
            if asked > most:
                size = self._plan(replace(limits, **{name: asked})).bytes
                raise ValueError(
                    f"this call needs {name}={asked}, the model was loaded with limits of "
                    f"{name}={most}: ask for less, or load it with Limits({name}={asked}, ...), "
                    f"which takes {size} bytes ({readable(size)})"
                )

    def _bind(self, limits: Limits) -> None:
        plan = self._plan(limits)
        if plan.bytes > len(self._pool):
            self._pool = self._allocate(plan)
        self._bound = self._reserved = None  # until the engine has taken the new plan
        self._plan_in_use = {buffer.name: buffer for buffer in plan.buffers}
        self._engine.bind(engine_limits(limits), self._pool)
        self._bound = limits

    def _allocate(self, plan: MemoryPlan) -> Tensor:
        available = available_memory(self.device)
        if available is None or plan.bytes <= available:
            try:
                return empty(plan.bytes, self.device)
            except (OSError, torch.OutOfMemoryError):
                pass  # there is none either: the same message
        raise _C.Error(
            f"the plan needs {plan.bytes} bytes ({readable(plan.bytes)}) on {self.device} for "
            f"{plan.limits}, {available_text(available)}; lower {self._costliest(plan)}, here or "
            "as limits= of load()"
        )

    def _costliest(self, plan: MemoryPlan) -> str:
        """The limit that frees most when it is halved."""

        def halved(name: str) -> int:
            size = getattr(plan.limits, name)
            return self._plan(replace(plan.limits, **{name: max(min(size, 1), size // 2)})).bytes

        return min(("batch", "beams", "source", "prompt", "target"), key=halved)
