"""Runs a whole comparison: answers first, then times, over a grid."""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

from decoding.compare.checks import Answers, answers, check, failed, given_of
from decoding.compare.engine_pool import EnginePool
from decoding.compare.engines import Engine, EngineConfig, Settings
from decoding.compare.environment import environment
from decoding.compare.results import Ceilings, Check, Comparison, Machine
from decoding.compare.roofline import measure as measure_cpu
from decoding.compare.roofline import measure_gpu
from decoding.compare.runs import Batch, Point, measure
from decoding.compare.task import Search, Task
from decoding.compare.text import Text
from decoding.compare.worker import ResourceLimits

LOAD = 0.5  # average of running processes above which times are noise


@dataclass(frozen=True)
class Plan:
    """The engines, the text and the grid of a comparison.

    batch, beams, lengths, dtypes, devices: the grid; a length is a number of new tokens of a row.
    tokenisation: "in" where timed calls take and return texts, "out" where they do ids.
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
    limits: ResourceLimits = ResourceLimits()

    def configs(self, device: str) -> list[list[EngineConfig]]:
        """The engines of each type. The reference's group, Hugging Face's in float32, is first."""
        dtypes = sorted(self.dtypes, key=lambda dtype: dtype != "float32")
        engines = sorted(self.engines, key=lambda engine: engine.name != "huggingface")
        groups = [
            [
                EngineConfig(engine, Settings(device, dtype, self.threads))
                for engine in engines
                if dtype in engine.dtypes[device]
            ]
            for dtype in dtypes
        ]
        return [group for group in groups if group]

    @property
    def findings(self) -> int:
        """The number of comparisons that compare() yields."""
        groups = sum(len(self.configs(device)) for device in self.devices)
        points = len(self.batch) * len(self.lengths)
        return len(self.devices) + groups * len(self.beams) * (1 + points) + 1

    @property
    def as_text(self) -> bool:
        return self.tokenisation == "in"

    def first_lines(self, size: int) -> Batch:
        """A batch of the text's first `size` lines, repeated where it has fewer."""
        places = self.text.batch(size)
        given = given_of(self.text, places, self.as_text)
        return Batch(given, [len(self.text.ids[i]) for i in places])

    @property
    def longest_answer(self) -> int:
        """The most new tokens of a row in the check: those that `decoding translate` allows the
        longest line, or for prompts those of the timed calls."""
        if not self.task.has_encoder:
            return max(self.lengths)
        longest = 2 * max(map(len, self.text.ids)) + 50
        return min(longest, self.task.spec.decoder.positions) - 1


def compare(plan: Plan) -> Iterator[Comparison]:
    """Yields the comparison so far after each finding; the last one is `finished`.

    Engines that fail have rows that say why. Warns about conditions that make times doubtful.
    """
    found = Comparison(
        plan.name, plan.text.name, plan.tokenisation, plan.rounds, {}, finished=False
    )
    references: dict[int, Answers] = {}
    for device in plan.devices:
        machine = machine_of(device, plan.dtypes, plan.threads)
        found = replace(found, machines={**found.machines, device: machine})
        yield found
        for configs in plan.configs(device):
            with EnginePool(plan.task, configs, plan.limits, text=plan.as_text) as pool:
                found = yield from side_by_side(pool, plan, found, references)
    yield replace(found, finished=True)


def side_by_side(
    pool: EnginePool, plan: Plan, found: Comparison, references: dict[int, Answers]
) -> Generator[Comparison, None, Comparison]:
    """Yields `found` with the answers of a pool's engines, then with their times; returns the last
    comparison."""
    for beams in plan.beams:
        checks = checked(pool, plan, beams, references)
        found = replace(found, checks=(*found.checks, *checks))
        yield found
    ceilings = found.machines[pool.device].ceilings
    for beams, size, length in itertools.product(plan.beams, plan.batch, plan.lengths):
        point = Point(size, beams, length)
        runs, _ = measure(pool, point, plan.first_lines(size), ceilings, plan.rounds)
        found = replace(found, runs=(*found.runs, *runs))
        yield found
    return found


def checked(
    pool: EnginePool, plan: Plan, beams: int, references: dict[int, Answers]
) -> list[Check]:
    """The checks of a pool's engines. references: by beams, the answers of the first engine that
    answered; added where they are missing."""
    search = Search(beams, most=plan.longest_answer, scores=True)
    found = answers(pool, plan.text, search)
    for answer in found.values():
        references.setdefault(beams, answer)
    tokenizer = plan.task.load_tokenizer()
    return [
        check(config, beams, found[config], references[beams], plan.text, tokenizer)
        if config in found
        else failed(config, beams, pool.reasons[config])
        for config in pool.configs
    ]


def machine_of(device: str, dtypes: Sequence[str], threads: int) -> Machine:
    """Describes the machine and measures its ceilings, in some seconds."""
    where = environment(device)
    if device == "cpu":
        if os.getloadavg()[0] > LOAD:
            load = f"{os.getloadavg()[0]:.1f}"
            warnings.warn(f"the machine is not idle (load {load}): times are noise", stacklevel=2)
        ceilings = measure_cpu(threads)
        if math.isnan(ceilings["float32"].bandwidth):
            warnings.warn("no C compiler (cc): the roofline bound is unknown", stacklevel=2)
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
    """Measures the ceilings of the types that a GPU computes with: beside int8 weights float16."""
    import torch

    found = {}
    for dtype in dtypes:
        if "float" in dtype or dtype == "int8":
            computes_in = "float16" if dtype == "int8" else dtype
            found[dtype] = measure_gpu(getattr(torch, computes_in), device)
    return found
