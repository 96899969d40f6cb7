"""What of compute_sanitizer.py needs no GPU: which tests run, reading of logs, rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sanitize import generations
from tests.sanitize.compute_sanitizer import (
    TESTS_A_RUN,
    TOOLS,
    Row,
    all_runs,
    append,
    done,
    kernel_tests,
    part_of,
    reports,
    select,
)

CLEAN = """========= COMPUTE-SANITIZER
12 passed
========= ERROR SUMMARY: 0 errors
"""
MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at void decoding::cuda::norm_kernel<float>(NormParams)+0x120
=========     by thread (0,0,0) in block (1,0,0)
=========         Host Frame: main
=========
========= Invalid __global__ read of size 4 bytes
=========     at void at::native::fill(float*)+0x20
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at decoding::cuda::block_sum(float)+0x40
=========     and Write access at decoding::cuda::block_sum(float)+0x80 [2 hazards]
=========
========= Warning: Race reported between Read access at cublasLt::kernel+0x40
=========     and Write access at cublasLt::kernel+0x80 [2 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 errors, 1 warnings)
"""


@pytest.mark.parametrize(
    ("log", "ours", "expected"),
    [
        (CLEAN, False, 0),
        (CLEAN, True, 0),
        (MEMCHECK, False, 2),
        (MEMCHECK, True, 1),
        (RACECHECK, False, 2),
        (RACECHECK, True, 1),
    ],
)
def test_reports_are_counted(log: str, ours: bool, expected: int) -> None:
    assert reports(log, ours) == expected


def test_each_function_and_type_is_chosen() -> None:
    tests = [
        f"a.py::test_{name}[cuda-{dtype}-{i}]"
        for name in "xy"
        for dtype in ("float32", "float16", "bfloat16")
        for i in range(10)
    ]
    chosen = select([*tests, "a.py::test_z"], 2)
    assert len(chosen) == 13 and len(set(chosen)) == 13
    assert [test for test in chosen if "test_x[cuda-float32-" in test] == [tests[0], tests[5]]


def test_parts_are_all_runs_once() -> None:
    tests = ["tests/kernels/rows/test_norm.py::test_a[cuda-float32]"]
    tests += ["tests/kernels/collective/test_sum.py::test_b[cuda-float32]"]
    tests += [f"tests/kernels/rows/test_embed.py::test_{i}" for i in range(2 * TESTS_A_RUN + 1)]
    runs = all_runs(tests, TOOLS)
    assert sum(run.what == "kernels/rows/test_norm" for run in runs) == 4
    assert sum(run.what == "kernels/collective/test_sum" for run in runs) == 3
    embed = [run for run in runs if run.what.startswith("kernels/rows/test_embed")]
    assert [run.what[-3:] for run in embed] == ["1/3", "2/3", "3/3"] * 4
    assert sum(run.cases for run in embed) == 4 * (2 * TESTS_A_RUN + 1)
    for tool in TOOLS:
        generated = [run.command[2] for run in runs if run.tool == tool and not run.ours]
        assert sorted(",".join(generated).split(",")) == sorted(generations.NAMES)
    parts = [part_of(runs, f"{i}/7") for i in range(1, 8)]
    assert sorted(run for part in parts for run in map(str, part)) == sorted(map(str, runs))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for wrong in ("0/7", "8/7", "1", "a/b"):
        with pytest.raises(SystemExit, match="must be like 2/20"):
            part_of(runs, wrong)


def test_tests_of_kernels_are_found() -> None:
    tests = kernel_tests("tests/kernels/conv")
    assert {test.partition("::")[0] for test in tests} >= {"tests/kernels/conv/test_depthwise.py"}
    assert len(tests) > 100


def test_rows_are_added_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "sanitizers.csv"
    assert done(path, "abc") == set()
    for what in ("kernels/rows/test_norm", "generation float16 gpt2 t5"):
        append(path, Row("memcheck", what, 3, 0, 12.5, "H200", "torch 2", "abc"))
    assert (
        path.read_text().splitlines()[0] == "tool,what,cases,reports,seconds,device,versions,commit"
    )
    assert done(path, "abc") == {
        ("memcheck", "kernels/rows/test_norm"),
        ("memcheck", "generation float16 gpt2 t5"),
    }
    assert done(path, "another") == set()


@pytest.mark.parametrize("name", ["gpt2", "mistral-wide", "bert-masked"])
def test_generations_run_on_a_cpu(name: str) -> None:
    assert name in generations.NAMES
    generations.main(name, "bfloat16", [5], "cpu")
