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

# Prints, for each strategy, the allocations of one call of step(1) and of one call of step(20):
# what the calls themselves cost is the same, so any difference is a step's own.
PROGRAM = """
import ctypes, os, torch
from transformers import GPT2Config, GPT2LMHeadModel
from decoding import _C, models
from decoding.models.weights.placed import pack

counter = ctypes.CDLL(None).allocations
counter.restype = ctypes.c_long
torch.manual_seed(0)
config = GPT2Config(vocab_size=300, n_positions=64, n_embd=32, n_layer=2, n_head=2)
loaded = models.load(GPT2LMHeadModel(config).eval())
session = _C.Session(loaded.spec, pack(loaded.state, loaded.spec), threads=2, isa=_C.isas()[0])
limits = _C.Limits(batch=2, beams=3, source=0, prompt=4, target=48, candidates=6)
_, size = session.plan(limits)
pool = torch.empty(size + 256, dtype=torch.uint8)
pool = pool[-pool.data_ptr() % 256 :][:size]
session.bind(limits, pool)
prompt = torch.tensor([1, 2, 3, 4, 5], dtype=torch.int32)
offsets = torch.tensor([0, 2, 5], dtype=torch.int32)
ids = torch.arange(2, dtype=torch.int32)
batch = _C.Batch(prompt=prompt, prompt_offsets=offsets, sentence_ids=ids)
filters = {"top_k": 50, "top_p": 0.9}
calls = [(_C.Greedy(), {}), (_C.Sampling(), filters), (_C.Sampling(), {}), (_C.Beam(), {})]
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs LD_PRELOAD")
def test_steps_allocate_nothing(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the tests need a C compiler, as the build does"
    source, library = tmp_path / "counter.c", tmp_path / "counter.so"
    source.write_text(COUNTER)
    subprocess.check_call([compiler, "-shared", "-fPIC", "-O1", source, "-o", library, "-ldl"])
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    assert len(lines) == 4
    for one, twenty in lines:
        assert one == twenty, f"{twenty - one} allocations in 19 steps"
