"""What a search strategy is to the rest of generate()."""

from __future__ import annotations

from dataclasses import dataclass

from decoding import _C

Search = _C.Greedy | _C.Sampling | _C.Beam | _C.Diverse | _C.Contrastive | _C.Constrained


@dataclass(frozen=True)
class Strategy:
    """How a call searches.

    search: for the engine. rows: of each sentence while it runs. returned: of each sentence in the
    results. beams: whether rows compete, so that results have scores and parents. places: of a
    sentence's finished list; 0: one for each row.
    """

    search: Search
    rows: int
    returned: int
    beams: bool = False
    places: int = 0
