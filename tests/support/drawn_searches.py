"""What the tests of the kernels of beam search draw alike, and what they ask of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st

from decoding import _C
from decoding.reference import Rules
from tests.support.beams import Search, Table

Kind = TypeVar("Kind", bound=Search)
LENGTH_PENALTIES = st.sampled_from([-1.0, -0.2, 0.0, 0.6, 1.0, 2.0])
EARLY_STOPPING = st.sampled_from([False, True, "never"])


def draw_rules(draw: st.DrawFn, vocab: int, banned: int) -> Rules:
    """banned: tokens at the most."""
    ids = st.integers(0, vocab - 1)
    some = st.lists(ids, max_size=2, unique=True).map(tuple)
    return Rules(
        max_new=draw(st.integers(1, 7)),
        min_new=draw(st.integers(0, 3)),
        eos=draw(st.lists(ids, max_size=3, unique=True).map(tuple)),
        banned=draw(st.lists(ids, max_size=banned, unique=True).map(tuple) | st.just(())),
        forced_first=draw(some),
        forced_last=draw(some),
    )


def draw_search(
    draw: st.DrawFn, kind: type[Kind], table: Table, rules: Rules, options: Any
) -> Kind:
    """Some sentences, with lengths and a stop string of their own or without, that begin together
    or one after the other, on one of the instruction sets."""
    sentences = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=3))
    lengths = [draw(st.integers(1, rules.max_new)) for _ in sentences]
    words = st.lists(st.integers(0, min(3, table.vocab - 1)), max_size=3).map(tuple)
    return kind(
        table,
        rules,
        options,
        sentences,
        draw(st.sampled_from(_C.isas())),
        threads=draw(st.sampled_from([1, 2, 3])),
        lengths=draw(st.sampled_from([lengths, None])),
        stop=draw(st.just(()) | words),
        late=tuple(draw(st.sampled_from([0, 0, 1, 3, 8])) for _ in sentences),
    )


def check_independence(search: Search) -> None:
    """No sentence depends on its batch. search: of the sentences 4, 9, 2, 7, 4."""
    rows = search.run()
    assert rows == replace(search, sentences=[4, 7, 2, 9, 4]).run()[::-1]
    for sentence, row in zip(search.sentences, rows, strict=True):
        assert replace(search, sentences=[sentence], threads=1).run() == [row]


def check_fault(search: Search) -> None:
    """Broken logits are a fault of their sentence alone. search: of three sentences."""
    clean = search.run()
    broken = replace(search, broken=(1, 2))
    rows = broken.run()
    assert broken.kept["fault"].tolist() == [0, 2, 0]
    assert rows[0] == clean[0] and rows[2] == clean[2]
