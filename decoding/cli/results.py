"""What a model makes of the lines of an input, and how it is written."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from decoding.cli.arguments import positive
from decoding.cli.reading import Record
from decoding.cli.writing import Sink, json_line

SPACES = str.maketrans("\t\n\r", "   ")  # what would end a line or a column


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


@dataclass(frozen=True)
class Layout:
    """How results become lines. key: of a result's text in JSON. escaped: plain lines write a
    newline as \\\\n, and a backslash twice; else a newline becomes a space."""

    format: str
    key: str
    n_best: bool
    scores: bool
    escaped: bool = False

    @classmethod
    def of(cls, args: argparse.Namespace, key: str, escaped: bool = False) -> Layout:
        form = args.output_format or args.input_format
        return cls(form, key, args.n_best > 1, args.scores or args.n_best > 1, escaped)

    def lines(self, number: int, record: Record, results: Sequence[Result]) -> str:
        """number: of the record, from 0. results: of it, best first; at least one."""
        if self.format == "json":
            return self._json(record, results)
        return "".join(self._row(number, record, result) + "\n" for result in results)

    def _row(self, number: int, record: Record, result: Result) -> str:
        text = (
            result.text.replace("\\", "\\\\").replace("\n", "\\n") if self.escaped else result.text
        )
        cells = [text.translate(SPACES)]
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


def write_results(
    results: Iterable[Sequence[Result]],
    pending: deque[Record],
    sink: Sink,
    layout: Layout,
    total: int | None,
    progress: bool,
) -> int:
    """Writes the results of each pending record as soon as they are there; returns how many
    records there were. progress: shows it on standard error, with `total` as the end."""
    from tqdm import tqdm

    count = 0
    with tqdm(total=total, unit=" lines", file=sys.stderr, disable=not progress) as bar:
        for found in results:
            sink.write(layout.lines(count, pending.popleft(), found))
            bar.update()
            count += 1
    return count
