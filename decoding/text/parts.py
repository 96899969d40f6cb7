"""Lines cut into parts that the model can read, and parts in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from decoding.common.arrays import Array
from decoding.common.phases import Phases
from decoding.generation.config import GenerationConfig
from decoding.text.chunks import CHARACTERS, Incoming
from decoding.text.lengths import Lengths
from decoding.text.prefixes import Line, prompt_ids, start_ids
from decoding.text.rows import Rows
from decoding.text.splitting import split_text
from decoding.text.texts import checked
from decoding.text.tokenizers import Tokenizer, split_language_code


@dataclass(frozen=True, eq=False)
class Window:
    """Successive lines and their parts, in order. A part is all of a line, unless that is too long
    for the model; a blank line has none.

    first: the number of the first line, from 1. ends: of each line, how many parts there are up to
    its end. max_new: tokens that each part's translation may have. prompts: what the decoder begins
    with, of each part: the start token and the target's prefix. warnings: to be given by the
    caller's thread.
    """

    first: int
    ends: list[int]
    texts: list[str]
    parts: Rows
    prompts: list[list[int]]
    max_new: Array  # int64 [P]
    warnings: list[str]

    def batches(self, tokens: int) -> Iterator[Array]:
        """Groups of parts of about equal lengths, int64 [n] each, of so many source tokens
        together; longest first so that memory grows only once."""
        lengths = self.parts.lengths
        order = (-lengths).argsort(kind="stable")
        sums = lengths[order].cumsum()
        begin = before = 0
        while begin < len(order):
            end = max(int(np.searchsorted(sums, before + tokens, "right")), begin + 1)
            yield order[begin:end]
            begin, before = end, int(sums[end - 1])


@dataclass
class Cutter:
    """Cuts lines into parts.

    aligned: words of the lines are asked for. truncate: a line that is too long loses its end.
    """

    tokenizer: Tokenizer
    config: GenerationConfig
    lengths: Lengths
    aligned: bool
    truncate: bool
    phases: Phases

    @cached_property
    def start(self) -> list[int]:
        return start_ids(self.config)

    @cached_property
    def blank(self) -> list[int]:
        """The ids of no text."""
        ids: list[int] = self.tokenizer.encode("")
        return ids

    def windows(
        self, lists: Iterable[list[Line]], tokens: int, ready: Callable[[], bool]
    ) -> Iterator[Window]:
        """Windows of successive lines, of about `tokens` source tokens each.

        All lines of one are cut at once, so it is as many characters as so many tokens had before.
        lists, ready: as of Incoming.
        """
        lines, first = Incoming(lists, width, ready), 1
        characters, seen = CHARACTERS, 1
        while True:
            with self.phases("reading"):
                chunk = lines.take(tokens * characters / seen)
            if not chunk:
                return
            with self.phases("encoding"):
                window = self.cut(first, chunk)
            yield window
            first += len(chunk)
            characters += len(chunk) + sum(map(width, chunk))
            seen += len(window.parts.ids)

    def cut(self, first: int, lines: Sequence[Line]) -> Window:
        """first: the number of the first line."""
        given = [line.text for line in lines]
        check(first, given)
        if len(lines) == 1 and (window := self._one_part(first, lines)):
            return window
        rows = self.tokenizer.encode_batch(given)
        owners = np.flatnonzero(self._with_text(given, rows))  # the line of each part
        parts = rows if len(owners) == len(given) else rows.select(owners)
        texts, warnings = [given[i] for i in owners], list[str]()
        if (parts.lengths > self.lengths.source).any():
            owners, texts, parts, warnings = self._divided(first, owners, texts, parts)
        prompts = self._prompts(first, lines, owners.tolist())
        limits = map(self.lengths.max_new_tokens, parts.lengths.tolist(), map(len, prompts))
        own = (lines[owner].max_new_tokens for owner in owners.tolist())
        max_new = np.array([a or b for a, b in zip(own, limits, strict=True)], np.int64)
        ends = np.searchsorted(owners, np.arange(len(lines)), "right").tolist()
        return Window(first, ends, texts, parts, prompts, max_new, warnings)

    def _one_part(self, first: int, lines: Sequence[Line]) -> Window | None:
        """The window of one line, as servers have them, in a third of the time; None where it is
        blank or too long."""
        [line] = lines
        ids = self.tokenizer.encode(line.text)
        if not line.text.strip() or ids == self.blank or len(ids) > self.lengths.source:
            return None
        [prompt] = prompts = self._prompts(first, lines, [0])
        limit = line.max_new_tokens or self.lengths.max_new_tokens(len(ids), len(prompt))
        return Window(first, [1], [line.text], Rows.of([ids]), prompts, np.array([limit]), [])

    def _with_text(self, lines: Sequence[str], rows: Rows) -> Array:
        """bool, of each line whether the model is given anything."""
        found = np.array([bool(line.strip()) for line in lines])
        for i in np.flatnonzero(found & (rows.lengths == len(self.blank))):
            found[i] = rows.ids[rows.offsets[i] : rows.offsets[i + 1]].tolist() != self.blank
        return found

    def _divided(
        self, first: int, owners: Array, texts: Sequence[str], parts: Rows
    ) -> tuple[Array, list[str], Rows, list[str]]:
        """Parts that fit, the texts of lines being given, with their lines and a warning for each
        line that did not fit."""
        found, warnings = list[tuple[int, str, list[int]]](), list[str]()
        for owner, text, ids in zip(owners.tolist(), texts, parts.lists(), strict=True):
            if len(ids) <= self.lengths.source:
                found.append((owner, text, ids))
                continue
            some = self._truncated(text) if self.truncate else self._split(text)
            found += [(owner, part, own) for part, own in some]
            said = f"line {first + owner} has {len(ids)} tokens, too many for this model: it is "
            most = self.lengths.source
            warnings.append(
                said + f"cut to {most}"
                if self.truncate
                else said + f"translated in {len(some)} parts of at most {most}"
            )
        lines, divided, rows = zip(*found, strict=True)
        return np.array(lines), list(divided), Rows.of(rows), warnings

    def _truncated(self, line: str) -> list[tuple[str, list[int]]]:
        most = self.lengths.source
        return [(line, self.tokenizer.encode(line, truncation=True, max_length=most))]

    def _split(self, line: str) -> list[tuple[str, list[int]]]:
        encode = self.tokenizer.encode
        code, text = language_code(self.tokenizer, line)  # every part needs it
        texts = split_text(text, lambda part: len(encode(code + part)) <= self.lengths.source)
        return [(code + part, encode(code + part)) for part in texts if part.strip()]

    def _prompts(self, first: int, lines: Sequence[Line], owners: Sequence[int]) -> list[list[int]]:
        """What the decoder begins with, of each part: only the first of a line has its prefix."""
        prompts = [self.start] * len(owners)
        self.lengths.check_prompt(first, len(self.start))
        for part, owner in enumerate(owners):
            prefix = lines[owner].target_prefix
            if prefix and (part == 0 or owners[part - 1] != owner):
                checked(f"line {first + owner}: target_prefix", prefix)
                prompts[part] = prompt_ids(self.tokenizer, self.config, prefix)
                self.lengths.check_prompt(first + owner, len(prompts[part]))
        if self.aligned and any(line.target_prefix for line in lines):
            raise ValueError("alignments and target_prefix do not go together: leave one out")
        return prompts


def language_code(tokenizer: Tokenizer, line: str) -> tuple[str, str]:
    """The code at a line's beginning, where the model has it, and what is behind it: of other
    models `>>Ja<<` is a quotation."""
    code, rest = split_language_code(line)
    return (code, rest) if code and code in tokenizer.get_vocab() else ("", line)


def width(line: Line) -> int:
    return len(line.text)


def check(first: int, lines: Sequence[str]) -> None:
    """Raises as `checked`, with the number of the line."""
    try:
        "".join(lines).encode()
    except (TypeError, UnicodeEncodeError):
        for number, line in enumerate(lines, first):
            checked(f"line {number}", line)
