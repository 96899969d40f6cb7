"""Recorded calls of kernels."""

from __future__ import annotations

import pytest
import torch

import decoding
from decoding import _C
from decoding import _kernels as kernels
from tests.conftest import poison, random

ISA = _C.isas()[-1]


@pytest.mark.parametrize("threads", [1, 2])
def test_calls_run_in_their_order_when_replayed(threads: int) -> None:
    x, y, z = random(3, 8), poison(3, 8), poison(3, 8)
    recording = kernels.Recording(threads=threads)
    with recording:
        kernels.softmax(x, None, y, 1.0, isa=ISA, threads=threads)
        kernels.softmax(y, None, z, 2.0, isa=ISA, threads=threads)
    assert y.isnan().all()
    for _ in range(2):
        recording.replay()
        torch.testing.assert_close(z, torch.softmax(2 * torch.softmax(x, -1), -1))
        x.neg_()  # the next time it is read afresh
    kernels.softmax(x, None, y, 1.0, isa=ISA, threads=threads)  # outside, calls run at once
    torch.testing.assert_close(y, torch.softmax(x, -1))


def test_mistakes() -> None:
    x = random(1, 8)
    with kernels.Recording(threads=1):
        with pytest.raises(decoding.Error, match="of 1 threads, got 2"):
            kernels.softmax(x, None, x, 1.0, isa=ISA, threads=2)
        with pytest.raises(decoding.Error, match="another recording has begun"):
            kernels.Recording(threads=1).__enter__()
