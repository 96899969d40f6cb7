"""Short texts of values: their types and shapes instead of their numbers."""

from __future__ import annotations

from typing import Any


def described(value: Any) -> str:
    """A tensor as "float32[2, 5]", a tuple of equal ones as "7 x float32[2, 5]", others as they
    are."""
    if isinstance(value, (tuple, list)) and value:
        parts = [described(item) for item in value]
        same = len(set(parts)) == 1
        return f"{len(parts)} x {parts[0]}" if same else f"({', '.join(parts)})"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)


def counted(number: int) -> str:
    """A number in three digits: 512, 7.86 M."""
    size, unit = float(number), ""
    for larger in ("k", "M", "G", "T"):
        if size < 1000:
            break
        size, unit = size / 1000, f" {larger}"
    return f"{size:.3g}{unit}"
