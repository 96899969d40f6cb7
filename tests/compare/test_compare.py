"""What a comparison reads, checks, computes and keeps."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from decoding.compare.bounds import (
    Work,
    dependent_launches,
    roofline_bound,
    work_before,
    work_of_step,
)
from decoding.compare.checks import Answers, before_end, check, quality
from decoding.compare.engines import EngineConfig, Settings
from decoding.compare.results import Ceilings, Check, Comparison, Difference, Machine, Run
from decoding.compare.roofline import compile_loops
from decoding.compare.text import Text, batches, read_text
from decoding.compare.timing import percentile
from decoding.models import ModelSpec
from decoding.text.tokenizers.framed import FramedTokenizer
from tests.compare.specs import GPT, STACK, TRANSFORMER_BASE
from tests.support.stub_engines import Echo


class Letters(FramedTokenizer):
    """A tokenizer: a token for each character."""

    tokens = {number: chr(number) for number in range(128)}

    def cut(self, text: str) -> list[int]:
        return list(map(ord, text))

    def framed(self, first: list[int], second: list[int] | None = None) -> list[int]:
        return [*first, *(second or [])]

    def encode_target(self, text: str) -> list[int]:
        return self.cut(text)

    def text_of(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return "".join(map(chr, ids))


# What a step moves and computes, against numbers counted by hand.


def test_work_of_an_encoder_decoder() -> None:
    """Rows are 2 * 4, of 33 tokens on average where 65 are generated; sources 10 and 20."""
    work = work_of_step(TRANSFORMER_BASE, [10, 20], 4, 65, "float16")
    weights = 6 * (4 * 512**2 + 2 * 512**2 + 2 * 512 * 2048) + 32000 * 512
    assert weights == 38_404_096  # "Transformer-base: 78 MB" in two bytes with positions
    kept = 6 * 512 * (8 * 33 + 30)
    assert work.bytes == 2 * weights + 2 * 2 * kept
    assert work.flops == 2 * weights * 8 + 4 * 6 * 512 * (8 * 33 + 4 * 30)


def test_work_of_a_decoder_alone() -> None:
    """The prompt is kept once for its sentence; keys of int8 models have two bytes."""
    work = work_of_step(GPT, [10], 4, 1, "int8")
    weights = 6 * (4 * 512**2 + 2 * 512 * 2048) + 32000 * 512
    assert work.bytes == weights + 2 * 2 * 6 * 512 * (10 + 4 * 1)
    assert work.flops == 2 * weights * 4 + 4 * 6 * 512 * 4 * (10 + 1)


def test_work_of_shared_heads_gates_and_windows() -> None:
    window = (0, 8, 8, 8, 8, 8)
    stack = replace(STACK, kv_heads=2, gated=True, window=window)
    work = work_of_step(ModelSpec(None, stack), [10], 2, 5, "float32")  # 3 of them on average
    layer = 2 * 512 * 512 + 2 * 512 * 128 + 3 * 512 * 2048
    shared, within = 10 + 2 * 3, 5 + 2 * 3  # keys in the first layer, and where 8 are seen
    assert work.bytes == 4 * (6 * layer + 32000 * 512) + 4 * 2 * 128 * (shared + 5 * within)


def test_work_before_the_first_step() -> None:
    work = work_before(TRANSFORMER_BASE, [10, 20], "float32")
    weights = 6 * (4 * 512**2 + 2 * 512 * 2048) + 6 * 2 * 512**2  # and cross keys and values
    assert work == Work(4 * weights, 2 * weights * 30 + 4 * 6 * 512 * (100 + 400))
    assert work_before(GPT, [1, 1], "float32") == Work(0, 0)  # a step reads the last token


def test_dependent_launches() -> None:
    parallel = ModelSpec(None, replace(STACK, parallel=True))
    assert (
        dependent_launches(TRANSFORMER_BASE),
        dependent_launches(GPT),
        dependent_launches(parallel),
    ) == (51, 33, 21)


@pytest.mark.parametrize(
    "ceilings, bound",
    [
        (Ceilings(bandwidth=1e9, flops=1e15), "memory"),
        (Ceilings(bandwidth=1e15, flops=1e9), "arithmetic"),
        (Ceilings(bandwidth=1e15, flops=1e18, launch=1e-6), "launches"),
        (Ceilings(bandwidth=math.nan, flops=math.nan), ""),
    ],
)
def test_what_binds(ceilings: Ceilings, bound: str) -> None:
    found = roofline_bound(TRANSFORMER_BASE, [8], 1, 16, ceilings, "float32")
    step = work_of_step(TRANSFORMER_BASE, [8], 1, 16, "float32")
    once = work_before(TRANSFORMER_BASE, [8], "float32")
    assert found.bound_by == bound
    assert found.work == Work(step.bytes + once.bytes / 16, step.flops + once.flops / 16)
    if bound == "memory":
        assert found.seconds == pytest.approx(found.work.bytes / 1e9)
    elif bound == "launches":
        assert found.seconds == pytest.approx(51e-6, rel=0.01)
    elif not bound:
        assert math.isnan(found.seconds)


# Answers.


def test_tokens_before_the_end() -> None:
    assert before_end([5, 6, 2, 1, 1], {2, 3}) == [5, 6]
    assert before_end([5, 6], {2}) == [5, 6]
    assert before_end([2], {2}) == []


def answers(who: str, texts: list[str], scores: list[float]) -> Answers:
    return Answers(who, [Letters().encode(text) for text in texts], scores)


def test_a_check() -> None:
    text = Text("t", list("abcd"), [[1]] * 4, ["the cat sat here"] * 4, [1, 3, 4, 9])
    reference = answers("hf float32 cpu", ["the cat sat here", "b", "c", "d"], [-1, -2, -3, -4])
    found = answers("ours", ["the cat sat here", "x", "c", "d"], [-1.5, 9.0, -3.0, -4.25])
    config = EngineConfig(Echo, Settings("cpu", "int8", 1))
    result = check(config, 4, found, reference, text, Letters())
    assert (result.engine, result.dtype, result.reference) == ("echo", "int8", "hf float32 cpu")
    assert (result.identical, result.sentences, result.share) == (3, 4, 0.75)
    assert result.largest == 0.5 and result.mean == pytest.approx(0.25)  # where texts are the same
    assert result.differing == (Difference(3, "b", "b", "x"),)
    assert 0 < result.bleu < 100 and 0 < result.chrf < 100
    assert math.isnan(quality(["a"], [])[0])


def test_greedy_search_has_no_scores() -> None:
    text = Text("t", ["a"], [[1]], [], [1])
    same = answers("x", ["a"], [math.nan])
    result = check(EngineConfig(Echo, Settings("cpu", "int8", 1)), 1, same, same, text, Letters())
    assert math.isnan(result.largest) and math.isnan(result.mean)


# Text.


def test_lines_that_are_read(tmp_path: Path) -> None:
    source, target = tmp_path / "s.txt", tmp_path / "t.txt"
    source.write_text("ab\n\nabcdef\ncd\nef\n", encoding="utf-8")
    target.write_text("1\n2\n3\n4\n5\n", encoding="utf-8")
    text = read_text(source, target, Letters(), range(1, 5), lines=2)
    assert (text.name, text.sources, text.references) == ("s.txt", ["ab", "cd"], ["1", "4"])
    assert (text.numbers, text.left_out) == ([1, 4], 1)
    assert text.ids == [[97, 98], [99, 100]] and text.batch(3) == [0, 1, 0]


def test_separators_within_a_sentence_end_no_line(tmp_path: Path) -> None:
    source = tmp_path / "s.txt"
    lines = ["a\u2028b", "a\x0cb", "a\x1eb", "a\x85b", "a\rb", "c\r"]
    source.write_bytes("\r\n".join(lines).encode())
    text = read_text(source, source, Letters(), range(1, 5), lines=9)
    assert text.sources == text.references == [*lines[:-1], "c"]


def test_text_that_is_wrong(tmp_path: Path) -> None:
    source, target = tmp_path / "s.txt", tmp_path / "t.txt"
    source.write_bytes(b"ab\n")
    target.write_bytes(b"ab\ncd\n")
    with pytest.raises(ValueError, match=r"s\.txt has 1 lines, .*t\.txt 2"):
        read_text(source, target, Letters(), range(1, 5), lines=2)
    with pytest.raises(ValueError, match="no line of 1 to 1 tokens"):
        read_text(source, None, Letters(), range(1, 2), lines=2)
    source.write_bytes(b"a\xff\n")
    with pytest.raises(ValueError, match="not UTF-8: .* at byte 2"):
        read_text(source, None, Letters(), range(1, 5), lines=2)


def test_batches_have_lines_of_about_equal_lengths() -> None:
    text = Text("t", list("abcde"), [[0] * n for n in (3, 9, 1, 7, 5)], [], [])
    assert list(batches(text, 2)) == [[1, 3], [4, 0], [2]]


# Numbers that are kept.


def test_percentiles() -> None:
    assert [percentile([30, 10, 20], p) for p in (0, 20, 50, 100)] == [10, 14, 20, 30]


def test_json_keeps_everything() -> None:
    machine = Machine("a", "b", 2, "c", "d", {"float32": Ceilings(1e9, 2e9)})
    run = Run(
        "ours", "v", "i", "int8", "cpu", 1, 4, 8, 20, p50=2.0, roofline_bound=1.0, bytes=4, flops=8
    )
    check = Check("ours", "int8", "cpu", 4, "hf", differing=(Difference(1, "ä", "b", "c"),))
    whole = Comparison("m", "t", "out", 3, {"cpu": machine}, (check,), (run,))
    text = whole.to_json()
    assert "NaN" not in text and json.loads(text)["runs"][0]["p20"] is None
    back = Comparison.from_json(text)
    assert back.to_json() == text
    assert back.checks[0].differing == check.differing and math.isnan(back.runs[0].p20)
    assert back.runs[0].roofline_share == 0.5 and back.runs[0].intensity == 2.0
    assert back.machines["cpu"].ceilings["float32"].flops == 2e9


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"machines": 3, "checks": [], "runs": []}'])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no comparison's JSON"):
        Comparison.from_json(text)


def test_a_compiler_leaves_its_files_in_the_folder_of_the_measurement(tmp_path: Path) -> None:
    """Which goes, where Ctrl-C kills the compiler too."""
    compiler, folder = tmp_path / "cc", tmp_path / "folder"
    compiler.write_text('#!/bin/sh\nprintf %s "$TMPDIR" > "$0.temporary"\nexit 1\n')
    compiler.chmod(0o700)
    with pytest.raises(subprocess.CalledProcessError):
        compile_loops(str(compiler), folder)
    assert (tmp_path / "cc.temporary").read_text() == str(folder)
