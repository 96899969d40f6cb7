"""`decoding plan`: the memory that a model needs."""

from __future__ import annotations

from pathlib import Path

import pytest

import decoding
from tests.cli.program import Program, one_line
from tests.support import random_models


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_plan_prints_the_memory_plan(name: str, tmp_path: Path, program: Program) -> None:
    random_models.reference(name).save_pretrained(tmp_path)
    model = decoding.load(tmp_path, "cpu")
    program()  # forgets what saving has said
    command = ["plan", "--model", str(tmp_path), "--device", "cpu"]
    most = min(64, model.spec.decoder.positions)
    source = most if model.spec.encoder else 0
    limits = decoding.Limits(batch=1, beams=1, source=source, prompt=1, target=most)
    assert program(*command) == (0, f"{model.memory_plan(limits)}\n", "")
    sizes = "--batch 3 --beams 2 --prompt 4 --target 9".split()
    limits = decoding.Limits(batch=3, beams=2, source=7 if source else 0, prompt=4, target=9)
    plan = model.memory_plan(limits)
    words = [*command, *sizes, *(["--source", "7"] if source else [])]
    assert program(*words).out == f"{plan}\n"
    assert program(*words, "--full").out == f"{plan.table()}\n\n{plan}\n"


def test_plan_of_an_engine(tmp_path: Path, program: Program) -> None:
    random_models.reference("marian").save_pretrained(tmp_path)
    model = decoding.load(tmp_path, "cpu")
    program()  # forgets what saving has said
    with decoding.Engine(model, memory=1 << 22, max_requests=6) as engine:
        plan = engine.memory_plan()
    words = "--device cpu --engine --memory 4M --max-requests 6 --beams 3 --target 20"
    found = program("plan", "--model", str(tmp_path), *words.split()).out.splitlines()
    source = min(64, model.spec.decoder.positions)
    fit = plan.requests(source=source, target=20, beams=3)
    assert fit == 2, "six rows, though there are pages for more"
    assert found[-1].endswith(f"beams 3 that fit at once: {fit}")
    assert f"{plan.pages} pages" in found[-2]


def test_requests_that_fit_at_once() -> None:
    model = decoding.load(random_models.reference("marian"), "cpu")
    plan = model.memory_plan(decoding.Limits(batch=5, beams=3, source=17, prompt=4, target=15))
    assert plan.requests(source=17, prompt=4, target=15, beams=3) == 5
    assert plan.requests(source=1, target=1) == 5, "sentences of a call, though pages have room"
    for name in ("source", "prompt", "target", "beams"):
        longest = {"source": 17, "prompt": 4, "target": 15, "beams": 3}
        assert plan.requests(**longest | {name: longest[name] + 1}) == 0, name
    assert plan.pages == 5 * (2 + 4)  # 17 cells and 3 x 18 ones
    pools = [buffer for buffer in plan.buffers if buffer.name in ("k_pages", "v_pages")]
    assert plan.page_bytes * plan.pages == sum(pool.bytes for pool in pools)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--source 7", "leave --source out"),
        ("--target 100000", "target=100000 is beyond the model's"),
        ("--memory 5", "add --engine"),
        ("--engine --batch 2", "an engine has pages, not batches"),
        ("--batch 0", "must be a whole number of at least 1"),
        ("--batch 3000000000", "--batch: must be at most 2147483647, got '3000000000'"),
        (f"--beams {'9' * 20}", "num_beams must be at most 16777216"),
        ("--beams 0", "num_beams must be at least 1"),
        ("--threads 99999999999", "--threads: must be at most 2147483647"),
        ("--engine --memory 4X", "must be bytes such as 500M or 4G, got '4X'"),
    ],
)
def test_what_cannot_be_planned(words: str, says: str, tmp_path: Path, program: Program) -> None:
    random_models.reference("gpt2").save_pretrained(tmp_path)
    program()  # forgets what saving has said
    status, out, err = program("plan", "--model", str(tmp_path), *words.split())
    assert (status, out) == (2, "") and one_line(err) and says in err
