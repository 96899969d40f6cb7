"""The random number generator: the published answers, and the reference's own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding import _kernels as kernels
from decoding import reference

WORD = st.integers(0, 2**32 - 1)


def reference_philox(key: int, counter: list[int]) -> list[int]:
    return [int(word) for word in reference.philox(key, [torch.tensor(c) for c in counter])]


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        (0, [0] * 4, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, [2**32 - 1] * 4, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            0x299F31D0A4093822,
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers(key: int, counter: list[int], words: str) -> None:
    expected = [int(word, 16) for word in words.split()]
    assert kernels.philox(key, counter) == expected
    assert reference_philox(key, counter) == expected


@given(st.integers(0, 2**64 - 1), st.lists(WORD, min_size=4, max_size=4))
def test_reference_agrees(key: int, counter: list[int]) -> None:
    assert kernels.philox(key, counter) == reference_philox(key, counter)
