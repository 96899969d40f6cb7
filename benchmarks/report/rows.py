"""Rows of measurements in results/: one dataclass for each kind that others compute with."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from decoding.compare.report.table import number

AnyRow = TypeVar("AnyRow")


@dataclass(frozen=True)
class Row:
    """One engine on one shape, with all conditions.

    p20, p50, p80: percentiles of whole calls divided by their steps. rate: new tokens a second.
    roofline_bound: the least that p50 could be on this machine; NaN without measured ceilings.
    megabytes, operations: bytes that such a step must move, and its millions of additions and
        multiplications. bound_by: the longest part of the bound, "memory", "arithmetic" or, on a
        GPU, "launches".
    bandwidth, flops, launch: the ceilings, GB/s and GFLOP/s, of the threads together, and on a GPU
        the microseconds of a dependent launch. nodes: of a step's CUDA graph.
    memory, loading: growth of the process's resident set, or of its share of the GPU's memory,
        while generating and while loading, MB.
    equal: sentences with the reference's tokens, as "8/8"; "" for samples.
    """

    what: str
    model: str
    shape: str
    provider: str
    version: str
    dtype: str
    isa: str
    threads: int
    repeats: int
    p20: float
    p50: float
    p80: float
    unit: str
    rate: float
    roofline_bound: float
    megabytes: float
    operations: float
    bound_by: str
    bandwidth: float
    flops: float
    launch: float
    nodes: int
    memory: float
    loading: float
    equal: str
    device: str
    flags: str
    commit: str
    date: str

    @property
    def roofline_share(self) -> float:
        """The bound divided by the median; above 1 where weights stay in cache between steps."""
        return self.roofline_bound / self.p50

    @property
    def run(self) -> tuple[str, float, float]:
        """Identifies the run of a row: the ceilings are measured once in it."""
        return self.commit, self.bandwidth, self.launch


@dataclass(frozen=True)
class KernelRow:
    """One provider on one case, with all conditions. Times are microseconds of a call.

    megabytes: bytes that a call must move; rate: those over p50, GB/s. operations: millions of
    additions, multiplications and the like. roofline_bound: the longest of moving the bytes at the
    speed of a copy (on a CPU of reading memory, or caches), of the operations at the speed of a
    large matrix product (of multiply-adds in registers), and of a dependent launch. bandwidth,
    flops, launch: those three ceilings, in GB/s, TFLOP/s and us, measured in the same run. error:
    largest difference to the reference over its largest number.
    """

    kernel: str
    shape: str
    provider: str
    version: str
    dtype: str
    isa: str
    threads: int
    repeats: int
    p20: float
    p50: float
    p80: float
    unit: str
    megabytes: float
    operations: float
    rate: float
    roofline_bound: float
    bandwidth: float
    flops: float
    launch: float
    error: float
    device: str
    flags: str
    commit: str
    date: str

    @property
    def roofline_share(self) -> float:
        return self.roofline_bound / self.p50

    @property
    def intensity(self) -> float:
        """Operations for each byte that must be moved."""
        return self.operations / self.megabytes


def write_rows(rows: Sequence[Any], path: Path) -> None:
    """rows: of one dataclass, one or more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        names = [field.name for field in fields(rows[0])]
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: rounded(value) for name, value in asdict(row).items()} for row in rows
        )


def show_and_write(rows: Iterable[Any], path: Path | None) -> None:
    """Prints each row as it comes, and writes them all to a file where one is named."""
    shown = []
    for row in rows:
        print(row, flush=True)
        shown.append(row)
    if path is not None:
        write_rows(shown, path)


def rounded(value: object) -> object:
    return f"{value:.5g}" if isinstance(value, float) else value


def read_rows(path: Path, kind: type[AnyRow]) -> list[AnyRow]:
    """The rows of a file that write_rows() wrote; a number that is not known is NaN, also where an
    older file lacks its column."""
    types: dict[str, Any] = {"str": str, "int": int, "float": lambda text: float(text or "nan")}
    names = {field.name: types[str(field.type)] for field in fields(kind)}  # type: ignore[arg-type]
    return [
        kind(**{name: convert(line.get(name, "")) for name, convert in names.items()})
        for line in read_lines(path)
    ]


def read_lines(path: Path) -> list[dict[str, str]]:
    """The rows as texts, by column."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def console(rows: Sequence[Row]) -> str:
    """One aligned line for each row; ours ends in how many times faster than each peer it is."""
    width = max((len(row.model) for row in rows), default=0)
    lines = []
    for row in rows:
        parts = [
            f"{row.what}  {row.dtype:8}  {row.model:{width}}  {row.shape:>5}  {row.provider:11}"
            f" {number(row.p50):>7} {row.unit} [{number(row.p20)} {number(row.p80)}]",
            f"{row.rate:7.1f} tok/s",
            f"roofline {number(row.roofline_bound)} = {row.roofline_share:4.0%}",
            f"memory {row.memory:5.0f} MB",
            *([f"{row.equal} equal"] if row.equal else []),
            *([f"{row.nodes} nodes"] if row.nodes else []),
            *(f"{ratio:5.2f}x {peer}" for peer, ratio in speedups(row, rows).items()),
        ]
        lines.append(" | ".join(parts))
    return "\n".join(lines)


def speedups(row: Row, rows: Iterable[Row]) -> dict[str, float]:
    """How many times faster `row`, one of ours, is than each peer on the same shape in the same
    type and run; nothing for a peer's row."""
    if row.provider != "ours":
        return {}
    same = [other for other in rows if key(other) == key(row)]
    return {other.provider: other.p50 / row.p50 for other in same if other.provider != "ours"}


def key(row: Row) -> tuple[object, ...]:
    """What the rows of one line of a table have in common."""
    return (row.what, row.run, row.model, row.shape, row.dtype)
