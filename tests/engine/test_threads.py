"""Callers of many threads, turns on the cores, forks."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import decoding
from tests.support.demo import DEMO
from tests.support.random_models import load, ours, reference
from tests.support.sessions import run, same, tokens


def test_threads_may_share_models(device: str) -> None:
    models = [load("gpt2", device, threads=n) for n in (1, 2)] + [ours("marian", device)]
    work = [
        (
            model,
            tokens(1 + seed % 4, 2 + seed, seed),
            {"num_beams": 1 + seed % 3, "max_new_tokens": n},
        )
        for seed, (n, model) in enumerate((n, model) for n in (6, 17) for model in models * 2)
    ]

    def call(job: Any) -> Any:
        model, ids, options = job
        return model.generate(ids, attention_mask=torch.ones_like(ids), **options)

    expected = [call(job) for job in work]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(3):
            found = list(pool.map(call, work))
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def at_work() -> int:
    """Threads of this process, but for the caller's, that run or wait for a core."""
    count = -1
    for stat in Path("/proc/self/task").glob("*/stat"):
        with suppress(OSError):  # it has ended
            count += stat.read_text().rpartition(")")[2].split()[0] == "R"
    return count


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc here")
def test_models_take_turns_on_the_cores() -> None:
    """Calls at once take no longer than one after the other, since no more threads run than there
    are cores: more would wait for each other at every barrier."""
    cores = len(os.sched_getaffinity(0))
    models = [decoding.load(reference("gpt2-wide"), threads=cores) for _ in range(6)]
    ids = tokens(20, 12)

    def call(model: decoding.Model) -> torch.Tensor:
        found: torch.Tensor = model.generate(ids, max_new_tokens=36, num_beams=2)
        return found

    def seconds(use: Any) -> float:
        begin = time.perf_counter()
        assert all(torch.equal(found, expected) for found in use(call, models))
        return time.perf_counter() - begin

    expected = call(models[0])
    with ThreadPoolExecutor(len(models)) as pool:
        # The machine may be busy with other things.
        assert any(seconds(pool.map) < 1.25 * seconds(map) for _ in range(10))
        calls, counts = [pool.submit(call, model) for model in models * 5], []
        while not all(found.done() for found in calls):
            counts.append(at_work())
            time.sleep(0.001)
    assert statistics.median(counts) <= cores + 1, counts


def test_a_call_lets_other_threads_run() -> None:
    """The engine gives the interpreter away: a thread counts while it works."""
    model = decoding.load(reference("gpt2-wide"), threads=1)
    ids = tokens(60, 12)
    running, counted = threading.Event(), 0
    done = threading.Event()

    def work() -> None:
        running.set()
        model.generate(ids, max_new_tokens=36, num_beams=2, eos_token_id=None)
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    running.wait()
    while not done.wait(0.001):
        counted += 1
    worker.join()
    assert counted >= 5


def test_the_number_of_threads_is_visible_and_changes_nothing() -> None:
    found = []
    for threads in (1, 2, 3):
        model = load("marian", threads=threads)
        assert model.threads == threads
        found.append(run(model, tokens(5, 6)))
    assert all(same(other, found[0]) for other in found[1:])
    assert load("marian").threads == torch.get_num_threads()
    with pytest.raises(ValueError, match="at least 1"):
        load("marian", threads=0)


FORK = """
import os, sys
import decoding

model = decoding.load(sys.argv[1], sys.argv[2], threads=2)
model.generate([[5, 6, 0]])
if os.fork() == 0:
    try:
        model.generate([[5, 6, 0]])
    except decoding.Error as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
model.generate([[5, 6, 0]])
"""


# A child gets on with a kernel alone: much of Python and torch may not be used behind a fork of a
# process that is at work in other threads.
FORK_AT_WORK = """
import os, threading
import torch
from decoding import _C, _kernels as kernels

cores, stop = len(os.sched_getaffinity(0)), threading.Event()
logits = torch.randn(64, 4000)
scan = lambda: kernels.scan_logits(logits, isa=_C.isas()[-1], threads=cores)

def work():
    while not stop.is_set():
        scan()

worker = threading.Thread(target=work)
worker.start()
for _ in range(20):  # the worker holds the cores most of these times
    child = os.fork()
    if child == 0:
        scan()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
worker.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_finds_the_cores_free() -> None:
    run = subprocess.run(
        [sys.executable, "-c", FORK_AT_WORK], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_is_told_to_load_its_own_model(device: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FORK, str(DEMO), device], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert "before the process forked" in run.stdout
