"""Times of the engines on the points of a grid, in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from decoding.compare.engines import Answer, Contender
from decoding.compare.floors import Floor, floor
from decoding.compare.lineup import Lineup
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
    """Of a grid. length: new tokens of each row. sample: draws, from top_k and top_p."""

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
    """What a call is given, and the tokens of each of its sources or prompts."""

    given: Given
    tokens: Sequence[int]


@dataclass(frozen=True)
class Timed:
    """Of those who did not fail: the warm-up's answer, and the seconds of each call."""

    answers: dict[Contender, Answer]
    seconds: dict[Contender, list[float]]


def measure(
    lineup: Lineup, point: Point, batch: Batch, ceilings: Mapping[str, Ceilings], rounds: int
) -> tuple[list[Run], dict[Contender, Answer]]:
    """Each contender on one point, and what it generated. One that fails has its reason in its run.

    ceilings: by type. On the CPU everybody is loaded anew, so that memory is the point's alone; on
    a GPU they stay, since loading takes longer than all calls.
    """
    lineup.start(point.beams, fresh=lineup.device == "cpu")
    first = in_turns(lineup, batch.given, replace(point.search, most=1, least=1), rounds)
    whole = in_turns(lineup, batch.given, point.search, rounds)
    taken = lineup.each(taken_by)
    runs = []
    for contender in lineup.contenders:
        settings = contender.settings
        least = floor(
            lineup.task.spec,
            batch.tokens,
            point.beams,
            point.length,
            ceilings[settings.dtype],
            settings.dtype,
        )
        run = blank(contender, point, batch, least)
        if contender in taken:
            run = replace(
                run,
                **times(whole.seconds[contender], point),
                first_token=1e3 * percentile(first.seconds[contender], 50),
                **taken[contender],
            )
        else:
            run = replace(run, error=lineup.reasons[contender])
        runs.append(run)
    return runs, {contender: whole.answers[contender] for contender in taken}


def in_turns(lineup: Lineup, given: Given, search: Search, rounds: int) -> Timed:
    """Warms up, then times calls in turns, so that drift of the machine hits all alike."""
    answers = lineup.each(lambda worker: worker.run_once(given, search))
    for contender, answer in answers.items():
        lengths = sorted({len(row) for row in answer.tokens})
        if lengths != [search.most]:
            lineup.drop(contender, f"generated {lengths} tokens, not {search.most}")
    on_gpu = lineup.device != "cpu"
    calls = lineup.each(lambda worker: calls_in_a_turn(worker) if on_gpu else 1)
    seconds: dict[Contender, list[float]] = {contender: [] for contender in calls}
    for turn in range(rounds):
        order = [*lineup.workers]
        first = turn % max(1, len(order))  # nobody always follows the same neighbour
        for contender in [*order[first:], *order[:first]]:
            time.sleep(0.0 if on_gpu else PAUSE)
            request = partial(Worker.time, calls=calls[contender])
            seconds[contender] += lineup.ask(contender, request) or []
    return Timed(answers, seconds)


def calls_in_a_turn(worker: Worker) -> int:
    return min(MOST_CALLS, math.ceil(TURN / worker.time(1)[0]))


def taken_by(worker: Worker) -> dict[str, Any]:
    """What a run says of a worker besides times."""
    memory = worker.memory()
    return {
        **asdict(worker.loaded),
        "memory": megabytes(memory.running),
        "loading": megabytes(memory.loading),
        "nodes": worker.nodes(),
    }


def megabytes(growth: int) -> float:
    """NaN below zero: on a GPU, where somebody else has given memory back meanwhile."""
    return growth / 1e6 if growth >= 0 else math.nan


def times(seconds: Sequence[float], point: Point) -> dict[str, Any]:
    steps = [1e3 * call / point.length for call in seconds]
    p20, p50, p80 = (percentile(steps, percent) for percent in (20, 50, 80))
    return {"p20": p20, "p50": p50, "p80": p80, "rate": 1e3 * point.batch / p50}


def blank(contender: Contender, point: Point, batch: Batch, least: Floor) -> Run:
    """A run of which only the conditions are known."""
    return Run(
        engine=contender.engine.name,
        version="",
        isa="",
        dtype=contender.settings.dtype,
        device=contender.settings.device,
        batch=point.batch,
        beams=point.beams,
        length=point.length,
        source=sum(batch.tokens),
        floor=1e3 * least.seconds,
        bytes=least.work.bytes,
        flops=least.work.flops,
        bound=least.bound,
    )
