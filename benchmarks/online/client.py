"""Clients: all requests at once, or Poisson arrivals that do not wait for answers (open loop)."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import median
from typing import Any

from benchmarks.online.base import Job, Provider, Reply
from decoding.compare.timing import percentile


@dataclass(frozen=True)
class Limits:
    """What a good answer keeps, in seconds: time to the first token, mean time from token to token,
    time to the end."""

    ttft: float = math.inf
    tpot: float = math.inf
    e2e: float = math.inf

    def met(self, reply: Reply) -> bool:
        if not math.isfinite(reply.finished):
            return False
        ttft, e2e = reply.ttft(reply.finished), reply.e2e(reply.finished)
        return ttft <= self.ttft and reply.tpot <= self.tpot and e2e <= self.e2e

    def __str__(self) -> str:
        """ "ttft 500 ms, tpot 50 ms"."""
        given = {name: limit for name, limit in asdict(self).items() if math.isfinite(limit)}
        return ", ".join(f"{name} {1e3 * limit:g} ms" for name, limit in given.items())


@dataclass(frozen=True)
class Plan:
    """How requests are sent. rate: requests a second; infinite: all at once, each once.

    seconds: of the steady state that is measured, after `lead` that is not. patience: seconds after
    it until requests without an answer are given up. stream: answers come piece by piece.
    """

    rate: float
    seconds: float
    lead: float
    patience: float
    seed: int
    limits: Limits
    stream: bool


@dataclass(frozen=True)
class Figures:
    """Of requests that were sent in a steady state. requests, unanswered: their counts. served,
    tokens: a second; goodput: requests that keep the limits, a second. The others are milliseconds;
    a request without an answer counts as long as it has waited. late: of what the clients sent; all
    that is later than they should be is theirs. NaN: there is no such number."""

    requests: int
    unanswered: int
    served: float
    tokens: float
    goodput: float
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    e2e_p50: float
    e2e_p99: float
    late_p99: float


def measure(provider: Provider, jobs: Sequence[Job], plan: Plan) -> Figures:
    """Leaves the provider idle. Raises RuntimeError where a request fails."""
    send = all_at_once if math.isinf(plan.rate) else open_loop
    found = send(provider, jobs, plan)
    settle(provider, jobs[0])
    return found


def all_at_once(provider: Provider, jobs: Sequence[Job], plan: Plan) -> Figures:
    shuffle = random.Random(plan.seed)
    if provider.static:
        jobs = sorted(jobs, key=cost, reverse=True)
    jobs = [renewed(job, shuffle) for job in jobs]
    begin = time.perf_counter()
    replies = [Reply(job, begin) for job in jobs]
    for reply in replies:
        provider.submit(reply, stream=False)
    finished = wait(replies, begin + plan.patience)
    end = time.perf_counter()
    if finished:
        end = min(end, max(reply.finished for reply in replies))
    return figures(replies, replies, begin, end, plan.limits)


def renewed(job: Job, shuffle: random.Random) -> Job:
    """With its tokens shuffled, so that no cache of prefixes has met it before; but a text that is
    generated to its own end stays as it is."""
    return job if job.ends else replace(job, ids=shuffle.sample(job.ids, len(job.ids)))


def cost(job: Job) -> tuple[int, int]:
    """What jobs of one batch should have in common."""
    return (0 if job.ends else job.new, len(job.ids))


def open_loop(provider: Provider, jobs: Sequence[Job], plan: Plan) -> Figures:
    """Arrivals go on until all that are counted have been answered, so that the last of them have
    neighbours too. A request is sent when it is due, and its times count from then."""
    draw, shuffle, due = random.Random(plan.seed), random.Random(plan.seed), time.perf_counter()
    begin = due + plan.lead
    end = begin + plan.seconds
    sent: list[Reply] = []
    counted: list[Reply] = []
    for job in itertools.cycle(jobs):
        due += draw.expovariate(plan.rate)
        if due >= end and (wait(counted, due) or due > end + plan.patience):
            break
        time.sleep(max(0.0, due - time.perf_counter()))
        sent.append(Reply(renewed(job, shuffle), due))
        if begin <= due < end:
            counted.append(sent[-1])
        provider.submit(sent[-1], plan.stream)
    return figures(sent, counted, begin, end, plan.limits)


def wait(replies: Sequence[Reply], until: float) -> bool:
    """Until all have been answered or have failed. Returns whether that was before `until`."""
    return all(reply.done.wait(max(0.0, until - time.perf_counter())) for reply in replies)


def settle(provider: Provider, job: Job) -> None:
    """Drops all requests and waits until one that comes now is answered."""
    provider.cancel()
    last = Reply(replace(job, new=1))
    provider.submit(last, stream=False)
    if not wait([last], time.perf_counter() + 600):
        raise RuntimeError(f"{provider.name} answers nothing any more")


def check(replies: Sequence[Reply]) -> None:
    """Raises RuntimeError where one has failed."""
    for reply in replies:
        if reply.error:
            raise RuntimeError(reply.error)


def figures(
    sent: Sequence[Reply], counted: Sequence[Reply], begin: float, end: float, limits: Limits
) -> Figures:
    """sent: all whose tokens may come between begin and end; counted: those that are judged. Raises
    RuntimeError where one has failed."""
    check(counted)
    now, seconds = time.perf_counter(), end - begin
    pieces = [piece for reply in sent for piece in reply.deliveries]
    ttft = [reply.ttft(now) for reply in counted]
    itl = [gap for reply in counted for gap in reply.gaps()]
    e2e = [reply.e2e(now) for reply in counted]
    return Figures(
        requests=len(counted),
        unanswered=sum(math.isinf(reply.finished) for reply in counted),
        served=sum(begin <= reply.finished <= end for reply in sent) / seconds,
        tokens=sum(count for when, count in pieces if begin <= when <= end) / seconds,
        goodput=sum(map(limits.met, counted)) / seconds,
        ttft_p50=milliseconds(ttft, 50),
        ttft_p99=milliseconds(ttft, 99),
        itl_p50=milliseconds(itl, 50),
        itl_p99=milliseconds(itl, 99),
        e2e_p50=milliseconds(e2e, 50),
        e2e_p99=milliseconds(e2e, 99),
        late_p99=milliseconds([reply.late for reply in counted], 99),
    )


def milliseconds(times: Sequence[float], percent: float) -> float:
    return 1e3 * percentile(times, percent) if times else math.nan


def merged(repeats: Sequence[Figures]) -> Figures:
    """Medians of the repeats; requests are added up."""
    values = {each.name: [getattr(one, each.name) for one in repeats] for each in fields(Figures)}
    found: dict[str, Any] = {name: median(each) for name, each in values.items()}
    return Figures(**found | {name: sum(values[name]) for name in ("requests", "unanswered")})
