"""What results/ holds; its rows of whole calls as the runs that a comparison's report shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cases.workloads import SOURCE, STEPS, Shape
from benchmarks.report.rows import KernelRow, Row, read_rows
from decoding.compare.report.facets import Facet
from decoding.compare.report.styles import ordered, style
from decoding.compare.report.table import listed
from decoding.compare.results import Ceilings, Machine, Run

MODELS = {  # for people
    "marian-base": "Transformer-base",
    "marian-big": "Transformer-big",
    "gpt2-124M": "GPT-2 124M",
}


@dataclass(frozen=True)
class Results:
    """Rows by the name of their file; folder: where other files lie (views.py)."""

    folder: Path
    calls: dict[str, list[Row]]
    kernels: dict[str, list[KernelRow]]

    @classmethod
    def read(cls, folder: Path) -> Results:
        calls, kernels = (sorted(folder.glob(f"{kind}-*.csv")) for kind in ("generate", "kernels"))
        return cls(
            folder,
            {path.stem: read_rows(path, Row) for path in calls},
            {path.stem: read_rows(path, KernelRow) for path in kernels},
        )


def read_facets(rows: Sequence[Row]) -> list[Facet]:
    """One for each model, type and kind of search of each run: only engines of one run are side by
    side. A title that is taken names the peers instead of the type."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.run, row.model, row.dtype, is_sampled(row)), []).append(row)
    facets: dict[str, Facet] = {}
    for group in groups.values():
        model, sampled = MODELS.get(group[0].model, group[0].model), is_sampled(group[0])
        kind = " sampling" * sampled
        title = f"{model} {group[0].dtype}{kind}"
        if title in facets:
            peers = ordered(row.provider for row in group)[:-1]
            title = f"{model}{kind} beside {listed([style(peer).name for peer in peers])}"
        facets[title] = Facet(title, [run(row) for row in group], sampled)
    return list(facets.values())


def is_sampled(row: Row) -> bool:
    return Shape.parse(row.shape).sample


def run(row: Row) -> Run:
    shape = Shape.parse(row.shape)
    # Less than the model takes: another engine gave memory of the GPU back meanwhile.
    gave_back = row.threads == 0 and row.memory < row.loading
    return Run(
        engine=row.provider,
        version=row.version,
        isa=row.isa,
        dtype=row.dtype,
        device="cpu" if row.threads else "cuda",
        batch=shape.batch,
        beams=shape.beams,
        length=STEPS,
        source=SOURCE * shape.batch,
        p20=row.p20,
        p50=row.p50,
        p80=row.p80,
        rate=row.rate,
        memory=math.nan if gave_back else row.memory,
        loading=row.loading,
        roofline_bound=row.roofline_bound,
        bytes=1e6 * row.megabytes,
        flops=1e6 * row.operations,
        bound_by=row.bound_by,
        nodes=row.nodes,
    )


def read_machines(rows: Sequence[Row]) -> list[Machine]:
    """One for each run, with the ceilings that it measured."""
    machines = []
    for one in dict.fromkeys(row.run for row in rows):
        same = [row for row in rows if row.run == one]
        ceilings = {
            row.dtype: Ceilings(1e9 * row.bandwidth, 1e9 * row.flops, launch=row.launch / 1e6)
            for row in same
        }
        machines.append(replace(machine(same[0]), ceilings=ceilings))
    return machines


def machine(row: Row | KernelRow) -> Machine:
    """Without ceilings."""
    return Machine(row.device, row.flags, row.threads, row.commit, row.date, {})


def same_tokens(rows: Sequence[Row]) -> str:
    """How many sentences of each engine in each type have the tokens of the first, the reference,
    where that was in the run; as a sentence."""
    first = rows[0]
    there = {(r.run, r.model, r.shape) for r in rows if r.provider == first.provider}
    found: dict[str, list[int]] = {}
    for row in rows:
        if row.equal and (row.run, row.model, row.shape) in there:
            counts = found.setdefault(f"{style(row.provider).name} {row.dtype}", [0, 0])
            for i, count in enumerate(row.equal.split("/")):
                counts[i] += int(count)
    reference, *others = found
    said = [f"{who} {found[who][0]} of {found[who][1]}" for who in others]
    return f"So many sentences of random weights have the tokens of {reference}: {listed(said)}."
