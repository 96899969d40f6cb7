"""Items that come in lists, in chunks of so many characters."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from decoding.common.phases import Phases
from decoding.text.chunks import CHARACTERS, Chunks, Incoming

LISTS = st.lists(st.lists(st.text("a", max_size=5), min_size=1, max_size=6), max_size=6)


@given(LISTS, st.integers(0, 12), st.data())
def test_chunks_have_as_many_characters(
    lists: list[list[str]], most: int, data: st.DataObject
) -> None:
    """Or a little more; or all that is there, where no other list is."""
    came, waits = list[str](), list[bool]()

    def coming() -> Iterator[list[str]]:
        for items in lists:
            came.extend(items)
            yield items

    def ready() -> bool:
        waits.append(data.draw(st.booleans()))
        return waits[-1]

    incoming, taken = Incoming(coming(), len, ready), list[str]()
    while chunk := incoming.take(most):
        taken += chunk
        enough = sum(1 + len(item) for item in chunk) >= most
        assert sum(1 + len(item) for item in chunk[:-1]) < max(most, 1)
        ended = len(came) == sum(map(len, lists))
        assert enough or (taken == came and (not waits[-1] or ended))
    assert taken == [item for items in lists for item in items]


def test_what_is_left_of_a_list_is_there() -> None:
    incoming = Incoming(iter([["a", "b"], ["c"]]), len, lambda: False)
    assert incoming.take(2) == ["a"] and incoming.ready()
    assert incoming.take(2) == ["b"] and not incoming.ready()
    assert incoming.take(9) == ["c"] and incoming.take(9) == []


def test_chunks_are_ready_until_what_was_read_is_given() -> None:
    lists = iter([["a"] * (CHARACTERS + 1), ["b"]])
    chunks = Chunks(lists, len, 1, lambda items: items, lambda: False, Phases())
    given = [(item, chunks.ready()) for item in chunks]
    assert given == [("a", True)] * CHARACTERS + [("a", False), ("b", False)]
