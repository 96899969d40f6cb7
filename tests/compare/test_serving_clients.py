"""Clients of the benchmarks of serving: arrivals, figures, limits; batchers; what is drawn."""

from __future__ import annotations

import gzip
import math
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases.serving import DEMO, SERVING, nano_vllm
from benchmarks.online import batcher
from benchmarks.online.base import Job, Reply, new_tokens
from benchmarks.online.batcher import Batcher
from benchmarks.online.client import Figures, Limits, check, measure, merged, wait
from benchmarks.online.ours import Ours
from tests.support.step_provider import StepProvider, plan


def test_open_loop_sends_at_its_rate() -> None:
    with StepProvider(step=0.005) as provider:
        found = measure(provider, [Job([3, 4, 5], 6)], plan(200))
    assert found.requests == 60 and found.unanswered == 0  # the seed fixes when they are due
    assert found.served > 0 and found.tokens > 0
    assert 0 < found.itl_p50 <= found.itl_p99
    assert found.ttft_p50 < found.e2e_p50 <= found.e2e_p99
    assert 0 <= found.late_p99 and 25 < found.e2e_p50 and found.goodput <= 60 / 0.3 + 1e-6


def test_a_late_provider_is_found_out() -> None:
    """Clients do not wait for answers: what waits in a queue counts from when it was due."""
    with StepProvider(rows=1, step=0.01) as provider:
        found = measure(provider, [Job([3, 4], 4)], plan(200, patience=0.1))
        assert not provider.running and not provider.waiting
    assert found.requests == 60 and found.unanswered > 30
    assert found.served < 40 and found.goodput < 40
    assert found.ttft_p99 > 300 and found.ttft_p99 > 1.2 * found.ttft_p50


def test_all_at_once() -> None:
    with StepProvider() as provider:
        found = measure(provider, [Job([3, 4], 50)] * 7, plan(math.inf))
    assert (found.requests, found.unanswered) == (7, 0)
    assert found.tokens == pytest.approx(50 * found.served)
    assert found.served == pytest.approx(7000 / found.e2e_p99, rel=0.05)


def test_a_failure_stops_the_measurement() -> None:
    reply = Reply(Job([3], 4))
    reply.take(3)
    reply.finish()
    with pytest.raises(RuntimeError, match="3 tokens came for a request of 4"):
        check([reply])


def test_limits() -> None:
    reply = Reply(Job([3], 5), sent=0.0)
    for when in (1.0, 1.5, 2.0):
        reply.take(1, when)
    reply.take(2, 3.0)
    assert not Limits().met(reply)  # not answered yet
    reply.finished = 3.0
    assert reply.gaps() == [0.5, 0.5, 1.0] and reply.gaps(begin=1.2) == [0.5, 1.0]
    assert Limits(ttft=1, tpot=0.5, e2e=3).met(reply)
    assert not Limits(ttft=0.9).met(reply)
    assert not Limits(tpot=0.4).met(reply)
    assert not Limits(e2e=2.9).met(reply)
    assert str(Limits(ttft=0.5, e2e=2)) == "ttft 500 ms, e2e 2000 ms"


def test_repeats_are_merged() -> None:
    one, two, three = (Figures(10, n, *[float(n)] * 10) for n in (1, 2, 6))
    assert merged([one, three, two]) == Figures(30, 9, *[2.0] * 10)


class Recorder(Batcher):
    """Answers after a moment; fails where a job has no tokens."""

    name = "recorder"
    engine = Ours.engine

    def __init__(self, rows: int | None = None) -> None:
        self.batches: list[int] = []
        super().__init__(None, "cpu", rows)

    def answer(self, batch: Any) -> None:
        self.batches.append(len(batch))
        time.sleep(0.02)
        for reply in batch:
            if not reply.job.ids:
                raise ValueError("no tokens")
            reply.take(reply.job.new)
            reply.finish()


@pytest.mark.parametrize(
    ("rows", "beams", "most"), [(None, 1, 32), (4, 1, 4), (8, 4, 2), (1, 4, 1)]
)
def test_batcher_fills_batches(rows: int | None, beams: int, most: int) -> None:
    recorder = Recorder(rows)
    replies = [Reply(Job([3], 2, beams)) for _ in range(9)]
    for reply in replies:
        recorder.submit(reply, stream=False)
    assert wait(replies, time.perf_counter() + 5)
    check(replies)
    assert sum(recorder.batches) == 9
    assert max(recorder.batches) == min(9, most)
    recorder.close()
    assert not recorder.thread.is_alive()


def test_batcher_waits_a_moment_and_no_longer() -> None:
    recorder = Recorder()
    first, second, third = (Reply(Job([3], 2)) for _ in range(3))
    recorder.submit(first, stream=False)
    time.sleep(batcher.WAIT / 5)
    recorder.submit(second, stream=False)
    assert wait([first, second], time.perf_counter() + 5)
    recorder.submit(third, stream=False)
    assert wait([third], time.perf_counter() + 5)
    assert recorder.batches == [2, 1]
    recorder.close()


def test_a_failing_batch_fails_its_requests_alone() -> None:
    recorder = Recorder(rows=2)
    bad, good = [Reply(Job([], 2)), Reply(Job([3], 2))], Reply(Job([3], 2))
    for reply in (*bad, good):
        recorder.submit(reply, stream=False)
    assert wait([*bad, good], time.perf_counter() + 5)
    assert [reply.error for reply in bad] == ["ValueError: no tokens"] * 2
    assert not good.error
    recorder.close()


def test_new_tokens_are_counted_to_the_end() -> None:
    assert new_tokens([5, 6, 0, 7, 7], Job([3], 9, ends=True), ends=[0]) == 3
    assert new_tokens([5, 6, 7], Job([3], 3, ends=True), ends=[0]) == 3
    assert new_tokens([5, 0, 7, 9, 9], Job([3], 3), ends=[0]) == 3


def test_workloads_are_the_same_each_time() -> None:
    for name, workload in SERVING.items():
        if workload.model != "demo":
            jobs = workload.draw(8, [])
            assert len(jobs) == 8 and jobs == workload.draw(8, []), name
            assert all(job.new > 0 and min(job.ids) >= 0 for job in jobs)
    jobs = nano_vllm(256, [])
    assert sum(len(job.ids) for job in jobs) == 142_827
    assert sum(job.new for job in jobs) == 133_966


def test_demo_translates_a_text(tmp_path: Path) -> None:
    text = (DEMO / "sentences.de.txt").read_text("utf-8")
    for language in ("de", "en"):
        with gzip.open(tmp_path / f"text.{language}.gz", "wt", encoding="utf-8") as file:
            file.write(text)
    jobs = SERVING["demo-4"].draw(5, [tmp_path / "text"])
    assert len(jobs) == 5 and all(job.ids[-1] == 0 and job.ends for job in jobs)
    random = SERVING["marian-base-4"].draw(5, [tmp_path / "text"])
    assert [len(job.ids) for job in random] == [len(job.ids) for job in jobs]
    with pytest.raises(ValueError, match="give one with --text"):
        SERVING["demo-4"].draw(5, [])
