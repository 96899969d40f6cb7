"""beam_step, driven for whole searches, against the reference."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decoding import _C, reference
from decoding._C import kernels
from decoding.reference import FILL_IN, Hypothesis, Rules, Tokens

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


@dataclass
class Search:
    """What the engine does around the kernels, for the sentences given.

    Instead of keys and values the cache holds the token that was read, so that a row can be spelt
    out from its history.
    """

    table: Table
    rules: Rules
    options: Options
    sentences: list[int]
    isa: str = "portable"
    threads: int = 1
    broken: tuple[int, int] | None = None  # (place of a sentence, step): a NaN there
    kept: dict[str, Tensor] = field(init=False)
    steps: dict[int, int] = field(init=False)  # that each sentence took

    def run(self) -> list[list[Hypothesis]]:
        count, beams, steps = len(self.sentences), self.options.beams, self.rules.max_new
        slots = count * beams
        self.cache = torch.full((slots, steps), -1, dtype=torch.int32)
        sums = torch.tensor([0.0] + [FILL_IN] * (beams - 1)).repeat(count)
        self.kept = {
            "sums": sums,
            "tokens": torch.full((steps, slots), -1, dtype=torch.int32),
            "parents": torch.full((steps, slots), -1, dtype=torch.int32),
            "slots": torch.full((slots, steps), -1, dtype=torch.int32),
            "next_slots": torch.full((slots, steps), -1, dtype=torch.int32),
            "finished": torch.full((count, beams, 5), -1, dtype=torch.int32),
            "finished_count": torch.zeros(count, dtype=torch.int32),
            "done": torch.zeros(count, dtype=torch.int32),
            "fault": torch.zeros(count, dtype=torch.int32),
        }
        self.steps = {}
        live, now = torch.arange(count, dtype=torch.int32), torch.tensor([1, 0, count]).int()
        ids, first = torch.full((slots,), -5, dtype=torch.int32), torch.zeros(count).int()
        while (alive := int(now[2])) > 0:
            step = int(now[0])
            self.step(step, live[:alive].clone(), ids[: alive * beams])
            ids, _, _ = kernels.gather_live(
                now, self.kept["done"], first, self.kept["tokens"], first, live,
                isa=self.isa, threads=self.threads,
            )  # fmt: skip
        assert bool(self.kept["done"].all())
        return [self.results(place) for place in range(count)]

    def step(self, step: int, live: Tensor, ids: Tensor) -> None:
        beams, rules, options = self.options.beams, self.rules, self.options
        self.steps.update(dict.fromkeys(live.tolist(), step))
        rows = (live[:, None] * beams + torch.arange(beams)).flatten().tolist()
        logits = torch.stack(
            [self.read(row, int(i), step) for row, i in zip(rows, ids, strict=True)]
        )
        on = {"isa": self.isa, "threads": self.threads}
        forced = rules.forced_last if step == rules.max_new else ()
        forced = forced or (rules.forced_first if step == 1 else ())
        if forced:
            lse = kernels.force_tokens(logits, list(forced), **on)[2]
        else:
            banned = [*rules.banned, *(rules.eos if step <= rules.min_new else ())]
            lse = kernels.ban_tokens(logits, banned, **on)[2]
        values, best = kernels.topk(logits, max(2, 1 + len(rules.eos)) * beams, **on)
        names = {False: "no", True: "yes", "never": "never"}
        kernels.beam_step(
            values, best, lse, live, eos=list(rules.eos), state=self.kept,
            vocab=self.table.vocab, step=step, position=step - 1, max_new=rules.max_new,
            length_penalty=options.length_penalty,
            early_stopping=getattr(kernels.EarlyStopping, names[options.early_stopping]), **on,
        )  # fmt: skip
        self.kept["slots"], self.kept["next_slots"] = self.kept["next_slots"], self.kept["slots"]

    def read(self, row: int, token: int, step: int) -> Tensor:
        """Stores what the row reads, and gives the logits of the row that its history spells."""
        self.cache[row, step - 1] = token
        history = self.kept["slots"][row, : step - 1].tolist()
        read = [int(self.cache[slot, t]) for t, slot in enumerate(history)] + [token]
        place = row // self.options.beams
        logits = self.table.logits(self.sentences[place], tuple(read[1:]))
        return logits * math.nan if self.broken == (place, step) else logits

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
    for place, ours in enumerate(search.run()):
        lengths = [0]

        def logits(tokens: Tokens, place: int = place, lengths: list[int] = lengths) -> Tensor:
            lengths.append(len(tokens))
            return search.table.logits(search.sentences[place], tokens)

        expected = reference.beam_search(
            logits,
            search.rules,
            beams=search.options.beams,
            length_penalty=search.options.length_penalty,
            early_stopping=search.options.early_stopping,
        )
        assert search.steps[place] == max(lengths) + 1
        for row, other in zip(ours, expected, strict=True):
            assert (row.score <= FILLED) == (other.score <= FILLED)
            if row.score > FILLED:
                assert (row.tokens, row.beams) == (other.tokens, other.beams)
                assert row.sum == pytest.approx(other.sum, rel=1e-5, abs=1e-5)
                assert row.score == pytest.approx(other.score, rel=1e-5, abs=1e-5)


@st.composite
def searches(draw: st.DrawFn) -> Search:
    vocab = draw(st.integers(3, 40))
    ids = st.integers(0, vocab - 1)
    some = st.lists(ids, max_size=2, unique=True).map(tuple)
    rules = Rules(
        max_new=draw(st.integers(1, 7)),
        min_new=draw(st.integers(0, 3)),
        eos=draw(st.lists(ids, max_size=3, unique=True).map(tuple)),
        banned=draw(st.lists(ids, max_size=vocab, unique=True).map(tuple) | st.just(())),
        forced_first=draw(some),
        forced_last=draw(some),
    )
    options = Options(
        beams=draw(st.integers(1, 5)),
        length_penalty=draw(st.sampled_from([-1.0, -0.2, 0.0, 0.6, 1.0, 2.0])),
        early_stopping=draw(st.sampled_from([False, True, "never"])),
    )
    sharpness, flat = draw(st.sampled_from([0.5, 2.0, 6.0])), draw(st.booleans())
    table = Table(vocab, sharpness, flat, draw(st.sampled_from([0.0, 0.0, 0.5, 0.9])))
    sentences = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=3))
    threads = draw(st.sampled_from([1, 2, 3]))
    return Search(table, rules, options, sentences, draw(st.sampled_from(_C.isas())), threads)


@settings(max_examples=400)
@given(searches())
def test_whole_searches_equal_the_reference(search: Search) -> None:
    check(search)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.0])
def test_long_searches(
    isa: str, threads: int, early_stopping: bool | str, length_penalty: float
) -> None:
    """Some of these stop by the bound, some at the limit."""
    options = Options(4, length_penalty, early_stopping)
    rules = Rules(max_new=20, eos=(3, 7))
    check(Search(Table(12, 1.5), rules, options, [1, 2, 3], isa, threads))


def test_more_beams_than_candidates(isa: str) -> None:
    """One token is left: after the first step every beam but one is a fill-in."""
    rules = Rules(max_new=20, banned=(0, 1, 2), eos=(4,), min_new=20)
    search = Search(Table(5), rules, Options(beams=4), [0], isa)
    check(search)
    assert search.results(0)[0].tokens == (3,) * 20


def test_fewer_rows_go_on_than_there_are_beams(isa: str) -> None:
    """Most rows have one continuation or none, so that fill-ins take their place."""
    table, rules = Table(12, holes=0.88), Rules(max_new=6, banned=(0,))
    check(Search(table, rules, Options(beams=3), list(range(60)), isa))


def test_everything_banned(isa: str) -> None:
    rules = Rules(max_new=4, banned=(0, 1, 2, 3, 4))
    assert Search(Table(5), rules, Options(beams=2), [0], isa).run() == [[Hypothesis(FILL_IN)] * 2]


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_a_sentence_does_not_depend_on_its_batch(
    isa: str, threads: int, early_stopping: bool | str
) -> None:
    options = Options(3, 0.7, early_stopping)
    together = Search(Table(30), Rules(8, eos=(5, 6)), options, [4, 9, 2, 7, 4], isa, threads)
    rows = together.run()
    assert rows == replace(together, sentences=[4, 7, 2, 9, 4]).run()[::-1]
    for sentence, row in zip(together.sentences, rows, strict=True):
        assert replace(together, sentences=[sentence], threads=1).run() == [row]


def test_broken_logits_are_a_fault_of_their_sentence_alone(isa: str, threads: int) -> None:
    search = Search(Table(30), Rules(6, eos=(5,), min_new=3), Options(), [1, 2, 3], isa, threads)
    clean = search.run()
    broken = replace(search, broken=(1, 2))
    rows = broken.run()
    assert broken.kept["fault"].tolist() == [0, 2, 0]
    assert rows[0] == clean[0] and rows[2] == clean[2]
