"""Greedy search: the most probable token, the lowest id among equals."""

from __future__ import annotations

from decoding import _C
from decoding.generation.strategies.base import Strategy


def strategy() -> Strategy:
    return Strategy(_C.Greedy(), rows_per_sentence=1, returned=1)
