"""Searches in which rows compete, run kernel by kernel on models without weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from decoding import _C, reference
from decoding import _kernels as kernels
from decoding.reference import FILL_IN, Hypothesis, Logits, Rules, Tokens
from tests.support.active import active_sentences

FILLED = FILL_IN / 10  # what has a score below stands in for a row


@dataclass(frozen=True)
class Table:
    """A model without weights: logits that are a hash of the row."""

    vocab: int
    sharpness: float = 3.0
    flat: bool = False  # the same logit everywhere: nothing but ties
    holes: float = 0.0  # share of tokens with logit -inf; token 0 is never one

    def logits(self, sentence: int, tokens: Tokens) -> Tensor:
        generator = torch.Generator().manual_seed(hash((sentence, *tokens)) & 0xFFFFFFFF)
        logits = self.sharpness * torch.randn(self.vocab, generator=generator)
        if self.flat:
            logits.zero_()
        hole = torch.rand(self.vocab, generator=generator) < self.holes
        hole[0] = False
        return logits.masked_fill(hole, -math.inf)


@dataclass(frozen=True)
class Options:
    beams: int = 3
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    gnmt: bool = False
    patience: float = 1.0
    diversity_rate: float = 0.0


@dataclass
class Search:
    """What the engine does around the kernels of plain beam search, for the sentences given.

    Instead of keys and values the cache holds the token that was read, so that a row can be spelt
    out from its history. Sentence i joins the others late[i] steps after the first, as sentences do
    that a server takes in.
    """

    table: Table
    rules: Rules
    options: Any
    sentences: list[int]
    isa: str = field(default_factory=lambda: _C.isas()[-1])
    threads: int = 1
    device: str = "cpu"  # where candidates become beams
    broken: tuple[int, int] | None = None  # (place of a sentence, step): a NaN there
    lengths: list[int] | None = None  # of each sentence, instead of rules.max_new
    stop: Tokens = ()  # what ends a row beside an EOS
    late: tuple[int, ...] = ()  # of each sentence; none: all begin together
    kept: dict[str, Tensor] = field(init=False)
    steps: dict[int, int] = field(init=False)  # that each sentence took

    @property
    def on(self) -> dict[str, Any]:
        return {"isa": self.isa, "threads": self.threads}

    def rules_of(self, place: int) -> Rules:
        def stops(tokens: Tokens) -> bool:
            return bool(self.stop) and tokens[-len(self.stop) :] == self.stop

        max_new = self.lengths[place] if self.lengths else self.rules.max_new
        return replace(self.rules, max_new=max_new, stops=stops)

    def stop_table(self) -> Tensor:
        """State s: the row ends with the first s tokens of `stop`, and with no more of them."""
        rows = []
        for state in range(max(1, len(self.stop))):
            seen = [(*self.stop[:state], token) for token in range(self.table.vocab)]
            ends = [
                max(n for n in range(len(row) + 1) if row[len(row) - n :] == self.stop[:n])
                for row in seen
            ]
            rows.append([-1 if n == len(self.stop) > 0 else n for n in ends])
        return torch.tensor(rows, dtype=torch.int32)

    def first_sums(self) -> Tensor:
        return torch.tensor([0.0] + [FILL_IN] * (self.options.beams - 1))

    def places(self) -> int:
        return round(self.options.beams * self.options.patience)

    def run(self) -> list[list[Hypothesis]]:
        count, beams, steps = len(self.sentences), self.options.beams, self.rules.max_new
        slots = count * beams
        self.cache = torch.full((slots, steps), -1, dtype=torch.int32)
        self.kept = {
            "sums": self.first_sums().repeat(count),
            "tokens": torch.full((steps, slots), -1, dtype=torch.int32),
            "parents": torch.full((steps, slots), -1, dtype=torch.int32),
            "cache_indirection": torch.full((2, slots, steps), -1, dtype=torch.int32),
            "stop_states": torch.full((steps, slots), -9, dtype=torch.int32),
            "finished": torch.full((count, self.places(), 5), -1, dtype=torch.int32),
            "finished_count": torch.zeros(count, dtype=torch.int32),
            "done": torch.zeros(count, dtype=torch.int32),
            "fault": torch.zeros(count, dtype=torch.int32),
        }
        self.steps = {}
        late = self.late or (0,) * count
        zeros = torch.zeros(count).int()
        active, ids = active_sentences([], [], []), torch.tensor([], dtype=torch.int32)
        for number in range(1, max(late) + steps + 1):
            joins = [place for place in range(count) if late[place] == number - 1]
            active = torch.cat([active, active_sentences(joins, 1, 0)])
            ids = torch.cat([ids, torch.full((len(joins) * beams,), -5, dtype=torch.int32)])
            if len(active) == 0:
                continue
            self.step(active.clone(), ids)
            state = torch.tensor([number, len(active)]).int()
            ids, _, _ = kernels.gather_active(
                state, self.kept["done"], zeros, self.kept["tokens"], zeros, active, **self.on
            )
            assert int(state[0]) == number + 1
            active = active[: int(state[1])].clone()
            ids = ids[: len(active) * beams].clone()
        assert len(active) == 0 and bool(self.kept["done"].all())
        return [self.results(place) for place in range(count)]

    def step(self, active: Tensor, ids: Tensor) -> None:
        """active: [n, 3], as active_sentences() gives them."""
        beams = self.options.beams
        logits, lse = [], []
        for (place, step, _), read in zip(active.tolist(), ids.split(beams), strict=True):
            self.steps[place] = step
            rows = zip(range(place * beams, (place + 1) * beams), read.tolist(), strict=True)
            mine = torch.stack([self.read(row, token, step) for row, token in rows])
            lse.append(self.obey(place, mine, step))
            logits.append(mine)
        self.choose(torch.cat(logits), torch.cat(lse), active)

    def read(self, row: int, token: int, step: int) -> Tensor:
        """Stores what the row reads, and gives the logits of the row that its history spells."""
        self.cache[row, step - 1] = token
        history = self.kept["cache_indirection"][step % 2, row, : step - 1].tolist()
        read = [int(self.cache[slot, t]) for t, slot in enumerate(history)] + [token]
        place = row // self.options.beams
        logits = self.table.logits(self.sentences[place], tuple(read[1:]))
        return logits * math.nan if self.broken == (place, step) else logits

    def obey(self, place: int, logits: Tensor, step: int) -> Tensor:
        """Leaves what a sentence's rules allow of its logits; returns their lse."""
        rules = self.rules_of(place)
        forced = rules.forced_last if step == rules.max_new else ()
        forced = forced or (rules.forced_first if step == 1 else ())
        if forced:
            return kernels.force_tokens(logits, list(forced), **self.on)[2]
        banned = [*rules.banned, *(rules.eos if step <= rules.min_new else ())]
        return kernels.ban_tokens(logits, banned, **self.on)[2]

    def choose(self, logits: Tensor, lse: Tensor, active: Tensor) -> None:
        m = max(2, 1 + len(self.rules.eos)) * self.options.beams
        candidates = self.launch(
            kernels.merge_beams, *kernels.topk(logits, m, **self.on), lse, active,
            self.kept["sums"], m=m, vocab=self.table.vocab,
            sibling_penalty=self.options.diversity_rate,
        )  # fmt: skip
        self.launch(kernels.beam_step, *candidates, lse, active, **self.call())

    def launch(self, kernel: Callable[..., Any], *tensors: Tensor | None, **options: Any) -> Any:
        """Runs a kernel on the device; results, and what the search keeps, return to the CPU."""

        def place(x: Any) -> Any:
            return x.to(self.device) if isinstance(x, Tensor) else x

        placed = {name: place(option) for name, option in options.items()}
        state = options.get("state", {})
        if state:
            placed["state"] = {name: place(kept) for name, kept in state.items()}
        results = kernel(*map(place, tensors), **placed, **self.on)
        for name, kept in state.items():
            kept.copy_(placed["state"][name])
        return results and tuple(result.cpu() for result in results)

    def call(self) -> dict[str, Any]:
        """What all steps of beam searches are told."""
        names = {False: "no", True: "yes", "never": "never"}
        return {
            "eos": list(self.rules.eos),
            "state": self.kept,
            "vocab": self.table.vocab,
            "max_new": [self.rules_of(p).max_new for p in range(len(self.sentences))],
            "length_penalty": self.options.length_penalty,
            "early_stopping": getattr(kernels.EarlyStopping, names[self.options.early_stopping]),
            "stop_table": self.stop_table(),
            "stop_first": torch.zeros(len(self.sentences), dtype=torch.int32),
            "gnmt": getattr(self.options, "gnmt", False),
        }

    def expected(self, logits: Logits, rules: Rules) -> list[Hypothesis]:
        return reference.beam_search(logits, rules, **vars(self.options))

    def results(self, place: int) -> list[Hypothesis]:
        scores = self.kept["finished"][place].view(torch.float32)[:, :2].tolist()
        rest = self.kept["finished"][place][:, 2:].tolist()
        return [
            self.walk_back(score, total, *row)
            for (score, total), row in zip(scores, rest, strict=True)
        ]

    def walk_back(
        self, score: float, total: float, length: int, slot: int, token: int
    ) -> Hypothesis:
        if length == 0:
            return Hypothesis(total, score=score)
        tokens, beams = [token], [slot % self.options.beams]
        for t in reversed(range(length - 1)):
            tokens.append(int(self.kept["tokens"][t, slot]))
            slot = int(self.kept["parents"][t, slot])
            beams.append(slot % self.options.beams)
        return Hypothesis(total, tuple(tokens[::-1]), tuple(beams[::-1]), score)


def check(search: Search) -> None:
    """Every sentence's rows are the reference's, and it took as many steps."""
    for place, ours in enumerate(search.run()):
        lengths = [0]

        def logits(tokens: Tokens, place: int = place, lengths: list[int] = lengths) -> Tensor:
            lengths.append(len(tokens))
            return search.table.logits(search.sentences[place], tokens)

        expected = search.expected(logits, search.rules_of(place))
        assert search.steps[place] == max(lengths) + 1
        for row, other in zip(ours, expected, strict=True):
            assert (row.score <= FILLED) == (other.score <= FILLED)
            if row.score > FILLED:
                assert (row.tokens, row.beams) == (other.tokens, other.beams)
                assert row.sum == pytest.approx(other.sum, rel=1e-5, abs=1e-5)
                assert row.score == pytest.approx(other.score, rel=1e-5, abs=1e-5)
