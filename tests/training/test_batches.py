"""The batches of the demo model's training: few shapes, whose padding changes nothing."""

from __future__ import annotations

import math

import pytest
import torch

from examples.train_a_translator import trainer
from examples.train_a_translator.corpus import IGNORED, LABELS, Batch
from tests.training.translator import PAD, epoch, random_packed, row, small_model


def test_batches_hold_every_pair_once() -> None:
    sides, seen, repeated = [random_packed(100, seed) for seed in (3, 4)], [], []
    for batch in epoch(100, 60):
        labels = torch.full(batch.target.shape, PAD).flatten()
        real = batch.labels != IGNORED
        labels[batch.places[real]] = batch.labels[real]
        for source, mask, target, label in zip(
            batch.source, batch.source_mask, batch.target, labels.view_as(batch.target), strict=True
        ):
            assert (source[~mask] == PAD).all() and (source[mask] != PAD).all()
            sentence = tuple(source[mask].tolist())
            if (label == PAD).all():
                repeated.append(sentence)
                continue
            assert target[0] == PAD and torch.equal(target[1:], label[:-1])
            seen.append((sentence, tuple(label[label != PAD].tolist())))
    pairs = [(row(sides[0], i), row(sides[1], i)) for i in range(100)]
    assert sorted(seen) == sorted(pairs)
    assert repeated and {*repeated} <= {source for source, _ in pairs}


@pytest.mark.parametrize("tokens", [1, 60, 5000])
def test_batches_have_few_shapes(tokens: int) -> None:
    for batch in epoch(1000, tokens):
        rows, width = batch.source.shape
        assert batch.target.shape == batch.source_mask.shape == (rows, width)
        assert rows == max(1, tokens // width)
        count, labels = int((batch.labels != IGNORED).sum()), len(batch.labels)
        assert labels == min(batch.source.numel(), math.ceil(count / LABELS) * LABELS)
        assert (batch.labels[count:] == IGNORED).all()
        assert len(batch.places) == len(batch.places.unique()) == labels


def without_padding(batch: Batch) -> Batch:
    """The same pairs with as few numbers as they need."""
    count = int((batch.labels != IGNORED).sum())
    labels, places = batch.labels[:count], batch.places[:count]
    rows, columns = places // batch.target.shape[1], places % batch.target.shape[1]
    source_width = int(batch.source_mask[: rows.max() + 1].sum(1).max())
    end, width = int(rows.max()) + 1, int(columns.max()) + 1
    source, mask = (side[:end, :source_width] for side in (batch.source, batch.source_mask))
    return Batch(source, mask, batch.target[:end, :width], labels, rows * width + columns)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("r_drop", [0.0, 4.0])
def test_padding_changes_neither_loss_nor_gradients(plain: bool, r_drop: float) -> None:
    padded = min(epoch(20, 300), key=lambda batch: int((batch.labels != IGNORED).sum()))
    batch, model = without_padding(padded), small_model(plain=plain)
    assert len(batch.source) < len(padded.source) and len(batch.labels) < len(padded.labels)
    found = []
    for given in (padded, batch):
        loss = trainer.loss(model, given, r_drop, plain)
        parameters = [weight for weight in model.parameters() if weight.requires_grad]
        found.append([loss, *torch.autograd.grad(loss, parameters)])
    torch.testing.assert_close(*found)
