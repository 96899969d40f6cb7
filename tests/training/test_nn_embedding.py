"""decoding.nn's embedding and dropout, and its softmax, against torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from decoding import nn
from decoding.nn.dropout import new_seed
from decoding.nn.functional import dropout, embedding, softmax
from tests.conftest import assert_same_bits, random
from tests.training.gradients import DTYPES, assert_gradients_within_torch

ROWS, POSITIONS, HIDDEN = 11, 9, 16


def some_ids(*shape: int, rows: int = ROWS) -> Tensor:
    """Some of them several times."""
    return torch.randint(rows, shape, generator=torch.Generator().manual_seed(5))


def reference(
    ids: Tensor,
    table: Tensor,
    positions: Tensor | None,
    position: Tensor | None,
    padding_idx: int | None = None,
    scale: float = 1.0,
) -> Tensor:
    x = F.embedding(ids, table, padding_idx) * scale
    if positions is None:
        return x
    if position is None:
        position = torch.arange(ids.shape[-1], device=ids.device)
    return x + F.embedding(position, positions)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (7,), (3, 7)])
@pytest.mark.parametrize("padding_idx", [None, 2, -1])
def test_equals_torch(
    device: str, dtype: torch.dtype, shape: tuple[int, ...], padding_idx: int | None
) -> None:
    table = random(ROWS, HIDDEN).to(device, dtype)
    ids, scale = some_ids(*shape).to(device), HIDDEN**0.5
    how: dict[str, Any] = {"padding_idx": padding_idx, "scale": scale}
    assert_gradients_within_torch(
        lambda t: embedding(ids, t, **how), lambda t: reference(ids, t, None, None, **how), table
    )
    if not shape:
        return
    positions = random(POSITIONS, HIDDEN, seed=1).to(device, dtype)
    for position in (None, some_ids(7, rows=POSITIONS).to(device)):
        assert_gradients_within_torch(
            lambda t, p, at=position: embedding(ids, t, positions=p, position=at, **how),
            lambda t, p, at=position: reference(ids, t, p, at, **how),
            *(table, positions),
        )


def test_layouts() -> None:
    table, positions = random(ROWS, HIDDEN), random(POSITIONS, HIDDEN, seed=1)
    for ids in (some_ids(7, 2).T, some_ids(7, 2)[:, 0], some_ids(7).expand(1, 7)):
        for position in (None, some_ids(*ids.shape, 2, rows=POSITIONS)[..., 0]):
            y = embedding(ids, table.T.contiguous().T, positions=positions, position=position)
            torch.testing.assert_close(y, reference(ids, table, positions, position))


def test_gradcheck() -> None:
    table, positions = (
        random(rows, 3, seed=rows).double().requires_grad_() for rows in (ROWS, POSITIONS)
    )
    ids = some_ids(2, 5)

    def op(table: Tensor, positions: Tensor) -> Tensor:
        torch.manual_seed(0)  # the same elements are dropped each time
        return embedding(ids, table, positions=positions, scale=2.0, dropout=0.3)

    assert torch.autograd.gradcheck(op, (table, positions))


def test_dropout_keeps_the_rest(device: str) -> None:
    table = (random(50, 64).abs() + 1).to(device).requires_grad_()
    ids = some_ids(40, rows=50).to(device)
    torch.manual_seed(3)
    y = embedding(ids, table, dropout=0.3)
    kept = y != 0
    assert 0.66 < kept.float().mean() < 0.74
    torch.testing.assert_close(y[kept], (F.embedding(ids, table) / 0.7)[kept])
    upstream = random(40, 64).to(device)
    (ours,) = torch.autograd.grad(y, table, upstream)
    masked = F.embedding(ids, table) * kept / 0.7
    torch.testing.assert_close(ours, torch.autograd.grad(masked, table, upstream)[0])
    torch.manual_seed(3)
    assert_same_bits(embedding(ids, table, dropout=0.3).detach().cpu(), y.detach().cpu())
    assert not torch.equal(embedding(ids, table, dropout=0.3), y)


def test_gradients_have_the_same_bits_where_promised(device: str) -> None:
    ids = some_ids(2000, rows=20).to(device)
    found = []
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(3):
            table = random(20, HIDDEN).to(device).requires_grad_()
            embedding(ids, table).sin().sum().backward()
            assert table.grad is not None
            found.append(table.grad.cpu())
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same_bits(found[0], found[1])
    assert_same_bits(found[0], found[2])


def test_a_tied_weight_gets_both_gradients() -> None:
    tied, ids = nn.Embedding(ROWS, HIDDEN), some_ids(6)
    output = torch.nn.Linear(HIDDEN, ROWS, bias=False)
    output.weight = tied.weight
    loss = nn.CrossEntropyLoss()(output(tied(ids)), ids)
    loss.backward()
    plain = tied.weight.detach().requires_grad_()
    F.cross_entropy(F.linear(F.embedding(ids, plain), plain), ids).backward()
    torch.testing.assert_close(tied.weight.grad, plain.grad)


def test_the_module_is_torchs() -> None:
    ours, theirs = nn.Embedding(ROWS, HIDDEN, 3), torch.nn.Embedding(ROWS, HIDDEN, 3)
    ours.load_state_dict(theirs.state_dict())
    ids = some_ids(2, 5)
    assert_same_bits(ours(ids).detach(), theirs(ids).detach())
    sinusoids = nn.Embedding(ROWS, HIDDEN, positions=random(POSITIONS, HIDDEN))
    assert set(sinusoids.state_dict()) == {"weight"}
    assert not isinstance(sinusoids.positions, torch.nn.Parameter)
    learned = nn.Embedding(
        ROWS, HIDDEN, positions=torch.nn.Parameter(random(POSITIONS, HIDDEN)), dropout=0.5
    )
    assert set(learned.state_dict()) == {"weight", "positions"}
    expected = reference(ids, learned.weight, learned.positions, None)
    torch.testing.assert_close(learned.eval()(ids), expected)
    assert (learned.train()(ids) == 0).any()


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ({"max_norm": 1.0}, NotImplementedError, "max_norm"),
        ({"sparse": True}, NotImplementedError, "sparse"),
        ({"scale_grad_by_freq": True}, NotImplementedError, "scale_grad_by_freq"),
        ({"input": torch.zeros(3, dtype=torch.int32)}, ValueError, r"input.long\(\)"),
        ({"input": torch.full((3,), ROWS)}, IndexError, f"{ROWS}"),
        ({"weight": random(4)}, ValueError, r"\[V, H\], got \[4\]"),
        ({"padding_idx": ROWS}, ValueError, "from -11 to 10, got 11"),
        ({"position": torch.zeros(3, dtype=torch.int64)}, ValueError, "give these too"),
        ({"positions": random(4, 5)}, ValueError, r"\[P, 16\] as weight"),
        ({"positions": random(2, HIDDEN)}, IndexError, "2"),
        ({"dropout": 1.5}, ValueError, "from 0 to 1, got 1.5"),
    ],
)
def test_bad_input(how: dict[str, Any], error: type[Exception], text: str) -> None:
    given = {"input": some_ids(3), "weight": random(ROWS, HIDDEN), **how}
    with pytest.raises(error, match=text):
        embedding(**given)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout(device: str, dtype: torch.dtype, p: float) -> None:
    x = (random(64, 65).abs() + 1).to(device, dtype).requires_grad_()
    torch.manual_seed(0)
    y = dropout(x, p)
    kept = y != 0
    assert abs(float(kept.float().mean()) - 1 + p) < 0.03
    torch.testing.assert_close(y[kept], (x / (1 - p))[kept])
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    torch.testing.assert_close(gradient, (kept / (1 - p)).to(dtype))


def test_dropout_of_nothing_and_of_all() -> None:
    x = random(5, 7).requires_grad_()
    assert dropout(x, 0.0) is x and dropout(x, 0.5, training=False) is x
    y = dropout(x, 1.0)
    assert (y == 0).all() and (torch.autograd.grad(y.sum(), x)[0] == 0).all()
    module = nn.Dropout(0.5)
    assert module.eval()(x) is x and (module.train()(x) == 0).any()
    with pytest.raises(NotImplementedError, match="inplace"):
        nn.Dropout(0.5, inplace=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "dim"), [((5, 33), -1), ((3, 4, 5), 1), ((7,), 0)])
def test_softmax(device: str, dtype: torch.dtype, shape: tuple[int, ...], dim: int) -> None:
    x = random(*shape).to(device, dtype)
    assert_gradients_within_torch(lambda x: softmax(x, dim), lambda x: F.softmax(x, dim), x)
    assert nn.Softmax(dim)(x).shape == x.shape
    assert softmax(x, dim, torch.float32).dtype == torch.float32


def test_softmax_gradcheck() -> None:
    assert torch.autograd.gradcheck(lambda x: softmax(x, 0), random(4, 5).double().requires_grad_())


@pytest.mark.gpu
def test_seeds_follow_the_generator_of_the_gpu() -> None:
    """On the CPU, where no kernel needs to draw them."""
    device = torch.device("cuda", 0)
    torch.manual_seed(3)
    seeds = [new_seed(device) for _ in range(50)]
    assert all(seed.device.type == "cpu" for seed in seeds)
    assert len({int(seed) for seed in seeds}) == 50
    state = torch.cuda.get_rng_state(device)
    later = new_seed(device)
    torch.cuda.set_rng_state(state, device)
    assert new_seed(device) == later
    torch.manual_seed(3)
    assert new_seed(device) == seeds[0]
    torch.manual_seed(4)
    assert new_seed(device) != seeds[0]


@pytest.mark.gpu
def test_each_replay_of_a_graph_drops_others() -> None:
    x = torch.ones(1000, device="cuda")
    dropout(x, 0.5)  # loads the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = dropout(x, 0.5)
    found = []
    for _ in range(2):
        graph.replay()
        found.append(y.clone())
    assert not torch.equal(*found)
    assert all(440 < (kept > 0).sum() < 560 for kept in found)
