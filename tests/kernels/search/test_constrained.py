"""constrained_step, driven for whole searches, against the reference; which holds what it says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decoding import _C
from decoding import _kernels as kernels
from decoding.generation.strategies.constraints import constraint_table
from decoding.reference import Hypothesis, Logits, Phrases, Rules, Tokens, constrained_beam_search
from tests.support.beams import FILLED, Search, Table, check


@dataclass(frozen=True)
class Options:
    phrases: tuple[tuple[Tokens, ...], ...]
    beams: int = 3
    prompt: Tokens = ()
    length_penalty: float = 1.0
    early_stopping: bool | str = False


class Constrained(Search):
    """The same around the kernel of constrained beam search."""

    def places(self) -> int:
        return int(self.options.beams)

    def run(self) -> list[list[Hypothesis]]:
        count, beams = len(self.sentences), self.options.beams
        table = constraint_table(self.options.phrases)
        self.phrases = kernels.Phrases(table.depths, table.first_edge, table.tokens)
        begin = kernels.begin_progress(list(self.options.prompt), self.phrases)
        self.progress = torch.full((2, count * beams, len(begin)), -7, dtype=torch.int32)
        self.progress[1] = torch.tensor(begin)
        self.spare = torch.zeros(count, beams, 5, dtype=torch.int32)
        self.spare_count = torch.zeros(count, dtype=torch.int32)
        return super().run()

    def choose(self, logits: Tensor, lse: Tensor, active: Tensor) -> None:
        m = max(2, 1 + len(self.rules.eos)) * self.options.beams
        best = kernels.topk(logits, m, **self.on)
        sums = self.kept["sums"]
        candidates = kernels.merge_beams(
            *best, lse, active, sums, m=m, vocab=self.table.vocab, **self.on
        )
        call = self.call()
        call["state"] = {
            **self.kept,
            "progress": self.progress,
            "spare": self.spare,
            "spare_count": self.spare_count,
        }
        scores = logits - lse[:, None]
        self.launch(
            kernels.constrained_step, *candidates, *best, scores, lse, active, phrases=self.phrases,
            **call,
        )  # fmt: skip

    def expected(self, logits: Logits, rules: Rules) -> list[Hypothesis]:
        options = {**vars(self.options), "phrases": Phrases(self.options.phrases)}
        return constrained_beam_search(logits, rules, **options)


def holds(row: Tokens, phrases: tuple[tuple[Tokens, ...], ...]) -> bool:
    return all(
        any(row[i : i + len(word)] == word for word in words for i in range(len(row)))
        for words in phrases
    )


@st.composite
def some_phrases(draw: st.DrawFn, ids: list[int]) -> tuple[tuple[Tokens, ...], ...]:
    """Words of one to three tokens; alternatives, none of which begins with another."""
    word = st.lists(st.sampled_from(ids), min_size=1, max_size=3).map(tuple)
    phrases = []
    for words in draw(st.lists(st.lists(word, min_size=1, max_size=3), min_size=1, max_size=3)):
        apart: list[Tokens] = []
        for new in words:
            if all(new[: len(w)] != w and w[: len(new)] != new for w in apart):
                apart.append(new)
        phrases.append(tuple(apart))
    return tuple(phrases)


@st.composite
def searches(draw: st.DrawFn) -> Constrained:
    vocab = draw(st.integers(6, 30))
    eos = draw(st.lists(st.integers(0, 2), max_size=3, unique=True).map(tuple))
    ids = [id for id in range(vocab) if id not in eos]
    rules = Rules(
        max_new=draw(st.integers(1, 9)),
        min_new=draw(st.integers(0, 3)),
        eos=eos,
        banned=draw(st.lists(st.integers(0, vocab - 1), max_size=3).map(tuple)),
        forced_first=draw(st.just(()) | st.sampled_from(ids).map(lambda id: (id,))),
        forced_last=draw(st.just(()) | st.just(eos[:1])),
    )
    options = Options(
        phrases=draw(some_phrases(draw(st.sampled_from([ids[:2], ids[:4], ids])))),
        beams=draw(st.integers(2, 5)),
        prompt=draw(st.lists(st.sampled_from(ids[:3]), max_size=4).map(tuple)),
        length_penalty=draw(st.sampled_from([-1.0, 0.0, 1.0, 2.0])),
        early_stopping=draw(st.sampled_from([False, True, "never"])),
    )
    table = Table(vocab, draw(st.sampled_from([0.5, 2.0, 6.0])))
    sentences = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=3))
    lengths = [draw(st.integers(1, rules.max_new)) for _ in sentences]
    return Constrained(
        table, rules, options, sentences, draw(st.sampled_from(_C.isas())),
        threads=draw(st.sampled_from([1, 2, 3])),
        lengths=draw(st.sampled_from([lengths, None])),
        stop=draw(st.just(()) | st.lists(st.sampled_from(ids[:4]), max_size=3).map(tuple)),
        late=tuple(draw(st.sampled_from([0, 0, 1, 3, 8])) for _ in sentences),
    )  # fmt: skip


@settings(max_examples=200)
@given(searches())
def test_whole_searches_equal_the_reference(search: Constrained) -> None:
    check(search)


@pytest.mark.gpu
@settings(max_examples=100)
@given(searches())
def test_whole_searches_on_a_gpu(search: Constrained) -> None:
    check(replace(search, device="cuda"))


@settings(max_examples=100)
@given(searches())
def test_rows_hold_all_words(search: Constrained) -> None:
    """And one at least is found where there is room and nothing but the length in its way."""
    rules, options = search.rules, search.options
    search = replace(search, rules=replace(rules, banned=(), forced_first=(), forced_last=()))
    search = replace(search, lengths=None, stop=())
    tokens = sum(max(map(len, words)) for words in options.phrases)
    for rows in search.run():
        assert all(
            holds(options.prompt + r.tokens, options.phrases) for r in rows if r.score > FILLED
        )
        assert rows[0].score > FILLED or tokens > rules.max_new


@pytest.mark.parametrize(
    "phrases", [(((3,),),), (((3, 4),), ((4, 2), (1, 1))), (((2, 2),), ((2,),))]
)
def test_enough_beams_find_the_best_of_all_rows(phrases: tuple[tuple[Tokens, ...], ...]) -> None:
    vocab, eos = 5, 0
    options = Options(phrases, beams=4 * 4**4, early_stopping="never", length_penalty=0.7)
    search = Constrained(Table(vocab), Rules(max_new=5, eos=(eos,)), options, [7])

    def score(row: Tokens) -> float:
        logits = [search.table.logits(7, row[:t]).log_softmax(-1)[row[t]] for t in range(len(row))]
        return float(sum(logits)) / len(row) ** 0.7

    words = range(1, vocab)
    rows = [row for n in range(6) for row in product(words, repeat=n)]
    rows = [row if len(row) == 5 else (*row, eos) for row in rows]
    whole = [row for row in rows if Phrases(phrases).after(row).complete]
    assert all(holds(row, phrases) for row in whole)
    best = max(whole, key=score)
    ours = search.run()[0][0]
    assert ours.tokens == best and ours.score == pytest.approx(score(best), rel=1e-5)


def test_a_sentence_does_not_depend_on_its_batch(isa: str, threads: int) -> None:
    options = Options((((9, 3),), ((7,), (8, 2))), beams=4)
    rules = Rules(12, eos=(5, 6))
    search = Constrained(Table(30), rules, options, [4, 9, 2, 7, 4], isa, threads)
    rows = search.run()
    assert rows == replace(search, sentences=[4, 7, 2, 9, 4]).run()[::-1]
    for sentence, row in zip(search.sentences, rows, strict=True):
        assert replace(search, sentences=[sentence], threads=1).run() == [row]


def test_broken_logits_are_a_fault_of_their_sentence_alone(isa: str) -> None:
    rules = Rules(6, eos=(5,), min_new=3)
    search = Constrained(Table(30), rules, Options((((9,),),)), [1, 2, 3], isa)
    clean = search.run()
    broken = replace(search, broken=(1, 2))
    rows = broken.run()
    assert broken.kept["fault"].tolist() == [0, 2, 0]
    assert rows[0] == clean[0] and rows[2] == clean[2]
