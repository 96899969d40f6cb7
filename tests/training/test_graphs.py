"""Updates of the demo model that are replayed as CUDA graphs."""

from __future__ import annotations

import argparse
from collections.abc import Generator

import pytest
import torch
from torch import Tensor

from decoding.models.torch.blocks import Dropout
from examples.train_a_translator.corpus import Batch
from examples.train_a_translator.trainer import Trainer
from tests.training.translator import epoch, small_model

pytestmark = pytest.mark.gpu


@pytest.fixture
def deterministic() -> Generator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def make_trainer(
    graphs: bool,
    r_drop: float = 0.0,
    plain: bool = False,
    dropout: Dropout = Dropout(),  # noqa: B008, frozen
) -> Trainer:
    args = argparse.Namespace(rate=1e-2, warmup=5, r_drop=r_drop, plain=plain)
    return Trainer(small_model(dropout, plain).cuda().train(), args, graphs)


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("r_drop", [0.0, 4.0])
def test_replays_update_as_eager_calls_do(plain: bool, r_drop: float, deterministic: None) -> None:
    given = [batch for seed in range(4) for batch in epoch(100, 200, seed, "cuda")]
    start = flat(make_trainer(False, r_drop, plain).parameters)
    losses, weights = [], []
    for graphs in (False, True):
        trainer = make_trainer(graphs, r_drop, plain)
        taken = [trainer.step(batch, i / len(given)) for i, batch in enumerate(given)]
        losses.append(torch.stack(taken))
        weights.append(flat([*trainer.parameters, *trainer.averaged]) - torch.cat([start, start]))
    assert trainer.graphs and len(trainer.graphs.captured) >= 3
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-2, atol=0.0)
    # Where a gradient is noise, as that of a key's bias, AdamW makes whole steps of it.
    assert (weights[1] - weights[0]).norm() < 0.05 * weights[0].norm()


def replayed(trainer: Trainer, batch: Batch) -> None:
    """Brings the trainer to where it replays the batch, with the weights that it had."""
    for _ in range(3):
        trainer.step(batch, 1.0)
    assert trainer.graphs and len(trainer.graphs.captured) == 1


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("part", ["block", "attention", "activation"])
def test_each_replay_drops_others(plain: bool, part: str) -> None:
    batch = epoch(20, 100, device="cuda")[0]
    for rate, found in ((0.3, 3), (0.0, 1)):
        trainer = make_trainer(True, plain=plain, dropout=Dropout(**{part: rate}))
        replayed(trainer, batch)
        losses = [trainer.step(batch, 1.0).item() for _ in range(3)]
        assert len({round(loss, 4) for loss in losses}) == found


def test_replays_follow_the_rate() -> None:
    batch, trainer = epoch(20, 100, device="cuda")[0], make_trainer(True)
    replayed(trainer, batch)
    moves = []
    for progress in (1.0, 0.9, 0.0):
        before = flat(trainer.parameters)
        trainer.step(batch, progress)
        moves.append(float((flat(trainer.parameters) - before).abs().max()))
    assert moves[0] < 1e-9 and 1e-4 < moves[1] < 0.5 * moves[2]
