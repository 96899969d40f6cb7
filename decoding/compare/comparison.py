"""A whole comparison: answers first, then times, over a grid."""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

from decoding.compare.checks import Answers, answers, check, failed, given_of
from decoding.compare.engines import Contender, Engine, Settings
from decoding.compare.environment import environment
from decoding.compare.lineup import Lineup
from decoding.compare.results import Ceilings, Check, Comparison, Machine
from decoding.compare.roofline import measure as measure_cpu
from decoding.compare.roofline import measure_gpu
from decoding.compare.runs import Batch, Point, measure
from decoding.compare.task import Search, Task
from decoding.compare.text import Text
from decoding.compare.worker import Allowance

LOAD = 0.5  # average of running processes above which times are noise


@dataclass(frozen=True)
class Plan:
    """What is compared on what.

    batch, beams, lengths, dtypes, devices: the grid; a length is one of new tokens of a row.
    tokenisation: whether timed calls are given and return texts, "in", or ids, "out".
    """

    name: str
    task: Task
    text: Text
    engines: Sequence[type[Engine]]
    batch: Sequence[int]
    beams: Sequence[int]
    lengths: Sequence[int]
    dtypes: Sequence[str]
    devices: Sequence[str]
    threads: int
    tokenisation: str = "out"
    rounds: int = 5
    allowance: Allowance = Allowance()

    def contenders(self, device: str) -> list[list[Contender]]:
        """Those of each type. The reference's comes first: Hugging Face, in float32."""
        dtypes = sorted(self.dtypes, key=lambda dtype: dtype != "float32")
        engines = sorted(self.engines, key=lambda engine: engine.name != "huggingface")
        groups = [
            [
                Contender(engine, Settings(device, dtype, self.threads))
                for engine in engines
                if dtype in engine.dtypes[device]
            ]
            for dtype in dtypes
        ]
        return [group for group in groups if group]

    @property
    def findings(self) -> int:
        """How many comparisons compare() yields."""
        groups = sum(len(self.contenders(device)) for device in self.devices)
        points = len(self.batch) * len(self.lengths)
        return len(self.devices) + groups * len(self.beams) * (1 + points) + 1

    @property
    def as_text(self) -> bool:
        return self.tokenisation == "in"

    def first_lines(self, size: int) -> Batch:
        """As many of the text, over again where there are fewer."""
        places = self.text.batch(size)
        given = given_of(self.text, places, self.as_text)
        return Batch(given, [len(self.text.ids[i]) for i in places])

    @property
    def longest_answer(self) -> int:
        """New tokens of a row in the check at most: what `decoding translate` allows the longest
        line, or a prompt's continuation in the times."""
        if not self.task.has_encoder:
            return max(self.lengths)
        longest = 2 * max(map(len, self.text.ids)) + 50
        return min(longest, self.task.spec.decoder.positions) - 1


def compare(plan: Plan) -> Iterator[Comparison]:
    """The comparison as far as it is, after each finding; `finished` at last.

    Engines that fail have rows that say why. Warns about what makes times doubtful.
    """
    found = Comparison(
        plan.name, plan.text.name, plan.tokenisation, plan.rounds, {}, finished=False
    )
    references: dict[int, Answers] = {}
    for device in plan.devices:
        machine = machine_of(device, plan.dtypes, plan.threads)
        found = replace(found, machines={**found.machines, device: machine})
        yield found
        for contenders in plan.contenders(device):
            with Lineup(plan.task, contenders, plan.allowance, text=plan.as_text) as lineup:
                found = yield from side_by_side(lineup, plan, found, references)
    yield replace(found, finished=True)


def side_by_side(
    lineup: Lineup, plan: Plan, found: Comparison, references: dict[int, Answers]
) -> Generator[Comparison, None, Comparison]:
    """`found` with the answers of these, then with their times; returns the last."""
    for beams in plan.beams:
        checks = checked(lineup, plan, beams, references)
        found = replace(found, checks=(*found.checks, *checks))
        yield found
    ceilings = found.machines[lineup.device].ceilings
    for beams, size, length in itertools.product(plan.beams, plan.batch, plan.lengths):
        point = Point(size, beams, length)
        runs, _ = measure(lineup, point, plan.first_lines(size), ceilings, plan.rounds)
        found = replace(found, runs=(*found.runs, *runs))
        yield found
    return found


def checked(lineup: Lineup, plan: Plan, beams: int, references: dict[int, Answers]) -> list[Check]:
    """references: by beams, the answers of who answered first; added where they are missing."""
    search = Search(beams, most=plan.longest_answer, scores=True)
    found = answers(lineup, plan.text, search)
    for answer in found.values():
        references.setdefault(beams, answer)
    tokenizer = plan.task.load_tokenizer()
    return [
        check(contender, beams, found[contender], references[beams], plan.text, tokenizer)
        if contender in found
        else failed(contender, beams, lineup.reasons[contender])
        for contender in lineup.contenders
    ]


def machine_of(device: str, dtypes: Sequence[str], threads: int) -> Machine:
    """Measures the ceilings, in some seconds."""
    where = environment(device)
    if device == "cpu":
        if os.getloadavg()[0] > LOAD:
            load = f"{os.getloadavg()[0]:.1f}"
            warnings.warn(f"the machine is not idle (load {load}): times are noise", stacklevel=2)
        ceilings = measure_cpu(threads)
        if math.isnan(ceilings["float32"].bandwidth):
            warnings.warn("no C compiler (cc): the machine's limits are unknown", stacklevel=2)
    else:
        ceilings = gpu_ceilings(dtypes, device)
    return Machine(
        name=where.device,
        flags=where.flags,
        threads=threads if device == "cpu" else 0,
        commit=where.commit,
        date=where.date,
        ceilings={dtype: ceilings[dtype] for dtype in dtypes if dtype in ceilings},
    )


def gpu_ceilings(dtypes: Sequence[str], device: str) -> dict[str, Ceilings]:
    """Of the types that have any there."""
    import torch

    return {
        dtype: measure_gpu(getattr(torch, dtype), device) for dtype in dtypes if "float" in dtype
    }
