"""diverse_step, driven for whole searches, against the reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decoding import _kernels as kernels
from decoding import reference
from decoding.reference import FILL_IN, Hypothesis, Logits, Rules
from tests.support.beams import FILLED, Search, Table, check
from tests.support.drawn_searches import (
    EARLY_STOPPING,
    LENGTH_PENALTIES,
    check_fault,
    check_independence,
    draw_rules,
    draw_search,
)


@dataclass(frozen=True)
class Options:
    beams: int = 4
    groups: int = 2
    penalty: float = 1.0
    pad: int = 0
    length_penalty: float = 1.0
    early_stopping: bool | str = False


class Groups(Search):
    """The same around the kernel of group diverse beam search."""

    def first_sums(self) -> Tensor:
        size = self.options.beams // self.options.groups
        return torch.tensor(([0.0] + [FILL_IN] * (size - 1)) * self.options.groups)

    def places(self) -> int:
        return int(self.options.beams)

    def run(self) -> list[list[Hypothesis]]:
        self.counts = torch.zeros(len(self.sentences), self.options.beams, dtype=torch.int32)
        return super().run()

    def choose(self, logits: Tensor, lse: Tensor, active: Tensor) -> None:
        size = self.options.beams // self.options.groups
        m = max(2, 1 + len(self.rules.eos)) * size
        best = kernels.topk(logits, m + self.options.beams - size, **self.on)
        self.launch(kernels.diverse_step, *best, lse, active, **self.call())

    def call(self) -> dict[str, Any]:
        call = super().call()
        call["state"] = {**call["state"], "group_counts": self.counts}
        return {
            **call,
            "group_penalty": self.options.penalty,
            "groups": self.options.groups,
            "pad": self.options.pad,
            "forced_first": bool(self.rules.forced_first),
            "forced_last": bool(self.rules.forced_last),
        }

    def expected(self, logits: Logits, rules: Rules) -> list[Hypothesis]:
        return reference.diverse_beam_search(logits, rules, **vars(self.options))


@st.composite
def searches(draw: st.DrawFn) -> Groups:
    vocab = draw(st.integers(3, 40))
    rules = draw_rules(draw, vocab, banned=vocab // 2)
    groups = draw(st.integers(1, 4))
    options = Options(
        beams=groups * draw(st.integers(1, 3)),
        groups=groups,
        penalty=draw(st.sampled_from([0.2, 1.0, 8.0])),
        pad=draw(st.integers(0, vocab - 1)),
        length_penalty=draw(LENGTH_PENALTIES),
        early_stopping=draw(EARLY_STOPPING),
    )
    table = Table(vocab, draw(st.sampled_from([0.5, 2.0, 6.0])))
    return draw_search(draw, Groups, table, rules, options)


@settings(max_examples=200)
@given(searches())
def test_whole_searches_equal_the_reference(search: Groups) -> None:
    check(search)


@pytest.mark.gpu
@settings(max_examples=100)
@given(searches())
def test_whole_searches_on_a_gpu(search: Groups) -> None:
    check(replace(search, device="cuda"))


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.0])
def test_long_searches(
    isa: str, threads: int, early_stopping: bool | str, length_penalty: float
) -> None:
    """Groups stop at different steps, some of them at the limit."""
    options = Options(6, 3, 0.8, 5, length_penalty, early_stopping)
    check(Groups(Table(12, 1.5), Rules(max_new=20, eos=(3, 7)), options, [1, 2, 3], isa, threads))


@pytest.mark.parametrize("stop", [(), (0,)])
def test_a_group_of_which_no_row_goes_on_takes_pad(isa: str, stop: tuple[int, ...]) -> None:
    """Which costs the next group: here it is what that would have chosen."""
    rules, options = Rules(max_new=1 + len(stop), eos=(1, 2) if stop else (0, 1, 2)), Options(2, 2)
    for sentence in range(10):
        for pad in range(3):
            own = replace(options, pad=pad)
            check(Groups(Table(3, 0.5), rules, own, [sentence], isa, stop=stop))


def test_groups_differ_as_far_as_the_penalty_goes(isa: str) -> None:
    """A penalty that nothing outweighs: no two groups begin with the same token."""
    search = Groups(Table(9), Rules(max_new=5), Options(6, 6, 1e4), [3], isa)
    assert len({row.tokens[0] for row in search.run()[0]}) == 6
    one = replace(search, options=Options(6, 6, 1e-6)).run()[0]
    assert len({row.tokens for row in one}) == 1


def test_a_sentence_does_not_depend_on_its_batch(isa: str, threads: int) -> None:
    rules = Rules(8, eos=(5, 6))
    check_independence(Groups(Table(30), rules, Options(4), [4, 9, 2, 7, 4], isa, threads))


def test_broken_logits_are_a_fault_of_their_sentence_alone(isa: str) -> None:
    rules = Rules(6, eos=(5,), min_new=3)
    check_fault(Groups(Table(30), rules, Options(), [1, 2, 3], isa))


def test_everything_banned(isa: str) -> None:
    rules = Rules(max_new=4, banned=(0, 1, 2, 3, 4))
    (rows,) = Groups(Table(5), rules, Options(4), [0], isa).run()
    assert all(row.score <= FILLED for row in rows)
