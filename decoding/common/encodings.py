"""Encodings of text that is cut at its newlines before it is decoded."""

from __future__ import annotations

import codecs

ERRORS = ("strict", "replace", "skip")  # what is done with bytes that are not in the encoding


def line_encoding(name: str) -> str:
    """Python's name of an encoding in which a line ends with the byte 0x0a. Raises ValueError for
    another, and where there is none of this name."""
    try:
        known = codecs.lookup(name).name
        splits = b"a\nb".decode(known) == "a\nb"
    except LookupError:
        raise ValueError(f"there is no encoding {name!r}") from None
    except UnicodeError:
        splits = False
    if not splits:
        raise ValueError(
            f"lines of {known} do not end with one byte: convert the text with iconv first"
        )
    return known
