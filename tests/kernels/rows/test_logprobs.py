"""label_logprobs against torch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from decoding import Error
from decoding import _kernels as kernels
from tests.conftest import Place, assert_same_bits, assert_within_torch, poison, random

IGNORED = -100
VOCABS = [2, 3, 15, 16, 17, 31, 33, 64, 257, 511, 512, 513, 1023, 1024, 1025, 2056, 4099, 50257]


def reference(logits: Tensor, labels: Tensor) -> Tensor:
    """In float32 at least, whatever the type of the logits."""
    x = logits.to(torch.promote_types(logits.dtype, torch.float32))
    found = x.log_softmax(-1).gather(1, labels.long().clamp(min=0)[:, None])[:, 0]
    return found.where(labels != IGNORED, 0.0)


def ranks_of(logits: Tensor, labels: Tensor) -> tuple[list[int], list[int]]:
    """The ranks as vLLM counts them, and the most likely columns."""
    x = logits.double().cpu()
    counts = labels.cpu() != IGNORED
    own = x.gather(1, labels.cpu().long().clamp(min=0)[:, None])
    rank = (x >= own).sum(1).where(counts, 0)
    first = (x == x.amax(1, keepdim=True)).int().argmax(1)
    return rank.tolist(), first.where(counts, IGNORED).tolist()


def label_scores(
    logits: Tensor, labels: Tensor, place: Place, vocab: int = 0, threads: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, ranks and the most likely columns."""
    y = torch.full((len(logits), 3), -7, dtype=torch.int32, device=logits.device)
    vocab = vocab or logits.shape[1]
    kernels.label_logprobs(logits, labels, y, vocab, isa=place.isa, threads=threads)
    return y[:, 0].contiguous().view(torch.float32), y[:, 1], y[:, 2]


def label_logprobs(
    logits: Tensor, labels: Tensor, place: Place, vocab: int = 0, threads: int = 1
) -> Tensor:
    return label_scores(logits, labels, place, vocab, threads)[0]


def inputs(place: Place, rows: int, vocab: int, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    logits = (scale * random(rows, vocab)).to(place.device, place.dtype)
    labels = torch.randint(0, vocab, (rows,), generator=torch.Generator().manual_seed(vocab))
    labels[1::4] = IGNORED
    labels[2::4] = vocab - 1
    return logits, labels.int().to(place.device)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("rows", [1, 7])
def test_equals_torch(place: Place, rows: int, vocab: int) -> None:
    logits, labels = inputs(place, rows, vocab)
    assert_within_torch(reference, label_logprobs(logits, labels, place), logits, labels)


def test_the_largest_vocabulary(place: Place) -> None:
    logits, labels = inputs(place, 3, 262144)
    assert_within_torch(reference, label_logprobs(logits, labels, place), logits, labels)


@pytest.mark.parametrize("vocab", [17, 4099])
def test_large_logits(place: Place, vocab: int) -> None:
    """The largest logit comes late in some rows, and others underflow beside it."""
    logits, labels = inputs(place, 9, vocab, scale=100.0)
    logits[3, -1], logits[4, 0], logits[5, vocab // 2] = 3e4, 3e4, 3e4
    assert_within_torch(reference, label_logprobs(logits, labels, place), logits, labels)


def test_rows_of_ascending_logits(place: Place) -> None:
    """Every block has a larger maximum than all before it."""
    logits = torch.linspace(-50, 50, 5000).repeat(3, 1).to(place.device, place.dtype)
    labels = torch.tensor([0, 2500, 4999]).int().to(place.device)
    assert_within_torch(reference, label_logprobs(logits, labels, place), logits, labels)


def test_no_rows(place: Place, threads: int) -> None:
    logits, labels = inputs(place, 0, 7)
    assert label_logprobs(logits, labels, place, threads=threads).shape == (0,)


@pytest.mark.parametrize("vocab", [5, 513])
def test_ignored_rows_are_zero_whatever_they_hold(place: Place, threads: int, vocab: int) -> None:
    logits = poison(5, vocab).to(place.device, place.dtype)
    labels = torch.full((5,), IGNORED, dtype=torch.int32, device=place.device)
    y, ranks, likely = label_scores(logits, labels, place, threads=threads)
    assert (y == 0).all() and (ranks == 0).all() and (likely == IGNORED).all()


@pytest.mark.parametrize("vocab", [40, 65, 2048])
def test_infinite_logits(place: Place, vocab: int) -> None:
    logits, _ = inputs(place, 5, vocab)
    logits[0, 5:] = -math.inf  # the label is among them, or not
    logits[1, 5:] = -math.inf
    logits[2] = -math.inf
    logits[3, 4] = math.inf
    logits[4, 0] = math.nan
    labels = torch.tensor([7, 2, 0, 0, 1]).int().to(place.device)
    y = label_logprobs(logits, labels, place)
    assert y[0] == -math.inf and y[2:].isnan().all()
    assert_within_torch(reference, y[1:2], logits[1:2], labels[1:2])


@pytest.mark.parametrize("vocab", [*VOCABS, 262144])
@pytest.mark.parametrize("kinds", [2, 50, 10**9])
def test_ranks_and_most_likely(place: Place, vocab: int, kinds: int, threads: int) -> None:
    """With ties: of `kinds` different logits at most. Rows begin at any byte."""
    logits, labels = inputs(place, 11, vocab)
    step = 12 / kinds
    logits = ((logits.double() / step).round() * step).to(place.dtype)
    labels[4::4] = logits[4::4].argmax(1).int()
    logits[3], logits[5, : vocab // 2] = -math.inf, -math.inf
    logits[7] = logits[7, 0]
    _, ranks, likely = label_scores(logits, labels, place, threads=threads)
    assert (ranks.tolist(), likely.tolist()) == ranks_of(logits, labels)


def test_a_logit_is_no_less_likely_than_itself(place: Place) -> None:
    """Each column of a row in turn, among neighbours that differ in the last bit."""
    row = 1 + torch.finfo(place.dtype).eps * (torch.arange(70) % 3 == 0).to(place.dtype)
    assert len(row.unique()) == 2
    logits = row.repeat(70, 1).to(place.device)
    labels = torch.arange(70).int().to(place.device)
    _, ranks, likely = label_scores(logits, labels, place)
    assert (ranks.tolist(), likely.tolist()) == ranks_of(logits, labels)


@pytest.mark.parametrize("vocab", [33, 64, 1000, 4096])
@pytest.mark.parametrize("padding", [1, 8])
def test_padding_is_not_read(place: Place, threads: int, vocab: int, padding: int) -> None:
    logits, labels = inputs(place, 6, vocab)
    padded = torch.cat([logits, poison(6, padding).to(logits)], 1)
    expected = label_logprobs(logits, labels, place)
    y, ranks, likely = label_scores(padded, labels, place, vocab, threads)
    assert_within_torch(reference, y, logits, labels)
    assert (ranks.tolist(), likely.tolist()) == ranks_of(logits, labels)
    if place.device == "cpu":
        assert_same_bits(y, expected)


@pytest.mark.parametrize("vocab", [32, 130, 512, 50257])
def test_a_row_does_not_depend_on_its_batch(place: Place, threads: int, vocab: int) -> None:
    logits, labels = inputs(place, 11, vocab)
    logits[3] = math.nan
    logits = torch.cat([logits, poison(11, -vocab % 8).to(logits)], 1)  # rows on 16 bytes
    together = label_logprobs(logits, labels, place, vocab, threads)
    for r in (0, 2, 4, 10):
        alone = label_logprobs(logits[r : r + 1].clone(), labels[r : r + 1].clone(), place, vocab)
        assert_same_bits(together[r : r + 1].cpu(), alone.cpu())


@pytest.mark.parametrize("label", [-1, -99, -101, 7, 1 << 30])
def test_labels_out_of_range_are_refused(place: Place, label: int) -> None:
    logits, labels = inputs(place, 3, 7)
    labels[1] = label
    with pytest.raises(Error, match=f"labels must be 0 to 6, or -100 .* got {label} "):
        label_logprobs(logits, labels, place)
