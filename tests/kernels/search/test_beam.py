"""merge_beams and beam_step, driven for whole searches, against the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decoding import _kernels as kernels
from decoding.reference import FILL_IN, Hypothesis, Rules
from tests.support.active import active_sentences
from tests.support.beams import Options, Search, Table, check
from tests.support.drawn_searches import (
    EARLY_STOPPING,
    LENGTH_PENALTIES,
    check_fault,
    check_independence,
    draw_rules,
    draw_search,
)


@st.composite
def searches(draw: st.DrawFn) -> Search:
    vocab = draw(st.integers(3, 40))
    rules = draw_rules(draw, vocab, banned=vocab)
    options = Options(
        beams=draw(st.integers(1, 5)),
        length_penalty=draw(LENGTH_PENALTIES),
        early_stopping=draw(EARLY_STOPPING),
        gnmt=draw(st.booleans()),
        patience=draw(st.sampled_from([1.0, 1.0, 0.7, 2.0])),
        diversity_rate=draw(st.sampled_from([0.0, 0.0, 0.3, 2.0])),
    )
    sharpness, flat = draw(st.sampled_from([0.5, 2.0, 6.0])), draw(st.booleans())
    table = Table(vocab, sharpness, flat, draw(st.sampled_from([0.0, 0.0, 0.5, 0.9])))
    return draw_search(draw, Search, table, rules, options)


@settings(max_examples=200)
@given(searches())
def test_whole_searches_equal_the_reference(search: Search) -> None:
    check(search)


@pytest.mark.gpu
@settings(max_examples=100)
@given(searches())
def test_whole_searches_on_a_gpu(search: Search) -> None:
    check(replace(search, device="cuda"))


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
    check_independence(
        Search(Table(30), Rules(8, eos=(5, 6)), options, [4, 9, 2, 7, 4], isa, threads)
    )


def test_broken_logits_are_a_fault_of_their_sentence_alone(isa: str, threads: int) -> None:
    rules = Rules(6, eos=(5,), min_new=3)
    check_fault(Search(Table(30), rules, Options(), [1, 2, 3], isa, threads))


def test_stop_strings_span_tokens(isa: str) -> None:
    """The automaton follows the beams: rows end where the string is whole, not before."""
    stop = (1, 1, 3)
    search = Search(Table(4, 0.7), Rules(max_new=12), Options(4), [1, 2, 3, 4], isa, stop=stop)
    check(search)
    rows = [row.tokens for place in range(4) for row in search.results(place)]
    assert {len(row) for row in rows if row[-3:] == stop} - {12}
    assert all(row[t : t + 3] != stop for row in rows for t in range(len(row) - 3))


def test_the_host_ends_rows(isa: str) -> None:
    """As an EOS would, but for the candidates that an EOS adds."""
    search = Search(Table(9), Rules(max_new=8), Options(3), [1, 2], isa, stop=(4,))
    expected = search.run()

    class ByHand(Search):
        def choose(self, logits: Tensor, lse: Tensor, active: Tensor) -> None:
            best = kernels.topk(logits, 6, **self.on)
            values, ids = kernels.merge_beams(
                *best, lse, active, self.kept["sums"], m=6, vocab=9, **self.on
            )
            ended = (ids % 9 == 4).to(torch.uint8)
            kernels.beam_step(values, ids, lse, active, ended=ended, **self.call(), **self.on)

    assert ByHand(Table(9), search.rules, search.options, [1, 2], isa).run() == expected
    assert any(row.tokens[-1] == 4 for rows in expected for row in rows)


def test_draws_rank_by_their_keys(isa: str) -> None:
    active = active_sentences([0], 1, 0)
    values = torch.tensor([[-1.0, -2.0, -3.0], [-1.5, -2.5, -9.0]])
    keys = torch.tensor([[0.0, 5.0, 1.0], [4.0, 2.0, -9.0]])
    ids = torch.tensor([[7, 1, 3], [0, 2, -1]], dtype=torch.int32)
    sums = torch.tensor([0.0, -1.0])
    merged, places = kernels.merge_beams(
        values, ids, None, active, sums, m=4, vocab=10, keys=keys, isa=isa, threads=1
    )
    assert places.tolist() == [[1, 10, 12, 3]] and merged.tolist() == [[-2.0, -2.5, -3.5, -3.0]]
