"""Some of the allocations that a load and calls make fail; the others: allocations.py."""

from __future__ import annotations

import sys

import pytest

from tests.faults.allocations import try_all

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs LD_PRELOAD")


@pytest.mark.timeout(900)
def test_a_call_that_lacks_memory_raises_and_the_next_one_does_not() -> None:
    assert try_all(["several"], stride=2999, lasting=True) == 0


@pytest.mark.gpu
def test_calls_of_cuda_that_fail() -> None:
    assert try_all(["load", "beams", "engine"], stride=211, device="cuda") == 0
