"""What a model makes of the lines of an input, and how it is written."""

from __future__ import annotations

import argparse
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from decoding.cli.arguments import positive
from decoding.cli.records import Record
from decoding.cli.report import Report
from decoding.cli.writing import Sink, json_line
from decoding.common.signs import SIGNS, SPACES, replaced

if TYPE_CHECKING:
    from decoding.text.hypotheses import Hypothesis

    Results = Sequence[Hypothesis]  # of one record

WRITINGS: dict[str, Mapping[str, str]] = {"spaces": SPACES, "signs": SIGNS, "raw": {}}


def add_result_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--n-best", type=positive, default=1, metavar="N", help="lines `id ||| text ||| score`")
    add("--scores", action="store_true", help="write lines `text ||| score`")
    add("--unique", action="store_true", help="no text twice among the N best")


@dataclass(frozen=True)
class Layout:
    """How results become lines. key: of a result's text in JSON. writing: of the texts in other
    formats, one of WRITINGS."""

    format: str
    key: str
    n_best: bool
    scores: bool
    alignments: bool = False
    writing: str = "spaces"

    @classmethod
    def of(cls, args: argparse.Namespace, key: str, writing: str = "spaces") -> Layout:
        return cls(
            args.output_format or args.input_format,
            key,
            args.n_best > 1,
            args.scores or args.n_best > 1,
            getattr(args, "alignments", False),
            writing,
        )

    def lines(self, first: int, records: Sequence[Record], found: Sequence[Results]) -> str:
        """first: the number of the first record, from 0. found: of each record, best first; at
        least one."""
        if self.format == "json":
            return "".join(map(self._json, records, found))
        if self.format == "lines" and not self.scores and not self.alignments:
            return "".join([self._shown(results[0]) + "\n" for results in found])
        return "".join(
            self._row(number, record, result) + "\n"
            for number, (record, results) in enumerate(zip(records, found, strict=True), first)
            for result in results
        )

    def _row(self, number: int, record: Record, result: Hypothesis) -> str:
        cells = [self._shown(result)]
        if self.scores:
            cells.append(f"{result.score:.4f}")
        if self.alignments:
            cells.append(" ".join(f"{i}-{j}" for i, j in result.alignment))
        if self.format == "tsv":
            return "\t".join([*record.columns, *cells])
        return " ||| ".join([str(number), *cells] if self.n_best else cells)

    def _shown(self, result: Hypothesis) -> str:
        return replaced(result.text, WRITINGS[self.writing])

    def _json(self, record: Record, results: Results) -> str:
        found = [self._fields(result) for result in results]
        fields = {**record.fields, **found[0]}
        if self.n_best:
            fields["n_best"] = found
        return json_line(fields)

    def _fields(self, result: Hypothesis) -> dict[str, Any]:
        fields: dict[str, Any] = {self.key: result.text}
        if not math.isnan(result.score):
            fields["score"] = round(result.score, 6)
        fields["tokens"] = result.tokens
        if self.alignments:
            fields["alignment"] = [list(pair) for pair in result.alignment]
        return fields


def without_repeats(results: Results) -> list[Hypothesis]:
    """The first with each text."""
    first: dict[str, Hypothesis] = {}
    for result in results:
        first.setdefault(result.text, result)
    return list(first.values())


def write_results(
    groups: Iterable[Sequence[Results]],
    pending: deque[Record],
    sink: Sink,
    layout: Layout,
    report: Report,
) -> None:
    """Writes the results of pending records, group by group as they are there, and reports the
    tokens of the best."""
    count = 0
    for found in groups:
        with report.phases("writing"):
            records = [pending.popleft() for _ in found]
            sink.write(layout.lines(count, records, found))
            report.add(len(found), sum(results[0].tokens for results in found))
        count += len(found)
