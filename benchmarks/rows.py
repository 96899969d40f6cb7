"""Rows of measurements: as CSV, as lines for the console, as tables for a README.

`python -m benchmarks.report benchmarks/results/generate-cpu.csv` prints the table of a file.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """One engine on one shape, with all conditions.

    p20, p50, p80: percentiles of whole calls divided by their steps. rate: new tokens a second.
    floor: the least that p50 could be on this machine; NaN if its ceilings were not measured.
    bandwidth, flops, stage: those ceilings, GB/s and GFLOP/s, of the threads together, and on a GPU
        the microseconds between two dependent kernels. nodes: of the graph that a step is there.
    memory, loading: growth of the process's resident set, or of what it holds of the GPU's memory,
        while generating and while loading, MB.
    equal: sentences with the reference's tokens, as "8/8"; of what is drawn, nothing.
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
    floor: float
    bandwidth: float
    flops: float
    stage: float
    nodes: int
    memory: float
    loading: float
    equal: str
    device: str
    flags: str
    commit: str
    date: str

    @property
    def of_floor(self) -> float:
        """The floor's share of the time; above 1 where weights stay in cache between steps."""
        return self.floor / self.p50


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


def rounded(value: object) -> object:
    return f"{value:.5g}" if isinstance(value, float) else value


def read_rows(path: Path) -> list[Row]:
    """The rows of a file that write_rows() wrote."""
    types = {"str": str, "int": int, "float": float}
    with path.open(newline="") as file:
        return [
            Row(**{field.name: types[str(field.type)](line[field.name]) for field in fields(Row)})
            for line in csv.DictReader(file)
        ]


def console(rows: Sequence[Row]) -> str:
    """One aligned line for each row; ours ends in how many times faster than each peer it is."""
    width = max((len(row.model) for row in rows), default=0)
    lines = []
    for row in rows:
        parts = [
            f"{row.what}  {row.dtype:8}  {row.model:{width}}  {row.shape:>5}  {row.provider:11}"
            f" {number(row.p50):>7} {row.unit} [{number(row.p20)} {number(row.p80)}]",
            f"{row.rate:7.1f} tok/s",
            f"floor {number(row.floor)} = {row.of_floor:4.0%}",
            f"memory {row.memory:5.0f} MB",
            *([f"{row.equal} equal"] if row.equal else []),
            *([f"{row.nodes} nodes"] if row.nodes else []),
            *(f"{ratio:5.2f}x {peer}" for peer, ratio in speedups(row, rows).items()),
        ]
        lines.append(" | ".join(parts))
    return "\n".join(lines)


def speedups(row: Row, rows: Iterable[Row]) -> dict[str, float]:
    """How many times faster `row` is than each peer on the same shape, in the same type; nothing
    for a peer's row."""
    if row.provider != "ours":
        return {}
    same = [r for r in rows if (r.what, *key(r)) == (row.what, *key(row))]
    return {r.provider: r.p50 / row.p50 for r in same if r.provider != row.provider}


def key(row: Row) -> tuple[str, str, str]:
    """What the rows of one line of a table have in common."""
    return (row.model, row.shape, row.dtype)


def number(milliseconds: float) -> str:
    """Three digits."""
    if not milliseconds > 0:
        return "-"
    return f"{milliseconds:.{max(0, 2 - math.floor(math.log10(milliseconds)))}f}"


def markdown(rows: Sequence[Row]) -> str:
    """A table with a line for each shape in each type, and the conditions below it."""
    providers = list(dict.fromkeys(row.provider for row in rows))
    peers = [name for name in providers if name != "ours"]
    ours = len(peers) < len(providers)
    head = [rows[0].unit, "floor", *providers]
    if ours:
        head += ["floor / ours", *(f"x {peer}" for peer in peers)]
    head += [f"MB {name}" for name in providers]
    lines = [head, ["---"] * len(head)]
    for line_of in dict.fromkeys(map(key, rows)):
        cell = {row.provider: row for row in rows if key(row) == line_of}
        line = [" ".join(line_of), number(next(iter(cell.values())).floor)]
        line += [number(cell[name].p50) if name in cell else "-" for name in providers]
        if ours and "ours" in cell:
            ratios = speedups(cell["ours"], cell.values())
            line.append(f"{cell['ours'].of_floor:.0%}")
            line += [f"{ratios[peer]:.2f}" if peer in ratios else "-" for peer in peers]
        elif ours:
            line += ["-"] * (1 + len(peers))
        line += [f"{cell[name].memory:.0f}" if name in cell else "-" for name in providers]
        lines.append(line)
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{conditions(rows)}"


def conditions(rows: Sequence[Row]) -> str:
    """What all rows have in common, in two sentences."""
    row = rows[0]
    versions = dict.fromkeys(f"{r.version} ({r.isa})" if r.isa else r.version for r in rows)
    threads = f", {row.threads} threads" if row.threads else ""
    stage = f", {row.stage:.2f} us a stage" if row.stage else ""
    flops = ", ".join(
        f"{dtype} {flops:.0f}" for dtype, flops in {r.dtype: r.flops for r in rows}.items()
    )
    return (
        f"Median of {row.repeats} interleaved calls or more{threads}; "
        f"{row.device} ({row.flags}), {row.bandwidth:.0f} GB/s, {flops} GFLOP/s{stage}; "
        f"{'; '.join(versions)}; commit {row.commit}, {row.date}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("file", type=Path)
    print(markdown(read_rows(parser.parse_args().file)))


if __name__ == "__main__":
    main()
