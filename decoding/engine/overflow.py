"""What detect_overflow finds in the tensors of a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FLOAT16 = 65504.0  # its largest number


@dataclass(frozen=True)
class TensorOverflow:
    """One tensor, in all calls so far.

    tensor: its name, such as "decoder layer 3, feed-forward output". largest: the largest absolute
    value among its finite numbers. not_finite: rows (of a token each) that held NaN or infinity.
    """

    tensor: str
    largest: float
    not_finite: int

    @property
    def float16_share(self) -> float:
        """`largest` as a share of the largest number in float16: what is above 1 does not fit."""
        return self.largest / FLOAT16


def merged(found: Iterable[list[tuple[str, float, int]]]) -> list[TensorOverflow]:
    """Of sessions and engines of one model, each in the order of its tensors."""
    tensors: dict[str, tuple[float, int]] = {}
    for each in found:
        for name, largest, rows in each:
            before = tensors.get(name, (0.0, 0))
            tensors[name] = max(before[0], largest), before[1] + rows
    return [TensorOverflow(name, *numbers) for name, numbers in tensors.items()]
