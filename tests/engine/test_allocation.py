"""No heap allocation inside a step: every malloc of a process is counted by interposition."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COUNTER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
static atomic_long count;
static void* (*real_malloc)(size_t);
static void* (*real_realloc)(void*, size_t);
long allocations(void) { return atomic_load(&count); }
void* malloc(size_t size) {
  if (!real_malloc) real_malloc = dlsym(RTLD_NEXT, "malloc");
  atomic_fetch_add(&count, 1);
  return real_malloc(size);
}
void* realloc(void* old, size_t size) {
  if (!real_realloc) real_realloc = dlsym(RTLD_NEXT, "realloc");
  atomic_fetch_add(&count, 1);
  return real_realloc(old, size);
}
"""

# Fewer than the steps between those that are compared, 37 and, of a scheduler alone, 2,500: callers
# need not all come at once.
FEWER, FEWER_OF_MANY = 16, 160
BEGIN = """
import ctypes
counter = ctypes.CDLL(None).allocations
counter.restype = ctypes.c_long
"""
MODEL = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from decoding import _C, models
from tests.support.packed import pack

torch.manual_seed(0)
config = GPT2Config(vocab_size=300, n_positions=64, n_embd=32, n_layer=2, n_head=2)
loaded = models.load(GPT2LMHeadModel(config).eval())
made_of = {"threads": 2, "isa": _C.isas()[0]}
weights = pack(loaded.state, loaded.spec)

def bind(runs, limits):
    _, size = runs.plan(limits)
    pool = torch.empty(size + 256, dtype=torch.uint8)
    runs.bind(limits, pool[-pool.data_ptr() % 256 :][:size])

def batch_of(*prompts):
    offsets = torch.tensor([0, *map(len, prompts)], dtype=torch.int32).cumsum(0).int()
    ids = torch.arange(len(prompts), dtype=torch.int32)
    prompt = torch.tensor(sum(prompts, []), dtype=torch.int32)
    return _C.Batch(prompt=prompt, prompt_offsets=offsets, sentence_ids=ids)

filters = {"top_k": 50, "top_p": 0.9}
calls = [(_C.Greedy(), {}), (_C.Sampling(), filters), (_C.Sampling(), {}), (_C.Beam(), {})]
"""

# Prints, for each strategy, the allocations of one call of step(1) and of one call of step(20):
# what the calls themselves cost is the same, so any difference is a step's own.
SESSION = """
session = _C.Session(loaded.spec, weights, **made_of)
bind(session, _C.Limits(batch=2, beams=3, source=0, prompt=4, target=48, candidates=6))
batch = batch_of([1, 2], [3, 4, 5])
for search, own in calls:
    common = {"max_new": 48, "min_new": 48, "eos": [0], "bad_words": [[7]], "seed": 1}
    request = _C.Request(sentences=2, rows_per_sentence=3, search=search, **common, **own)
    session.start(request, batch)
    session.step(1)  # whatever a first step leaves behind for good
    counts = []
    for steps in (1, 20, 1, 20):
        before = counter()
        session.step(steps)
        counts.append(counter() - before)
    print(*counts[2:])
"""

# Prints, for each strategy and for all of them side by side, the allocations of requests of few and
# of many steps: the least of some runs, since requests may end side by side or one by one.
ENGINE = """
engine = _C.Engine(loaded.spec, weights, **made_of)
sizes = {"requests": 16, "beams": 3, "source": 0, "prompt": 4, "target": 48}
more = {"pages": 64, "tokens": 16, "candidates": 6, "words": 64, "classes": 4}
bind(engine, _C.EngineLimits(**sizes, **more))
batch = batch_of([1, 2, 3])

def counted(some, steps):
    common = {"max_new": steps, "min_new": steps, "eos": [0], "bad_words": [[7]], "seed": 1}
    requests = [
        _C.Request(sentences=1, rows_per_sentence=3, search=search, **common, **own)
        for search, own in some
    ]
    before, left = counter(), len(some)
    for request in requests:
        engine.submit(request, batch)
    while left:
        left -= len(engine.wait(10.0))
    return counter() - before

for some in [*([call] for call in calls), calls]:
    counted(some, 3)  # whatever a class leaves behind for good
    print(*[min(counted(some, steps) for _ in range(4)) for steps in (3, 40)])
engine.close(True)
"""


# Prints, for some numbers of rows that all go on, the allocations of a scheduler alone, also where
# its tokens are told. Where requests join and leave, those who submit and hear of them need memory.
SCHEDULER = """
from decoding._kernels import scheduling_times

def counted(rows, steps, stream):
    before = counter()
    scheduling_times(rows, steps, churn=False, stream=stream)
    return counter() - before

for rows in (1, 8, 16, 64):
    for stream in (False, True):
        print(*[min(counted(rows, steps, stream) for _ in range(4)) for steps in (500, 3000)])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs LD_PRELOAD")
@pytest.mark.parametrize(
    ("program", "compared", "fewer"),
    [(MODEL + SESSION + ENGINE, 9, FEWER), (SCHEDULER, 8, FEWER_OF_MANY)],
    ids=["session, engine", "scheduler"],
)
def test_steps_allocate_nothing(program: str, compared: int, fewer: int, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the tests need a C compiler, as the build does"
    source, library = tmp_path / "counter.c", tmp_path / "counter.so"
    source.write_text(COUNTER)
    subprocess.check_call([compiler, "-shared", "-fPIC", "-O1", source, "-o", library, "-ldl"])
    run = subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    assert len(lines) == compared
    for few, many in lines:
        assert many < few + fewer, f"more steps have {many - few} more allocations"
