"""The engine reads what has Python's buffer protocol as it reads tensors."""

from __future__ import annotations

import mmap
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from decoding import _C, Error
from decoding.models.weights.dtypes import BFLOAT16, FLOAT8, as_array, as_float32, as_tensor


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_arrays_are_read_as_tensors_are(dtype: Any) -> None:
    weight = np.random.default_rng(0).standard_normal((70, 40)).astype(dtype)
    expected = _C.squares(torch.from_numpy(weight), threads=1)
    assert _C.squares(weight, threads=1) == expected
    weight.flags.writeable = False
    assert _C.squares(weight, threads=1) == expected


def of_older_torch(tensor: torch.Tensor) -> Any:
    """A tensor of a torch that has no exchange API: all that is known are its attributes."""
    names = ("dtype", "device", "shape", "data_ptr", "is_contiguous")
    return SimpleNamespace(**{name: getattr(tensor, name) for name in names})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_of_older_torchs(dtype: torch.dtype) -> None:
    weight = torch.randn(70, 40).to(dtype)
    assert _C.squares(of_older_torch(weight), threads=1) == _C.squares(weight, threads=1)
    for tensor in (weight.T, of_older_torch(weight.T)):
        with pytest.raises(Error, match="weight must be contiguous"):
            _C.squares(tensor, threads=1)
    for tensor in (weight.bool(), of_older_torch(weight.bool())):
        with pytest.raises(Error, match=r"weight must be float32, .* got bool"):
            _C.squares(tensor, threads=1)


def test_what_counts_as_contiguous() -> None:
    weight = torch.randn(70, 40, requires_grad=True)
    expected = _C.squares(weight.detach().clone(), threads=1)
    assert _C.squares(weight, threads=1) == expected
    assert _C.squares(torch.nn.Parameter(weight), threads=1) == expected
    assert _C.squares(weight[:, :1].T.T[:1], threads=1) == _C.squares(weight[:1, :1], threads=1)
    with pytest.raises(Error, match="weight must be contiguous"):
        _C.squares(weight[:, 1:], threads=1)


def test_arrays_of_bfloat16_are_records_of_that_name() -> None:
    weight = torch.randn(70, 40).bfloat16()
    array = as_array(weight)
    assert array.dtype == BFLOAT16 and torch.equal(as_tensor(array), weight)
    assert np.array_equal(as_float32(array), weight.float().numpy())
    assert _C.squares(array, threads=1) == _C.squares(weight, threads=1)


@pytest.mark.parametrize("name", FLOAT8)
def test_numbers_of_float8(name: str) -> None:
    """Each of them, and where they have gaps."""
    numbers = torch.arange(256, dtype=torch.uint8).view(16, 16).view(getattr(torch, name))
    expected = numbers.float().numpy()
    for rows in (slice(None), slice(1, 9)):
        found = as_float32(as_array(numbers)[:, rows])
        assert found.dtype == np.float32
        assert np.array_equal(found, expected[:, rows], equal_nan=True)


def filled(ids: Any) -> Any:
    """A panel of a weight, where sums are written to `ids`."""
    panels, scale = np.zeros((1, 1, 256), np.int8), np.zeros(1, np.float32)
    _C.fill_panels(panels, np.ones((1, 4), np.float32), 0, scale, ids, threads=1)
    return ids


def test_arrays_are_written_where_they_are() -> None:
    assert filled(np.zeros(1, np.int32)).tolist() == [4 * 127]
    block = mmap.mmap(-1, 4)
    with pytest.raises(Error, match="sums must be int32, got uint8"):
        filled(block)


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        ([[1.0]], "weight must be a torch tensor or an array, got <class 'list'>"),
        (np.ones((4, 4), np.float32).T[1:], "weight must be contiguous"),
        (np.ones((4, 4), np.float64), r"weight must be float32, .* got float64"),
        (np.ones((4, 4), np.bool_), r"weight must be float32, .* got \?"),
        (np.ones((4, 4), ">f4"), r"weight must be float32, .* got >f"),
        (np.ones(4, np.float32), r"weight must be \[N, K\], has 1 dimensions"),
    ],
)
def test_wrong_arrays_are_named(weight: Any, says: str) -> None:
    with pytest.raises(Error, match=says):
        _C.squares(weight, threads=1)
