"""Memory within limits, growth, faults and callers of many threads."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

import decoding
from decoding import _C, Limits, models
from decoding.engine import pool, session
from decoding.engine.limits import next_bucket
from decoding.models.weights.placed import pack
from tests.support.comparison import assert_close_scores
from tests.support.demo import DEMO
from tests.support.random_models import load, ours, reference, spec_of

LIMITS = Limits(batch=2, beams=3, source=6, prompt=2, target=8)


def tokens(batch: int = 2, width: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.randint(12, 40, (batch, width), generator=torch.Generator().manual_seed(seed))


def run(model: decoding.Model, ids: torch.Tensor, **options: Any) -> Any:
    """Beams that end at various lengths; sequences and scores."""
    options = {
        "num_beams": 3,
        "max_new_tokens": 8,
        "attention_mask": torch.ones_like(ids),
        "return_dict_in_generate": True,
        "output_sequences_scores": True,
    } | options
    return model.generate(ids, **options)


def same(a: Any, b: Any, device: str = "cpu") -> bool:
    """To the bit on the CPU. On a GPU the order of a sum may depend on the number of rows."""
    slack = 0.0 if device == "cpu" else 1e-5
    return torch.equal(a.sequences, b.sequences) and torch.allclose(
        a.sequences_scores, b.sequences_scores, rtol=slack, atol=slack
    )


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_the_plan_is_sound(name: str, device: str) -> None:
    plan = ours(name, device).memory_plan(LIMITS)
    names = [buffer.name for buffer in plan.buffers]
    assert len(set(names)) == len(names)
    assert {"self_k", "self_v", "logits", "tokens", "parents"} <= set(names)
    assert all(buffer.offset % 256 == 0 for buffer in plan.buffers)
    assert max(buffer.offset + buffer.bytes for buffer in plan.buffers) <= plan.bytes
    sharing = 0
    for a, b in combinations(plan.buffers, 2):
        if max(a.offset, b.offset) < min(a.offset + a.bytes, b.offset + b.bytes):
            common = min(len(a.lifetime), len(b.lifetime))
            assert list(a.lifetime[:common]) != list(b.lifetime[:common]), (a.name, b.name)
            assert b.name in plan.sharing(a) and a.name in plan.sharing(b)
            sharing += 1
    assert sharing > 0, "the encoder's scratch and the steps' share bytes"


def test_the_plan_is_readable() -> None:
    model = ours("marian")
    plan = model.memory_plan(LIMITS)
    lines = str(plan).splitlines()
    assert lines[0].split()[:6] == ["name", "type", "shape", "offset", "bytes", "lifetime"]
    assert len(lines) == len(plan.buffers) + 2
    assert lines[-1].startswith(f"total {plan.bytes} bytes") and plan.summary in lines[-1]
    for buffer, line in zip(plan.buffers, lines[1:], strict=False):
        assert line.startswith(buffer.name) and str(buffer.bytes) in line
    assert "batch 2, beams 3, source 6, prompt 2, target 8" in plan.summary


def test_a_plan_grows_with_its_limits_and_needs_no_call_before() -> None:
    model = load("gpt2", threads=1)
    assert model.memory_plan().bytes > 0
    size = model.memory_plan(LIMITS).bytes
    for name in ("batch", "beams", "prompt", "target", "eos"):
        assert model.memory_plan(replace(LIMITS, **{name: 9})).bytes > size, name


@pytest.mark.parametrize(
    "size, expected", [(0, 0), (1, 1), (3, 3), (5, 6), (7, 8), (9, 12), (25, 32)]
)
def test_buckets(size: int, expected: int) -> None:
    assert next_bucket(size) == expected == next_bucket(expected)


def test_the_pool_grows_on_demand_and_never_shrinks(device: str) -> None:
    model = load("marian", device, threads=1)
    small = run(model, tokens())
    first = model.memory_plan()
    assert first.limits == Limits(batch=2, beams=3, source=4, target=8, eos=1)
    big = run(model, tokens(7, 9), max_new_tokens=30, num_beams=5)
    pool = model._session._pool
    assert len(pool) == model.memory_plan().bytes > first.bytes
    assert pool.data_ptr() % 256 == 0
    assert same(run(model, tokens()), small, device)
    assert same(run(model, tokens(7, 9), max_new_tokens=30, num_beams=5), big, device)
    assert model._session._pool.data_ptr() == pool.data_ptr()


def test_calls_of_alternating_shapes_share_a_plan(device: str) -> None:
    model = load("gpt2", device, threads=1)
    shapes = [(1, 9, 3), (6, 2, 2), (2, 4, 5)]  # batch, width, beams
    found = [run(model, tokens(b, w), num_beams=k) for b, w, k in shapes]
    bound, plan = model._session._bound, model.memory_plan()
    assert plan.limits == Limits(batch=6, beams=5, prompt=12, target=8, eos=1)
    for _ in range(2):
        again = [run(model, tokens(b, w), num_beams=k) for b, w, k in shapes]
        assert all(same(a, b, device) for a, b in zip(found, again, strict=True))
        assert model._session._bound is bound


def test_calls_that_have_little_in_common_do_not_share_a_plan() -> None:
    model = load("gpt2", threads=1)
    run(model, tokens(1, 2), max_new_tokens=46, num_beams=12)
    run(model, tokens(60, 2), max_new_tokens=2, num_beams=2)
    assert model.memory_plan().limits == Limits(batch=64, beams=2, prompt=2, target=2, eos=1)


def test_explicit_limits_are_planned_once_and_hold(device: str) -> None:
    model = load("marian", device, limits=LIMITS, threads=1)
    plan, pool = model.memory_plan(), model._session._pool
    assert plan.limits == LIMITS and len(pool) == plan.bytes
    free = ours("marian", device)
    assert same(run(model, tokens(2, 6)), run(free, tokens(2, 6)), device)
    # a larger batch is split
    assert same(run(model, tokens(5, 6)), run(free, tokens(5, 6)), device)
    assert model.memory_plan().bytes == plan.bytes
    assert model._session._pool.data_ptr() == pool.data_ptr()


@pytest.mark.parametrize(
    "name, asked, options",
    [
        ("beams", 4, {"num_beams": 4}),
        ("beams", 5, {"num_beams": 1, "do_sample": True, "num_return_sequences": 5}),
        ("source", 7, {"ids": tokens(2, 7)}),
        ("target", 9, {"max_new_tokens": 9}),
        ("prompt", 3, {"decoder_input_ids": [[59, 1, 2]] * 2}),
        ("eos", 5, {"eos_token_id": [1, 2, 3, 4, 5]}),
    ],
)
def test_beyond_explicit_limits(
    name: str, asked: int, options: dict[str, Any], device: str
) -> None:
    model = load("marian", device, limits=LIMITS, threads=1)
    before = run(model, tokens())
    options = dict(options)
    ids = options.pop("ids", tokens())
    needed = model.memory_plan(replace(LIMITS, **{name: asked})).bytes
    limit = getattr(LIMITS, name)
    with pytest.raises(ValueError, match=f"{name}={asked}.*{name}={limit}.*{needed} bytes"):
        run(model, ids, **options)
    assert same(run(model, tokens()), before, device)


@pytest.mark.parametrize("name", ["batch", "beams", "source", "prompt", "target", "eos"])
def test_limits_have_a_least_size(name: str) -> None:
    with pytest.raises(ValueError, match=f"Limits.{name} must be at least"):
        replace(LIMITS, **{name: -1})


def test_memory_that_is_not_there(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("gpt2", device, threads=1)
    before = run(model, tokens())
    with monkeypatch.context() as patch:
        patch.setattr(pool, "available_memory", lambda _: 200_000)
        words = r"needs \d+ bytes .*available: 200000 bytes .*lower (batch|beams|target)"
        with pytest.raises(decoding.Error, match=words):
            run(model, tokens(40, 20), max_new_tokens=20, num_beams=6)
        assert same(run(model, tokens()), before, device)
        with pytest.raises(decoding.Error, match=words):
            load("gpt2", device, limits=replace(LIMITS, target=5000))
    huge = replace(LIMITS, batch=10**6, target=10**6)
    with pytest.raises(decoding.Error, match="lower (batch|beams|target)"):
        load("gpt2", device, limits=huge)
    assert same(run(model, tokens()), before, device)


def test_a_bucket_that_does_not_fit_gives_way_to_the_exact_size(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load("gpt2", device, threads=1)
    exact = Limits(batch=5, beams=3, prompt=5, target=9, eos=1)
    available = model.memory_plan(exact).bytes
    assert available < model.memory_plan(replace(exact, batch=6, prompt=6, target=12)).bytes
    monkeypatch.setattr(pool, "available_memory", lambda _: available)
    run(model, tokens(5, 5), max_new_tokens=9)
    assert model.memory_plan().limits == exact


@pytest.mark.parametrize("name", ["marian", "gpt2"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 1},
        {"num_beams": 1, "do_sample": True, "seed": 3},
        {"do_sample": True, "seed": 3},
        {"num_beam_groups": 3, "diversity_penalty": 0.5},
        {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "bad_words_ids": [[20, 21]]},
    ],
)
def test_nothing_reads_memory_that_was_not_written(
    name: str, options: dict[str, Any], device: str
) -> None:
    model = load(name, device, limits=replace(LIMITS, batch=5, prompt=4, controls=64), threads=2)
    mask = torch.tensor([[0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 1, 1]])
    options = options | {"attention_mask": mask, "output_scores": True}
    model._session._pool.zero_()
    before = run(model, tokens(3), **options)
    model._session._pool.fill_(255)  # as float32: NaN; as int32: -1
    after = run(model, tokens(3), **options)
    assert torch.equal(before.sequences, after.sequences)
    assert all(torch.equal(a, b) for a, b in zip(before.scores, after.scores, strict=True))


class Interrupted:
    """An engine that Ctrl-C stops at its second chunk of steps."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.steps = engine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def step(self, steps: int) -> bool:
        self.steps += 1
        if self.steps == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return bool(self.engine.step(steps))


def test_ctrl_c_passes_between_steps_and_the_model_stays_usable(device: str) -> None:
    model = load("gpt2", device, threads=2)
    before = run(model, tokens())
    engine = model._session._engine
    model._session._engine = Interrupted(engine)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        run(model, tokens(), max_new_tokens=40, eos_token_id=None)
    model._session._engine = engine
    assert same(run(model, tokens()), before, device)


def test_numbers_that_are_not_finite_name_item_and_step(device: str) -> None:
    broken = reference("gpt2")
    state = {name: tensor.clone() for name, tensor in broken.state_dict().items()}
    try:
        broken.transformer.wte.weight.data[37] = 3e38  # its norm overflows
        model = decoding.load(broken, device, "float32")
    finally:
        broken.load_state_dict(state)
    ids = torch.tensor(
        [
            [12],
            [37],
            [
                13,
            ],
            [14],
        ]
    )
    options = {"bad_words_ids": [[37]], "eos_token_id": None}
    searches: list[dict[str, Any]] = [{"num_beams": 1}, {}, {"num_beams": 1, "do_sample": True}]
    for search in searches:
        with pytest.raises(decoding.Error, match="not finite .* item 1 at step 1"):
            run(model, ids, **options, **search)
        model.generate(ids[2:], **options, **search)
    with pytest.raises(decoding.Error, match="not finite .* item 0 at step 2"):
        run(model, ids[:1], forced_bos_token_id=37)
    assert same(
        run(model, ids[2:], **options), run(ours("gpt2", device), ids[2:], **options), device
    )


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


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_every_instruction_set_finds_the_same(name: str, isa: str) -> None:
    loaded = models.load(reference(name))
    model, spec = decoding.Model(loaded, threads=1), spec_of(loaded)
    engine = _C.Session(spec, pack(loaded.state, spec), threads=1, isa=isa)
    model._runner = session.Session(spec, engine, limits=None)
    assert model.isa == isa
    found, expected = run(model, tokens(5, 6)), run(ours(name), tokens(5, 6))
    assert torch.equal(found.sequences, expected.sequences)
    assert_close_scores(found.sequences_scores, expected.sequences_scores)


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
from decoding import _kernels as kernels

cores, stop = len(os.sched_getaffinity(0)), threading.Event()
logits = torch.randn(64, 4000)
scan = lambda: kernels.scan_logits(logits, isa="portable", threads=cores)

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
    words = {"cpu": "before the process forked", "cuda": "CUDA in forked subprocess"}
    assert words[device] in run.stdout
