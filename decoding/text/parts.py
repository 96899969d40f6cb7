"""Lines cut into parts that the model can read, and parts in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from decoding.common.warn import warn
from decoding.generation.config import GenerationConfig
from decoding.text.lengths import Lengths
from decoding.text.prefixes import prompt_ids, start_ids
from decoding.text.splitting import split_text
from decoding.text.texts import checked
from decoding.text.tokenizers import Tokenizer, split_language_code


@dataclass(frozen=True, eq=False)  # told apart by identity: a line may occur twice
class Part:
    """A part of a line: all of it, unless it is too long for the model."""

    line: int  # counted from 1
    text: str
    ids: list[int]
    prompt: list[int]  # that the decoder begins with: the start token and the target's prefix


@dataclass(frozen=True)
class Cutter:
    """Cuts lines into parts, and groups these.

    batch_tokens: source tokens of a batch. aligned: words of the lines are asked for. truncate: a
    line that is too long loses its end.
    """

    tokenizer: Tokenizer
    config: GenerationConfig
    lengths: Lengths
    batch_tokens: int
    aligned: bool
    truncate: bool

    @cached_property
    def blank(self) -> list[int]:
        ids: list[int] = self.tokenizer.encode("")
        return ids

    def windows(
        self, lines: Iterable[tuple[str, str]], tokens: int, ready: Callable[[], bool]
    ) -> Iterator[list[list[Part]]]:
        """The parts of successive lines, `tokens` of them or a little more at a time."""
        window: list[list[Part]] = []
        size = 0
        for number, (line, prefix) in enumerate(lines, 1):
            window.append(self.cut(number, line, prefix))
            size += 1 + sum(len(part.ids) for part in window[-1])
            if size >= tokens or not ready():
                yield window
                window, size = [], 0
        if window:
            yield window

    def cut(self, number: int, line: str, prefix: str) -> list[Part]:
        encode = self.tokenizer.encode
        ids = encode(checked(f"line {number}", line))
        if not line.strip() or ids == self.blank:
            return []
        start = start_ids(self.config)
        prompt = prompt_ids(self.tokenizer, self.config, prefix) if prefix else start
        self.lengths.check_prompt(number, len(prompt))
        if prefix and self.aligned:
            raise ValueError("alignments and target_prefix do not go together: leave one out")
        if len(ids) <= self.lengths.source:
            return [Part(number, line, ids, prompt)]
        if self.truncate:
            return [Part(number, line, self._truncated(number, line, len(ids)), prompt)]
        code, text = split_language_code(line)  # every part needs it
        texts = split_text(text, lambda part: len(encode(code + part)) <= self.lengths.source)
        some = [code + part for part in texts if part.strip()]
        parts = [Part(number, part, encode(part), start) for part in some]
        parts[0] = replace(parts[0], prompt=prompt)
        warn(
            f"line {number} has {len(ids)} tokens, too many for this model: it is translated in "
            f"{len(parts)} parts of at most {self.lengths.source}"
        )
        return parts

    def _truncated(self, number: int, line: str, tokens: int) -> list[int]:
        most = self.lengths.source
        warn(f"line {number} has {tokens} tokens, too many for this model: it is cut to {most}")
        ids: list[int] = self.tokenizer.encode(line, truncation=True, max_length=most)
        return ids

    def batches(self, parts: list[Part]) -> Iterator[list[Part]]:
        """Groups of about equal lengths, longest first so that memory grows only once."""
        batch: list[Part] = []
        tokens = 0
        for part in sorted(parts, key=lambda part: len(part.ids), reverse=True):
            full = tokens + len(part.ids) > self.batch_tokens
            # One call has one length limit, and a line's limit must not depend on its neighbours.
            if batch and (full or self.max_new(part) != self.max_new(batch[0])):
                yield batch
                batch, tokens = [], 0
            batch.append(part)
            tokens += len(part.ids)
        if batch:
            yield batch

    def max_new(self, part: Part) -> int | None:
        return self.lengths.max_new_tokens(len(part.ids), len(part.prompt))
