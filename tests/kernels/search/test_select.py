"""select, from the logits to the next step in one launch, against the CPU's kernels one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import assert_same_bits, assert_within_torch, random
from tests.support.select import DTYPES, Rules, Search


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


@pytest.mark.gpu
@pytest.mark.parametrize(("batch", "beams"), [(1, 1), (1, 4), (3, 2), (8, 4), (3, 17)])
@pytest.mark.parametrize("vocab", [5, 127, 128, 129, 1000, 32000, 50257])
@pytest.mark.parametrize("style", ["normal", "ties"])
def test_beam_search(dtype: torch.dtype, batch: int, beams: int, vocab: int, style: str) -> None:
    Search("beam", Rules(max_new=4, eos=(2,)), batch, beams, vocab, dtype).run(style)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["beam", "greedy", "sampling"])
@pytest.mark.parametrize("vocab", [1000, 128112])
def test_many_rows(dtype: torch.dtype, kind: str, vocab: int) -> None:
    batch = 300 if vocab == 1000 else 32
    Search(kind, Rules(max_new=3, eos=(2, 7)), batch, 4, vocab, dtype).run("normal")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["greedy", "sampling"])
def test_many_rows_of_a_sentence(kind: str) -> None:
    """As many sequences are returned: more than shared memory could keep books of."""
    Search(kind, Rules(max_new=3, eos=(2, 7)), 2, 5000, 40).run("normal")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["beam", "greedy", "sampling"])
def test_a_large_vocabulary(kind: str) -> None:
    """Its books take more shared memory than a kernel has unasked."""
    Search(kind, Rules(max_new=3, eos=(2, 7)), 2, 4, 256_000, torch.float16).run("normal")


@pytest.mark.gpu
@pytest.mark.parametrize("early_stopping", ["no", "yes", "never"])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 0.6, -1.0, 2.0])
@pytest.mark.parametrize("style", ["normal", "ties", "holes"])
def test_when_sentences_stop(early_stopping: str, length_penalty: float, style: str) -> None:
    rules = Rules(
        max_new=12, eos=(0, 3, 7), length_penalty=length_penalty, early_stopping=early_stopping
    )
    Search("beam", rules, 40, 3, 12).run(style)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["beam", "greedy", "sampling"])
@pytest.mark.parametrize(
    "rules",
    [
        Rules(banned=(0, 5, 128, 499), eos=(3,)),
        Rules(eos=(2, 9), min_new=3),
        Rules(forced_first=(400,), eos=(4,)),
        Rules(forced_first=(499,), forced_last=(8, 130), eos=(4,), banned=(3,)),
        Rules(max_new=1, forced_first=(5,), forced_last=(6,), eos=(6,)),
        Rules(banned=(1, 7), eos=(2,), min_new=2, renormalize=True),
        Rules(forced_first=(6,), renormalize=True),
        Rules(banned=tuple(range(32)), eos=tuple(range(32, 64)), min_new=3),
        Rules(banned=tuple(range(33)), eos=(499,)),
        Rules(banned=(3,), eos=tuple(range(40, 73)), min_new=2),
        Rules(banned=tuple(range(500))),
        Rules(banned=tuple(range(498)), eos=(498,), renormalize=True),
    ],
)
def test_rules(dtype: torch.dtype, kind: str, rules: Rules) -> None:
    Search(kind, rules, 5, 3, 500, dtype).run("normal")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "filters"),
    [
        ("beam", {}),
        ("greedy", {}),
        ("sampling", {}),
        ("sampling", {"top_k": 5}),
        ("sampling", {"top_p": 0.9}),
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_broken_rows(dtype: torch.dtype, kind: str, value: float, filters: dict[str, Any]) -> None:
    """One number in a row, or all of them; others go on as they would have."""
    search = Search(kind, Rules(max_new=4, **filters), 6, 2, 3000, dtype)
    for number in range(1, 5):
        logits = random(12, 3000, seed=number)
        if number == 2:
            logits[3, 2999] = logits[8] = value
        search.step(logits)
    assert search.active_count == 0
    assert bool(search.kept["fault"].any()) == (value != -math.inf or kind != "greedy")


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [300, 5000, 32000])
@pytest.mark.parametrize("style", ["flat", "ties", "peaked", "normal"])
def test_many_candidates(vocab: int, style: str) -> None:
    """More beams and more ends than a queue holds at first, ties by the thousand."""
    rules = Rules(max_new=3, eos=(2, 3, 4, 5))
    Search("beam", rules, 2, 32, vocab).run(style)
    Search("beam", Rules(max_new=3, eos=(9,)), 2, 4, vocab, torch.float16).run(style)
    Search("greedy", Rules(max_new=3, eos=(9,)), 2, 1, vocab).run(style)
    bans = Rules(max_new=3, eos=(2, 3), banned=tuple(range(4, 24)), min_new=2)
    Search("beam", bans, 2, 4, vocab, torch.float16).run(style)
    Search("greedy", bans, 2, 1, vocab).run(style)


@pytest.mark.gpu
def test_the_best_lie_close_together() -> None:
    """Tokens sorted by their logits: the first groups hold everything that counts."""
    search = Search("beam", Rules(max_new=3, eos=(2,)), 2, 16, 32000)
    for seed in range(3):
        search.step(random(32, 32000, seed=seed).sort(-1, descending=True).values)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["beam", "greedy", "sampling"])
@pytest.mark.parametrize(
    "rules",
    [
        Rules(max_new=7, eos=(2, 9), min_new=3),
        Rules(max_new=7, forced_first=(400,), forced_last=(8, 130), eos=(4,), top_k=9),
        Rules(max_new=7, eos=(2,), banned=(1, 7), min_new=5, renormalize=True, top_p=0.9),
    ],
)
@pytest.mark.parametrize("beams", [1, 3, 20])
@pytest.mark.parametrize("numbers", [(1, 4, 2, 7, 1), (6, 5)])
def test_sentences_at_steps_of_their_own(
    kind: str, rules: Rules, beams: int, numbers: tuple[int, ...]
) -> None:
    """Some of them end, and others move up, while none is where another is."""
    Search(kind, rules, len(numbers), beams, 500, numbers=numbers).run("normal")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["beam", "greedy", "sampling"])
def test_replayed_when_all_is_done(kind: str) -> None:
    search = Search(kind, Rules(max_new=2), 3, 2, 1000)
    search.run("normal")
    before = {name: tensor.clone() for name, tensor in search.ours.items()}
    search.ours["host_state"].zero_()
    search.select(torch.full((6, 1000), math.nan))
    for name, tensor in before.items():
        if tensor.dtype == torch.int32:
            assert torch.equal(search.ours[name], tensor), name


def log_sum_exp(x: Tensor) -> Tensor:
    return x.logsumexp(-1)


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [1, 7, 129, 4097, 32000, 50257, 128112])
def test_log_sum_exp(dtype: torch.dtype, vocab: int) -> None:
    """Right, and the same bits however many rows there are, which decides how a row is split."""
    x = (random(40, vocab) * 3).to(dtype)

    def lse(rows: Tensor) -> Tensor:
        search = Search("greedy", Rules(), len(rows), 1, vocab, dtype)
        search.select(rows)
        return search.ours["lse"].cpu()

    together = lse(x)
    assert_within_torch(log_sum_exp, together, x.float())
    for row in (0, 1, 17):
        assert_same_bits(lse(x[row : row + 1]), together[row : row + 1])
    assert_same_bits(lse(x.flip(0)).flip(0), together)
