"""A result that is being written: its tokens, its text up to a stop string, and its pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from decoding.server.openai.logprobs import TokenLogprobs, shown
from decoding.text.stream_text import TextStream


class StopStrings:
    """Text up to the first of some strings. Whatever parts it comes in, the same is let through:
    up to the string that ends first, and of those that end there up to the longest."""

    def __init__(self, strings: Sequence[str], include: bool) -> None:
        """include: let the string itself through, too."""
        self._strings, self._longest = strings, max(map(len, strings), default=0)
        self._include, self._held, self.found = include, "", False

    def add(self, text: str) -> str:
        """What of it, and of what was held back, no string can begin in."""
        if not self._strings:
            return text
        if self.found:
            return ""
        held = self._held + text
        ends = [(at + len(s), -len(s)) for s in self._strings if (at := held.find(s)) >= 0]
        if ends:
            self.found, self._held = True, ""
            end, length = min(ends)
            return held[: end if self._include else end + length]
        first = max(0, len(held) - self._longest + 1)
        at = next(i for i in range(first, len(held) + 1) if self._may_begin(held[i:]))
        self._held = held[at:]
        return held[:at]

    def rest(self) -> str:
        """What was held back, where no more text comes."""
        rest, self._held = self._held, ""
        return rest

    def _may_begin(self, text: str) -> bool:
        return any(string.startswith(text) for string in self._strings)


@dataclass(frozen=True)
class Piece:
    """New text of a choice. logprobs: of its tokens that no piece had before, where they are asked
    for. at: characters of the choice's text before these tokens. finish: why the choice ended, in
    its last piece; else None."""

    choice: Choice
    text: str
    logprobs: Sequence[TokenLogprobs]
    at: int
    finish: str | None


@dataclass(eq=False)
class Choice:
    """A result that is being written.

    waiting: its text that is certain, and that no piece has had. read: of the prompt's tokens and
    its own, together, those before the first whose log-probability is yet to be found. logprobs:
    that were found, and that no piece has had. at: as Piece has it. ids: so far. finish: why it
    ended, None before.
    """

    index: int
    text: TextStream
    stops: StopStrings
    waiting: str
    read: int
    logprobs: list[TokenLogprobs]
    at: int
    ids: list[int] = field(default_factory=list)
    finish: str | None = None

    def add(self, new: Sequence[int]) -> None:
        if new:
            self.ids += new
            self.waiting += self.stops.add(self.text.add(new))

    def end(self, last: Sequence[int], ends: Sequence[int], most: int) -> None:
        """last: ids that come now. ends: those that end a text; most: that it may have."""
        self.ids += last
        self.waiting += self.stops.add(self.text.rest(last)) + self.stops.rest()
        ended = self.stops.found or len(self.ids) < most or self.ids[-1] in ends
        self.finish = "stop" if ended else "length"

    def piece(self) -> Piece:
        """What no piece has had."""
        piece = Piece(self, self.waiting, self.logprobs, self.at, self.finish)
        self.at += sum(len(shown(each.text)) for each in self.logprobs)
        self.waiting, self.logprobs = "", []
        return piece
