"""A search strategy, as the rest of generate() knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from decoding import _C

Search = _C.Greedy | _C.Sampling | _C.Beam | _C.Diverse | _C.Contrastive | _C.Constrained


@dataclass(frozen=True)
class Strategy:
    """How a call searches.

    search: for the engine, with `options`, arguments of _C.Request that this search alone has.
    rows_per_sentence: while it runs; returned: of them in the results. competing: the rows of a
    sentence are beams that compete, so that results have scores and parents. max_finished: rows
    that have ended which the search holds of a sentence; 0: as many as rows.
    """

    search: Search
    rows_per_sentence: int
    returned: int
    competing: bool = False
    max_finished: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
