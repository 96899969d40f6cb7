"""What counts as the reference's answer, where rounding could have decided otherwise, and where
another version would."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

# transformers 5.20, the last for Python 3.10, also penalises repetitions of what the mask hides,
# and refuses or writes as "None" what has no content in a chat template.
needs_newest = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="needs transformers 5.23, and so Python 3.11 or newer"
)

NOISE = 1e-5  # on the reference's log-probabilities
# Beam search's fill-ins have a sum of -1e9, which transformers divides by G^a: what scores below is
# one, and its content is undefined.
LOST = -1e6


class Noise(LogitsProcessor):
    """Shakes the reference's scores as much as rounding might."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + NOISE * torch.randn(scores.shape, generator=self.generator)


def rows_of(found: Any) -> list[list[int]]:
    """The rows of an output of generate() that are no fill-ins."""
    scores = getattr(found, "sequences_scores", None)
    if scores is None or bool((scores > LOST).all()):
        return found.sequences.tolist()
    # How much follows the ends depends on fill-ins, too.
    lengths = (found.beam_indices >= 0).sum(1) + found.sequences.shape[1]
    lengths -= found.beam_indices.shape[1]
    rows = zip(found.sequences.tolist(), lengths.tolist(), (scores > LOST).tolist(), strict=True)
    return [row[:length] for row, length, kept in rows if kept]


def is_tie(generate: Callable[..., Any], found: Any, tries: int = 30) -> bool:
    """Whether the reference, shaken, gives each row of `found`.

    generate: calls the reference; it takes one keyword, logits_processor.
    """
    wanted = rows_of(found)
    seen: list[set[tuple[int, ...]]] = [set() for _ in wanted]
    for seed in range(tries):
        shaken = generate(logits_processor=LogitsProcessorList([Noise(seed)]))
        for row, rows in zip(rows_of(shaken), seen, strict=False):
            rows.add(tuple(row))
        if all(tuple(row) in rows for row, rows in zip(wanted, seen, strict=True)):
            return True
    return False


def assert_as_exact(
    ours: torch.Tensor, half: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype
) -> None:
    """The one tolerance rule for models in half precision: our largest error is at most twice that
    of the reference in the same type, plus one rounding step.

    half: what the reference finds in `dtype`; exact: in float32. All have one shape, [rows, ...].
    The largest error is that of a tenth of the rows, the median of ten: small models magnify the
    rounding of some tokens thirtyfold, and one such token would decide.
    """
    theirs, mine = (largest_error(found.cpu() - exact) for found in (half, ours))
    allowed = 2 * theirs + torch.finfo(dtype).eps * exact.abs().max()
    assert mine <= allowed, f"error {mine:.3g} > {allowed:.3g}, the reference's is {theirs:.3g}"


def largest_error(difference: torch.Tensor) -> torch.Tensor:
    return torch.stack([part.abs().max() for part in difference.chunk(10)]).median()


def assert_close_scores(
    ours: torch.Tensor, theirs: torch.Tensor, scale: torch.Tensor | None = None
) -> None:
    """Within 1e-4, relative above 1; fill-ins are as far down as the reference's. scale: what a sum
    is multiplied by where the length penalty is negative, and its rounding too."""
    kept = theirs > LOST
    size = theirs.abs().clamp(min=1)
    error = (ours - theirs).abs() / (size if scale is None else torch.maximum(size, scale))
    error = error[kept]
    assert bool((error <= 1e-4).all()), f"scores differ by up to {float(error.max())}"
    assert bool((ours[~kept] <= -1e8).all())
