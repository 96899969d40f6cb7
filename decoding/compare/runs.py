"""Times the engines on the points of a grid, in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from decoding.compare.bounds import RooflineBound, roofline_bound
from decoding.compare.engine_pool import EnginePool
from decoding.compare.engines import Answer, EngineConfig
from decoding.compare.results import Ceilings, Run
from decoding.compare.task import Search
from decoding.compare.timing import percentile
from decoding.compare.worker import Given, Worker

# OpenMP's threads of one engine go on spinning for a while after a call (200 ms in LLVM's runtime).
# The next engine's turn begins when they sleep.
PAUSE = 0.3
TURN = 0.1  # seconds on a GPU for which a fast engine repeats its call, each time it has its turn
MOST_CALLS = 10  # of such a turn


@dataclass(frozen=True)
class Point:
    """A point of the grid. length: new tokens of each row. sample: (top_k, top_p) of sampling."""

    batch: int
    beams: int
    length: int
    sample: tuple[int, float] | None = None

    @property
    def search(self) -> Search:
        """The end token is banned until the last: every engine takes the same steps."""
        return Search(self.beams, most=self.length, least=self.length, sample=self.sample)


@dataclass(frozen=True)
class Batch:
    """The input of a call, and the number of tokens of each of its sources or prompts."""

    given: Given
    tokens: Sequence[int]


@dataclass(frozen=True)
class Timed:
    """The warm-up's answer and the seconds of each call, of the engines that did not fail."""

    answers: dict[EngineConfig, Answer]
    seconds: dict[EngineConfig, list[float]]


def measure(
    pool: EnginePool, point: Point, batch: Batch, ceilings: Mapping[str, Ceilings], rounds: int
) -> tuple[list[Run], dict[EngineConfig, Answer]]:
    """Measures each engine of the pool on one point; returns the runs, and the generated answers.

    The run of an engine that fails holds the reason. ceilings: by type. On the CPU all engines are
    loaded anew, so that memory is the point's alone; on a GPU they stay loaded, since loading takes
    longer than all calls.
    """
    pool.start(point.beams, fresh=pool.device == "cpu")
    first = in_turns(pool, batch.given, replace(point.search, most=1, least=1), rounds)
    whole = in_turns(pool, batch.given, point.search, rounds)
    used = pool.each(used_by)
    runs = []
    for config in pool.configs:
        settings = config.settings
        least = roofline_bound(
            pool.task.spec,
            batch.tokens,
            point.beams,
            point.length,
            ceilings[settings.dtype],
            settings.dtype,
        )
        run = blank(config, point, batch, least)
        if config in used:
            run = replace(
                run,
                **times(whole.seconds[config], point),
                first_token=1e3 * percentile(first.seconds[config], 50),
                **used[config],
            )
        else:
            run = replace(run, error=pool.reasons[config])
        runs.append(run)
    return runs, {config: whole.answers[config] for config in used}


def in_turns(pool: EnginePool, given: Given, search: Search, rounds: int) -> Timed:
    """Warms up, then times calls in turns, so that drift of the machine affects all alike."""
    answers = pool.each(lambda worker: worker.run_once(given, search))
    for config, answer in answers.items():
        lengths = sorted({len(row) for row in answer.tokens})
        if lengths != [search.most]:
            pool.drop(config, f"generated {lengths} tokens, not {search.most}")
    on_gpu = pool.device != "cpu"
    calls = pool.each(lambda worker: calls_in_a_turn(worker) if on_gpu else 1)
    seconds: dict[EngineConfig, list[float]] = {config: [] for config in calls}
    for turn in range(rounds):
        order = [*pool.workers]
        first = turn % max(1, len(order))  # no engine always follows the same neighbour
        for config in [*order[first:], *order[:first]]:
            time.sleep(0.0 if on_gpu else PAUSE)
            request = partial(Worker.time, calls=calls[config])
            seconds[config] += pool.ask(config, request) or []
    return Timed(answers, seconds)


def calls_in_a_turn(worker: Worker) -> int:
    return min(MOST_CALLS, math.ceil(TURN / worker.time(1)[0]))


def used_by(worker: Worker) -> dict[str, Any]:
    """The fields of a Run that describe a worker, but for its times."""
    memory = worker.memory()
    # A GPU's memory is measured by what is free: another process may free more meanwhile.
    on_gpu = worker.config.settings.device != "cpu"
    return {
        **asdict(worker.loaded),
        "memory": megabytes(memory.running, least=memory.loading if on_gpu else 0),
        "loading": megabytes(memory.loading, least=0),
        "nodes": worker.nodes(),
    }


def megabytes(growth: int, least: int) -> float:
    """NaN below the least that it can be."""
    return growth / 1e6 if growth >= least else math.nan


def times(seconds: Sequence[float], point: Point) -> dict[str, Any]:
    steps = [1e3 * call / point.length for call in seconds]
    p20, p50, p80 = (percentile(steps, percent) for percent in (20, 50, 80))
    return {"p20": p20, "p50": p50, "p80": p80, "rate": 1e3 * point.batch / p50}


def blank(config: EngineConfig, point: Point, batch: Batch, least: RooflineBound) -> Run:
    """A run with its conditions and without times."""
    return Run(
        engine=config.engine.name,
        version="",
        isa="",
        dtype=config.settings.dtype,
        device=config.settings.device,
        batch=point.batch,
        beams=point.beams,
        length=point.length,
        source=sum(batch.tokens),
        roofline_bound=1e3 * least.seconds,
        bytes=least.work.bytes,
        flops=least.work.flops,
        bound_by=least.bound_by,
    )
