"""What requests cost each other: those that join and leave, other searches, long prompts, and a
prefix cache that finds nothing."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.cases.serving import ids
from benchmarks.cases.workloads import SEED
from benchmarks.online.base import Job, Provider, Reply
from benchmarks.online.client import check, settle, wait
from benchmarks.online.ours import Ours
from decoding.compare.timing import percentile

SEARCHES: dict[str, dict[str, Any]] = {  # options of jobs
    "greedy": {},
    "sampling": {"sample": True},
    "beams 2": {"beams": 2},
    "beams 4": {"beams": 4},
    "beams 8": {"beams": 8},
}
GENERATIONS = 4  # of requests that join and leave, each as many as there are rows
TURNS = 6  # of engines with and without a prefix cache
WATCHED = 4  # decoders whose tokens are read one by one: clients must not slow the others down
POLL = 0.001  # seconds between two looks at the decoders
PATIENCE = 300  # seconds


@dataclass(frozen=True)
class Sizes:
    """rows: computed at once. source: tokens of a source or prompt. new: of an answer. prompt:
    tokens of a long prompt; one comes `every` so many seconds, for `seconds`."""

    rows: int
    source: int
    new: int
    vocabulary: int = 0
    prompt: int = 0
    every: float = 1.0
    seconds: float = 10.0
    seed: int = SEED


@dataclass(frozen=True)
class Pair:
    """alone, beside: the same number of requests by themselves, and beside what the case names."""

    case: str
    unit: str
    alone: float
    beside: float


def churn(provider: Provider, sizes: Sizes) -> list[Pair]:
    """Tokens a second of rows that begin and end together, time after time, and of as many rows
    where at each step a request ends and another joins; all rows are in use in each step."""
    rows, draw = sizes.rows, Draw(sizes)
    tokens = rows * rows * (GENERATIONS + 1)
    batches = [draw.jobs(rows, new=rows) for _ in range(GENERATIONS + 1)]
    static = tokens / sum(max(finish(provider, jobs, at_once=True)) for jobs in batches)
    lengths = [*range(1, rows + 1), *[rows] * (GENERATIONS * rows), *range(rows - 1, 0, -1)]
    jobs = [draw.job(new=new) for new in lengths]
    churned = tokens / max(finish(provider, jobs, at_once=True))
    return [Pair(f"{rows} rows, a request joins and leaves a step", "tokens/s", static, churned)]


def mixed(provider: Provider, sizes: Sizes) -> list[Pair]:
    """Tokens a second of a request of each search: all rows with that search, and all searches
    with as many rows each. Raises ValueError for so few rows that a search would have none."""
    draw, share = Draw(sizes), sizes.rows // len(SEARCHES)
    jobs = {
        name: draw.jobs(share // options.get("beams", 1), **options)
        for name, options in SEARCHES.items()
    }
    if not all(jobs.values()):
        raise ValueError(f"all searches need 40 rows together, got {sizes.rows}")
    alone = {
        name: median(finish(provider, draw.jobs(len(jobs[name]) * len(SEARCHES), **options)))
        for name, options in SEARCHES.items()
    }
    together = finish(provider, [job for found in jobs.values() for job in found])
    pairs = []
    for name, found in jobs.items():
        taken, together = together[: len(found)], together[len(found) :]
        speeds = (sizes.new / alone[name], sizes.new / median(taken))
        pairs.append(Pair(f"{name} in {sizes.rows} rows", "tokens/s", *speeds))
    return pairs


def prompts(provider: Provider, sizes: Sizes) -> list[Pair]:
    """What decoders see of long prompts, and these of the decoders."""
    draw = Draw(sizes)
    calm, _ = decode(provider, draw, long=False)
    gaps, waited = decode(provider, draw, long=True)
    idle = median(finish(provider, draw.jobs(1, source=sizes.prompt, new=1))[0] for _ in range(5))
    said = f"{sizes.rows} decoders, {sizes.prompt} tokens every {sizes.every:g} s"
    return [
        Pair(f"{said}: p50 from token to token", "ms", percentile(calm, 50), percentile(gaps, 50)),
        Pair(f"{said}: p50, p99", "ms", percentile(gaps, 50), percentile(gaps, 99)),
        Pair(f"{said}: prompt's first token", "ms", 1e3 * idle, percentile(waited, 50)),
    ]


def caching(provider: Provider, sizes: Sizes) -> list[Pair]:
    """Tokens a second without a prefix cache, and with one that is asked for what nobody has sent
    before: the fastest of TURNS, in which both get the same requests.

    Raises ValueError for other engines than ours, RuntimeError where something was found.
    """
    if not isinstance(provider, Ours):
        raise ValueError(f"caching measures our engine, not {provider.name}: leave --provider out")
    found, draw = provider.server.stats()["prefix_hits"], Draw(sizes)
    plain = provider.without_prefix_cache()
    turn = [provider, plain]
    seconds = {plain: math.inf, provider: math.inf}
    try:
        for _ in range(TURNS):
            jobs = draw.jobs(2 * sizes.rows)
            turn.reverse()
            for each in turn:
                seconds[each] = min(seconds[each], max(finish(each, jobs, at_once=True)))
    finally:
        plain.close()
    if provider.server.stats()["prefix_hits"] > found:
        raise RuntimeError("a prompt began like another one: give --source more tokens")
    tokens = 2 * sizes.rows * sizes.new
    said = f"{2 * sizes.rows} prompts of {sizes.source}, none found again"
    return [Pair(said, "tokens/s", tokens / seconds[plain], tokens / seconds[provider])]


class Draw:
    """Random jobs, none like another."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes, self.rng = sizes, random.Random(sizes.seed)

    def job(self, source: int | None = None, new: int | None = None, **options: Any) -> Job:
        sizes = self.sizes
        row = ids(self.rng, source or sizes.source, sizes.vocabulary)
        return Job(row, new or sizes.new, **options)

    def jobs(self, count: int, **options: Any) -> list[Job]:
        return [self.job(**options) for _ in range(count)]


def finish(provider: Provider, jobs: Sequence[Job], at_once: bool = False) -> list[float]:
    """Seconds until each has been answered, sent one after the other or, of one search, at once.
    Raises RuntimeError where one fails or takes too long."""
    begin = time.perf_counter()
    replies = [Reply(job, begin) for job in jobs]
    if at_once:
        provider.submit_all(replies)
    else:
        for reply in replies:
            provider.submit(reply, stream=False)
    if not wait(replies, begin + PATIENCE):
        raise RuntimeError(f"no answer within {PATIENCE} s")
    check(replies)
    return [reply.finished - begin for reply in replies]


class Decoders:
    """As many requests as there are rows at any time: one that ends is followed by another."""

    def __init__(self, provider: Provider, draw: Draw) -> None:
        self.provider, self.draw = provider, draw
        self.watched: list[Reply] = []
        self.running = [self.start(place) for place in range(draw.sizes.rows)]

    def start(self, place: int) -> Reply:
        """Of different lengths, so that not all end together."""
        new, watch = self.draw.sizes.new, place < WATCHED
        reply = Reply(self.draw.job(new=self.draw.rng.randint(new // 2, new)))
        self.provider.submit(reply, stream=watch)
        if watch:
            self.watched.append(reply)
        return reply

    def wait_for_tokens(self) -> None:
        """Until each that is watched has told some. Raises RuntimeError where that takes long."""
        until = time.perf_counter() + PATIENCE
        while not all(reply.deliveries for reply in self.watched):
            if time.perf_counter() > until:
                raise RuntimeError(f"no token within {PATIENCE} s")
            time.sleep(POLL)

    def refill(self) -> None:
        for place, reply in enumerate(self.running):
            if reply.done.is_set():
                self.running[place] = self.start(place)


def decode(provider: Provider, draw: Draw, long: bool) -> tuple[list[float], list[float]]:
    """Milliseconds between tokens of the watched decoders, and to the first token of each long
    prompt, if they are asked for; after the decoders' first tokens and a lead of half the time."""
    sizes, sent = draw.sizes, list[Reply]()
    count = math.ceil(1.5 * sizes.seconds / sizes.every) + 1
    prompts = [draw.job(source=sizes.prompt, new=1) for _ in range(count)] if long else []
    decoders = Decoders(provider, draw)
    decoders.wait_for_tokens()
    due = time.perf_counter()
    begin = due + sizes.seconds / 2
    end = begin + sizes.seconds
    while (now := time.perf_counter()) < end:
        decoders.refill()
        if prompts and now >= due:
            sent.append(Reply(prompts.pop(), due))
            provider.submit(sent[-1], stream=True)
            due += sizes.every
        time.sleep(POLL)
    check([*decoders.watched, *sent])
    gaps = [1e3 * gap for reply in decoders.watched for gap in reply.gaps(begin, end)]
    waited = [1e3 * reply.ttft(end) for reply in sent if reply.sent >= begin]
    settle(provider, draw.job())
    return gaps, waited
