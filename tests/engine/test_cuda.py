"""What is particular to the GPU: half precision, streams, threads, tensors there, errors."""

from __future__ import annotations

import contextlib
import copy
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import decoding
from decoding.cli.main import main
from tests.support.comparison import assert_close_scores
from tests.support.random_models import load, ours, reference

pytestmark = pytest.mark.gpu

NAMES = ["marian", "gpt2", "marian-large", "gpt2-large"]
LARGE = ["marian-large", "gpt2-large"]


def inputs(name: str, batch: int, width: int, seed: int = 0) -> dict[str, Tensor]:
    """Rows of all lengths."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(12, 50, (batch, width), generator=generator)
    tokens = torch.randint(1, width + 1, (batch, 1), generator=generator)
    columns = torch.arange(width)
    mask = columns < tokens if name.startswith("marian") else columns >= width - tokens
    return {"input_ids": ids, "attention_mask": mask.long()}


def run(model: Any, given: dict[str, Tensor], **options: Any) -> Any:
    """A call of ours or of transformers."""
    scores = "output_sequences_scores" if isinstance(model, decoding.Model) else "output_scores"
    options = {"max_new_tokens": 20, "return_dict_in_generate": True, scores: True} | options
    return model.generate(**given, **options)


def test_another_thread_may_wait_for_the_device() -> None:
    """It may break a capture, which then begins anew; CUDA refuses to wait while there is one."""
    ended, waits = threading.Event(), 0

    def wait() -> None:
        nonlocal waits
        while not ended.wait(0.002):
            with contextlib.suppress(RuntimeError):
                torch.cuda.synchronize()
            waits += 1

    shapes = [(batch, width) for batch in (1, 2, 3, 5) for width in (4, 9)]
    alone, beside = (load("marian", "cuda") for _ in range(2))
    expected = [run(alone, inputs("marian", *shape), num_beams=3) for shape in shapes]
    thread = threading.Thread(target=wait)
    thread.start()
    try:
        found = [run(beside, inputs("marian", *shape), num_beams=3) for shape in shapes]
    finally:
        ended.set()
        thread.join()
    assert waits > 0
    for mine, wanted in zip(found, expected, strict=True):
        assert torch.equal(mine.sequences, wanted.sequences)


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize(
    ("batch", "beams"), [(1, 1), (1, 4), (3, 5), (8, 4), (33, 1), (33, 4), (128, 4)]
)
def test_many_rows_find_what_the_cpu_finds(name: str, batch: int, beams: int) -> None:
    given = inputs(name, batch, 40)
    found, expected = (
        run(ours(name, device), given, num_beams=beams, num_return_sequences=beams)
        for device in ("cuda", "cpu")
    )
    same = (found.sequences == expected.sequences).all(1)
    assert float(same.float().mean()) > 0.98, "ties are rare"
    if beams > 1:
        assert_close_scores(found.sequences_scores[same], expected.sequences_scores[same])
        assert torch.equal(found.beam_indices[same], expected.beam_indices[same])


@cache
def half(name: str, dtype: torch.dtype) -> Any:
    """transformers' model on the GPU in that type."""
    return copy.deepcopy(reference(name)).to("cuda", dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beams", [1, 4])
def test_half_precision_is_as_good_as_the_references(
    name: str, dtype: torch.dtype, beams: int
) -> None:
    """The one tolerance rule, on each step's scores while the tokens so far are float32's."""
    given = inputs(name, 12, 30)
    options = {"output_scores": True, "num_beams": beams, "eos_token_id": None}
    on_gpu = {key: value.cuda() for key, value in given.items()}
    exact = run(reference(name), given, **options)
    theirs = run(half(name, dtype), on_gpu, **options)
    mine = run(load(name, "cuda", dtype=dtype), on_gpu, **options)
    assert mine.sequences.device.type == "cuda"
    errors: dict[str, list[Tensor]] = {"theirs": [], "ours": []}
    steps = len(exact.scores)
    begin = exact.sequences.shape[1] - steps
    agree = torch.ones(len(given["input_ids"]), dtype=torch.bool)
    for step in range(steps):
        rows = agree.repeat_interleave(beams)
        if not agree.any():
            break
        values = exact.scores[step][rows]
        for key, found in (("theirs", theirs), ("ours", mine)):
            errors[key].append((found.scores[step].cpu().float()[rows] - values).abs().max())
        largest = values.abs().max()
        if beams > 1:
            break  # which beams go on cannot be seen from here
        for found in (theirs, mine):
            agree &= found.sequences[:, begin + step].cpu() == exact.sequences[:, begin + step]
    allowed = 2 * torch.stack(errors["theirs"]).max() + torch.finfo(dtype).eps * largest
    assert torch.stack(errors["ours"]).max() <= allowed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LARGE)
def test_beam_search_in_half_precision_finds_as_good_rows(name: str, dtype: torch.dtype) -> None:
    """Mean score of what we find, by ourselves in float32: not below the reference's in half."""
    given = inputs(name, 24, 30)
    options = {"num_beams": 4, "eos_token_id": None}
    on_gpu = {key: value.cuda() for key, value in given.items()}
    theirs = run(half(name, dtype), on_gpu, **options).sequences.cpu()
    mine = run(load(name, "cuda", dtype=dtype), given, **options).sequences
    scores = [log_probability(name, given, rows) for rows in (mine, theirs)]
    assert float(scores[0].mean()) >= float(scores[1].mean()) - 0.01 * float(scores[1].abs().mean())


@torch.no_grad()
def log_probability(name: str, given: dict[str, Tensor], rows: Tensor) -> Tensor:
    """Of each row's 20 new tokens, in float32, divided by their number."""
    if name.startswith("marian"):
        logits = reference(name)(**given, decoder_input_ids=rows[:, :-1]).logits
    else:
        new = torch.ones(len(rows), 20, dtype=torch.int64)
        mask = torch.cat([given["attention_mask"], new], 1)
        position = (mask.cumsum(1) - 1).clamp(min=0)
        logits = reference(name)(rows, attention_mask=mask, position_ids=position).logits[:, :-1]
    chosen = logits.log_softmax(-1).gather(2, rows[:, 1:, None])[..., 0]
    return chosen[:, -20:].mean(1)


@pytest.mark.parametrize("name", LARGE)
def test_draws_are_those_of_the_cpu(name: str) -> None:
    given = inputs(name, 16, 20)
    for filters in ({"top_k": 50, "top_p": 0.9}, {"top_k": 0, "top_p": 0.8}, {"top_k": 0}):
        options = {"do_sample": True, "seed": 5, "num_return_sequences": 3} | filters
        found, expected = (
            run(ours(name, device), given, **options).sequences for device in ("cuda", "cpu")
        )
        same = (found == expected).all(1)
        assert float(same.float().mean()) > 0.95, "a draw on an edge is rare"


def test_results_are_where_the_ids_are() -> None:
    model = ours("marian", "cuda")
    assert (model.device, model.dtype) == (torch.device("cuda", 0), torch.float32)
    given = inputs("marian", 3, 6)
    there = {key: value.cuda() for key, value in given.items()}
    options = {"num_beams": 3, "output_scores": True}
    here, found = run(model, given, **options), run(model, there, **options)
    for key, value in found.items():
        for tensor in value if isinstance(value, tuple) else [value]:
            assert tensor.device == model.device, key
    assert here.sequences.device.type == "cpu"
    assert torch.equal(here.sequences, found.sequences.cpu())
    assert model.generate(given["input_ids"].tolist()).device.type == "cpu"
    mixed = {"input_ids": there["input_ids"], "attention_mask": given["attention_mask"]}
    with pytest.raises(ValueError, match="input_ids is on cuda:0, attention_mask is on cpu"):
        run(model, mixed)
    with pytest.raises(ValueError, match="input_ids is on cuda:0, but the model on cpu"):
        run(ours("marian"), there)


def test_the_callers_stream_is_respected() -> None:
    """Ids that earlier work of the stream computes, while that work is still running."""
    model = ours("gpt2", "cuda")
    given = {key: value.cuda() for key, value in inputs("gpt2", 4, 6).items()}
    expected = run(model, given, num_beams=3)
    late = torch.zeros_like(given["input_ids"])
    torch.cuda.synchronize()
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            late.zero_()
            torch.cuda._sleep(100_000_000)
            late.copy_(given["input_ids"])
            found = run(model, given | {"input_ids": late}, num_beams=3)
            after = found.sequences.clone()
        stream.synchronize()
        assert torch.equal(after, expected.sequences)


def test_models_and_threads_share_a_gpu() -> None:
    """Four threads with streams of their own, two models, calls of several shapes."""
    jobs = [
        (name, inputs(name, batch, 12, batch), {"num_beams": beams})
        for name in ("marian-large", "gpt2-large")
        for batch, beams in ((1, 1), (5, 4), (20, 2))
    ]
    expected = [
        run(ours(name, "cuda"), given, **options).sequences for name, given, options in jobs
    ]

    def work(first: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(12):
                at = (first + turn) % len(jobs)
                name, given, options = jobs[at]
                found = run(ours(name, "cuda"), given, **options).sequences
                assert torch.equal(found, expected[at]), (name, options)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


LOST = """
import torch, decoding
from pathlib import Path

model = decoding.load(Path(decoding.__file__).parent / "models" / "demo", "cuda")
before = model.generate([[5, 6, 0]])
try:  # an assertion on the device ends its context
    torch.zeros(3, device="cuda")[torch.tensor([7], device="cuda")].tolist()
except RuntimeError:
    pass
for _ in range(2):
    try:
        model.generate([[5, 6, 0]])
    except decoding.Error as error:
        print("decoding.Error:", error)
"""


def test_a_lost_device_is_an_error_and_the_process_lives() -> None:
    run = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=80)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("decoding.Error:") == 2 and "CUDA" in run.stdout


def test_the_program(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    demo = str(Path(decoding.__file__).parent / "models" / "demo")
    place = ["--model", demo, "--device", "cuda:0", "--dtype", "bfloat16"]
    assert main(["plan", *place, "--beams", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("total ") and re.fullmatch(
        r"a decoding step is a graph of [1-9]\d* nodes", lines[-1]
    )
    (tmp_path / "in").write_text("Das ist ein Haus.\n")
    assert main(["translate", *place, "--input", str(tmp_path / "in")]) == 0
    out, err = capsys.readouterr()
    assert out.endswith(" house.\n") and torch.cuda.get_device_name(0) in err
    assert "bfloat16" in err
