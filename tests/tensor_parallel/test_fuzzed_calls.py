"""tests/tensor_parallel/fuzzed_calls.py: in short on a CPU and on one GPU, and all of it on as many
GPUs as there are."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from decoding import _C
from tests.tensor_parallel.ranks import ROOT


def output_of(ranks: int, *words: str) -> str:
    """What the program says."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["-m", "tests.tensor_parallel.fuzzed_calls", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_cpus_processes() -> None:
    assert re.match("40 calls compared on 2 ranks, 0 differ", output_of(2, "--calls", "40"))


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [2, 4])
def test_gpus(ranks: int) -> None:
    if len(_C.gpus()) < ranks:
        pytest.skip(f"there are no {ranks} GPUs")
    said = output_of(ranks, "--device", "cuda")
    assert re.search(r"^\d+ calls compared on . ranks, 0 differ", said), said


@pytest.mark.gpu
def test_ranks_that_share_a_gpu() -> None:
    """Engines of several split models run at once: without one launch order they would hang."""
    said = output_of(2, "--device", "cuda:0", "--calls", "20")
    assert re.search("^20 calls compared on 2 ranks, 0 differ", said), said
