"""What a model makes of the lines of an input, and how it is written."""

from __future__ import annotations

import argparse
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decoding.cli.arguments import positive
from decoding.cli.records import Record
from decoding.cli.writing import Sink, json_line

if TYPE_CHECKING:
    from decoding.text.hypotheses import Hypothesis

# What would end a line or a column, as a space or as signs that can be read back.
SPACES = str.maketrans("\t\n\r", "   ")
SIGNS: dict[str, str | int | None] = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
WRITINGS: dict[str, Callable[[str], str]] = {
    "spaces": lambda text: text.translate(SPACES),
    "signs": lambda text: text.translate(str.maketrans(SIGNS)),
    "raw": lambda text: text,
}


def add_result_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--n-best", type=positive, default=1, metavar="N", help="lines `id ||| text ||| score`")
    add("--scores", action="store_true", help="write lines `text ||| score`")
    add("--unique", action="store_true", help="no text twice among the N best")


@dataclass(frozen=True)
class Result:
    """What a model made of a record; score: None where there is none. more: JSON's other keys and
    the plain forms of their values."""

    text: str
    score: float | None
    tokens: int
    more: dict[str, tuple[Any, str]]


EMPTY = Result("", 0.0, 0, {})  # of an empty line


@dataclass(frozen=True)
class Layout:
    """How results become lines. key: of a result's text in JSON. writing: of the texts in other
    formats, one of WRITINGS."""

    format: str
    key: str
    n_best: bool
    scores: bool
    writing: str = "spaces"

    @classmethod
    def of(cls, args: argparse.Namespace, key: str, writing: str = "spaces") -> Layout:
        form = args.output_format or args.input_format
        return cls(form, key, args.n_best > 1, args.scores or args.n_best > 1, writing)

    def lines(self, number: int, record: Record, results: Sequence[Result]) -> str:
        """number: of the record, from 0. results: of it, best first; at least one."""
        if self.format == "json":
            return self._json(record, results)
        return "".join(self._row(number, record, result) + "\n" for result in results)

    def _row(self, number: int, record: Record, result: Result) -> str:
        cells = [WRITINGS[self.writing](result.text)]
        if self.scores:
            cells.append(f"{result.score:.4f}")
        cells += [plain for _, plain in result.more.values()]
        if self.format == "tsv":
            return "\t".join([*record.columns, *cells])
        return " ||| ".join([str(number), *cells] if self.n_best else cells)

    def _json(self, record: Record, results: Sequence[Result]) -> str:
        found = [self._fields(result) for result in results]
        fields = {**record.fields, **found[0]}
        if self.n_best:
            fields["n_best"] = found
        return json_line(fields)

    def _fields(self, result: Result) -> dict[str, Any]:
        fields: dict[str, Any] = {self.key: result.text}
        if result.score is not None:
            fields["score"] = round(result.score, 6)
        return {
            **fields,
            "tokens": result.tokens,
            **{name: value for name, (value, _) in result.more.items()},
        }


def without_repeats(results: Iterable[Result]) -> list[Result]:
    """The first with each text."""
    first: dict[str, Result] = {}
    for result in results:
        first.setdefault(result.text, result)
    return list(first.values())


def as_result(one: Hypothesis, more: dict[str, tuple[Any, str]] | None = None) -> Result:
    score = None if math.isnan(one.score) else one.score
    return Result(one.text, score, one.tokens, more or {})


def write_results(
    results: Iterable[Sequence[Result]],
    pending: deque[Record],
    sink: Sink,
    layout: Layout,
    total: int | None,
    progress: bool,
) -> tuple[int, int]:
    """Writes the results of each pending record as soon as they are there. Returns how many records
    there were, and the tokens of their best results. progress: shows it on standard error, with
    `total` as the end."""
    from tqdm import tqdm

    count = tokens = 0
    with tqdm(total=total, unit=" lines", file=sys.stderr, disable=not progress) as bar:
        for found in results:
            sink.write(layout.lines(count, pending.popleft(), found))
            bar.update()
            count, tokens = count + 1, tokens + found[0].tokens
    return count, tokens
