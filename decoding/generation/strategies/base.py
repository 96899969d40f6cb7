"""A search strategy, as the rest of generate() knows it."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.engine.request import Search


@dataclass(frozen=True)
class Strategy:
    """How a call searches.

    search: for the engine. rows_per_sentence: while it runs; returned: of them in the results.
    competing: the rows of a sentence are beams that compete, so that results have scores and
    parents. max_finished: rows that have ended which the search holds of a sentence; 0: as many as
    rows.
    """

    search: Search
    rows_per_sentence: int
    returned: int
    competing: bool = False
    max_finished: int = 0
