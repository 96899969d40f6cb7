"""join_sentences, fill_rows and place_config: a request gets its place beside others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decoding import _C
from decoding import _kernels as kernels

WHERE = [*_C.isas(), pytest.param("cuda", marks=pytest.mark.gpu)]
SENTENCES, HISTORY = 5, 9
OF_SENTENCES = ("prompt_lengths", "first_tokens", "stop_first", "stop_now", "finished_count")
JOINING = [[4, 2, 6, 40, 7], [0, 0, 3, 41, 0]]  # as JoiningSentence


class Searches:
    """A class of `beams` rows a sentence in which sentences 3 and 1 are active."""

    def __init__(self, beams: int, isa: str) -> None:
        self.beams, self.isa = beams, isa
        self.device = "cuda" if isa == "cuda" else "cpu"
        rows = SENTENCES * beams
        names = (*OF_SENTENCES, "done", "fault")
        self.state = {name: self.filled(SENTENCES) for name in names} | {
            "state": self.ints([12, 2]),
            "active": self.filled(SENTENCES, 3),
            "sums": self.filled(rows).float(),
            "length": self.filled(rows),
            "group_counts": self.filled(rows),
            "cache_indirection": self.filled(2, rows, HISTORY),
        }
        self.state["active"][:2] = self.ints([[3, 5, 9], [1, 1, 2]])

    def ints(self, values: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def filled(self, *shape: int) -> Tensor:
        return torch.full(shape, -7, dtype=torch.int32, device=self.device)

    def join(self, groups: int = 1) -> None:
        joining = self.ints(JOINING)
        kernels.join_sentences(joining, self.state, groups=groups, isa=self.isa, threads=2)


@pytest.mark.parametrize("isa", WHERE)
@pytest.mark.parametrize(("beams", "groups"), [(1, 1), (4, 1), (4, 2)])
def test_joining(isa: str, beams: int, groups: int) -> None:
    """Behind those that are active, in whose memory nothing changes."""
    searches = Searches(beams, isa)
    searches.join(groups)
    state = {name: tensor.cpu() for name, tensor in searches.state.items()}
    assert state["state"].tolist() == [12, 4]
    assert state["active"][:4].tolist() == [[3, 5, 9], [1, 1, 2], [4, 1, 2], [0, 1, 0]]
    assert state["prompt_lengths"].tolist() == [3, -7, -7, -7, 6]
    assert state["first_tokens"].tolist() == [41, -7, -7, -7, 40]
    assert state["stop_first"].tolist() == [0, -7, -7, -7, 7]
    for name in ("stop_now", "finished_count", "done", "fault"):
        assert state[name].tolist() == [0, -7, -7, -7, 0]
    for name in ("length", "group_counts"):
        assert state[name].view(SENTENCES, beams)[:, 0].tolist() == [0, -7, -7, -7, 0]
    sums = [0.0 if beam % (beams // groups) == 0 else -1e9 for beam in range(beams)]
    assert state["sums"].view(SENTENCES, beams).tolist() == [sums, *[[-7.0] * beams] * 3, sums]


@pytest.mark.parametrize("isa", WHERE)
@pytest.mark.parametrize("beams", [1, 4])
def test_histories_of_those_that_join(isa: str, beams: int) -> None:
    """A row's own slot, but its sentence's first where all read the same prefix."""
    searches = Searches(beams, isa)
    searches.join()
    row = torch.arange(SENTENCES * beams, dtype=torch.int32)[:, None].repeat(1, HISTORY)
    row[4 * beams :, : JOINING[0][1]] = 4 * beams
    row[beams : 4 * beams] = -7
    assert (searches.state["cache_indirection"].cpu() == row).all()


@pytest.mark.parametrize("isa", WHERE)
@pytest.mark.parametrize("beams", [1, 3])
def test_rows_are_listed_anew(isa: str, beams: int) -> None:
    """At the first step the prompt's last token, later the one chosen last."""
    searches = Searches(beams, isa)
    searches.state["prompt_lengths"] = searches.ints([10, 20, 30, 40, 50])
    searches.state["first_tokens"] = searches.ints([90, 91, 92, 93, 94])
    total = SENTENCES * beams
    tokens = searches.filled(6, total)
    tokens[3] = torch.arange(total) + 100  # of step 4, in the slots of sentences
    rows = searches.filled(3, total)
    random_first = [1000 * b for b in range(SENTENCES)]
    kernels.fill_rows(tokens, searches.state, random_first, rows, isa=isa, threads=2)
    ids, positions, random_row = rows[:, : 2 * beams].tolist()
    assert ids == [100 + 3 * beams + beam for beam in range(beams)] + [91] * beams
    assert positions == [44] * beams + [20] * beams
    assert random_row == [b + beam for b in (3000, 1000) for beam in range(beams)]
    assert (rows[:, 2 * beams :] == -7).all()


@pytest.mark.parametrize("first", [0, 1, 37])
def test_lists_behind_those_of_other_requests(first: int) -> None:
    request = _C.Request(
        sentences=1,
        search=_C.Greedy(),
        eos=[5, 9],
        bad_words=[[7], [3, 4], [8, 6, 2]],
        suppress_tokens=[11, 12],
        no_repeat_ngram_size=2,
        prompt=torch.tensor([[21, 22, 23]], dtype=torch.int32),
        prompt_first=0,
    )
    lists = kernels.placed_lists(request, first)
    assert lists["eos"] == [5, 9] and lists["banned"] == [7]
    assert sorted(lists["banned_sequences"]) == [[3, 4], [8, 6, 2]]
    assert lists["suppressed"] == [11, 12] and lists["prompt"] == [21, 22, 23]
