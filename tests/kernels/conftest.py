"""What tests of kernels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from decoding import _kernels as kernels


@pytest.fixture
def deterministic() -> Iterator[None]:
    """The kernels of a deterministic session, on a GPU."""
    kernels.set_deterministic(True)
    yield
    kernels.set_deterministic(False)
