"""`decoding score`: what it reads, writes and says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch

import decoding
from tests.cli.program import Program, Said
from tests.support import random_models
from tests.support.demo import DEMO
from tests.support.stand_in import StandIn
from tests.support.vocabularies import train_bpe

GERMAN = ["Das ist ein Haus.", "", "Wir haben heute keine Zeit.", "Ja."]
ENGLISH = ["This is a house.", "", "We don't have time today.", "No, I do not think so at all."]


@pytest.fixture(scope="module")
def translator() -> decoding.Model:
    return decoding.load(DEMO, device="cpu", threads=1)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> decoding.Model:
    folder = tmp_path_factory.mktemp("gpt2")
    train_bpe(folder)
    with torch.no_grad():
        model = random_models.gpt2("gpt2-large")
    model.generation_config.bos_token_id = 0
    model.save_pretrained(folder)
    return decoding.load(folder, device="cpu", threads=1)


class Score(Protocol):
    """Runs `decoding score` with a model."""

    def __call__(self, model: decoding.Model, *words: str, source: str = "") -> Said: ...


@pytest.fixture
def score(program: Program) -> Score:
    def run(model: decoding.Model, *words: str, source: str = "") -> Said:
        return program("score", "--model", "any", *words, source=source, model=model)

    return run


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Arguments that name a source and a target file."""
    arguments = []
    for name, lines in (("source", GERMAN), ("target", ENGLISH)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        arguments += [f"--{name}", str(tmp_path / name)]
    return arguments


def numbers(out: str) -> list[tuple[float, float, int]]:
    rows = [line.split(" ||| ") for line in out.splitlines()]
    return [(float(logprob), float(mean), int(tokens)) for logprob, mean, tokens in rows]


def perplexity(err: str) -> float:
    name, number, *_ = err.split()
    assert name == "perplexity"
    return float(number.rstrip(","))


@pytest.mark.parametrize("batch", ["1", "4096"])
def test_translations(
    score: Score, translator: decoding.Model, files: list[str], batch: str
) -> None:
    code, out, err = score(translator, *files, "--batch-tokens", batch)
    tokenizer = translator.tokenizer
    targets = [tokenizer.encode_target(line) for line in ENGLISH]
    scores = translator.score([tokenizer.encode(line) for line in GERMAN], targets)
    found = numbers(out)
    assert code == 0 and [tokens for *_, tokens in found] == [len(ids) for ids in targets]
    assert [logprob for logprob, *_ in found] == pytest.approx(scores.sums.tolist(), abs=1e-3)
    assert [mean for _, mean, _ in found] == pytest.approx(scores.means.tolist(), abs=1e-3)
    assert found[3][1] < found[0][1] - 1  # a wrong translation is less probable than a right one
    first, second = err.splitlines()
    assert perplexity(first) == pytest.approx(scores.perplexity, rel=1e-4)
    assert second.startswith(f"4 lines, {sum(map(len, targets))} tokens in ")


def test_plain_text(score: Score, gpt2: decoding.Model) -> None:
    """The beginning of a line counts: it follows BOS. A line without text has no tokens."""
    text = "the house\n\nis green"
    code, out, err = score(gpt2, source=text)
    rows = [[0, *gpt2.tokenizer.encode(line)] for line in text.split("\n")]
    found = numbers(out)
    assert code == 0 and [tokens for *_, tokens in found] == [len(ids) - 1 for ids in rows]
    scores = gpt2.score(rows)
    assert [logprob for logprob, *_ in found] == pytest.approx(scores.sums.tolist(), abs=1e-3)
    assert found[1] == (0, 0, 0)
    assert perplexity(err) == pytest.approx(
        math.exp(-scores.sums.sum() / scores.lengths.sum()), rel=1e-4
    )


def test_nothing(score: Score, gpt2: decoding.Model) -> None:
    code, out, err = score(gpt2)
    assert (code, out) == (0, "") and err.startswith("perplexity 1.0000")


def test_a_perplexity_beyond_a_float(score: Score) -> None:
    """The stand-in's tokens have minus a hundredth of the row's length each."""
    pair = "a\t" + "b " * 99_999
    code, out, err = score(StandIn(positions=10**6), "--input-format", "tsv", source=pair)
    assert code == 0 and out.endswith("\t-1000.0000\t100000\n")
    assert err.startswith("perplexity inf, log-probability -1")
    assert "perplexity=inf" in repr(StandIn().score_arrays([[2]], [[2] * 100_000]))


def test_output_file(
    score: Score, translator: decoding.Model, files: list[str], tmp_path: Path
) -> None:
    expected = score(translator, *files)[1]
    assert score(translator, *files, "--output", str(tmp_path / "scores"))[:2] == (0, "")
    assert (tmp_path / "scores").read_text() == expected
    code, _, err = score(translator, *files, "--output", str(tmp_path / "target"))
    assert code == 2 and "is the input too" in err
    assert (tmp_path / "target").read_text().splitlines() == ENGLISH


def test_mistakes(
    score: Score, translator: decoding.Model, gpt2: decoding.Model, files: list[str]
) -> None:
    source = files[:2]
    cases: list[tuple[Any, list[str], str, str]] = [
        (gpt2, source, "", "leave --source out"),
        (translator, [], "", "say with --source what --target translates"),
        (
            translator,
            source,
            "one\ntwo",
            "the target has only 2 lines: it must",
        ),
        (translator, source, "x\n" * 5, "the source has only 4 lines: it must have as many"),
        (translator, source, "a b " * 999 + "\nx" * 3, "line 1 has "),
        (gpt2, [], "the " * 200, "line 1 has "),
        (translator, ["--source", "nowhere"], "", "nowhere: No such file"),
        (translator, ["--source", "-"], "a\nb\n", "source and target are both standard input"),
        (translator, ["--source", "-", *files[3:], "-"], "a\nb\n", "which can be read once"),
    ]
    for model, arguments, text, message in cases:
        code, _, err = score(model, *arguments, source=text)
        assert code == 2 and message in err and err.count("\n") == 1, (message, err)


def test_formats(
    score: Score, translator: decoding.Model, gpt2: decoding.Model, files: list[str]
) -> None:
    """TSV and JSON lines hold sources and targets side by side."""
    expected = [line.split(" ||| ") for line in score(translator, *files)[1].splitlines()]
    pairs = list(zip(GERMAN, ENGLISH, strict=True))
    tsv = "".join(f"{source}\t{target}\n" for source, target in pairs)
    out = score(translator, "--input-format", "tsv", source=tsv)[1]
    assert out.splitlines() == [
        "\t".join([*pair, *numbers]) for pair, numbers in zip(pairs, expected, strict=True)
    ]
    lines = "".join(
        json.dumps({"source": source, "target": target}) + "\n" for source, target in pairs
    )
    out = score(translator, "--input-format", "json", source=lines)[1]
    for pair, numbers, line in zip(pairs, expected, out.splitlines(), strict=True):
        found = json.loads(line)
        assert (found["source"], found["target"]) == pair
        assert float(numbers[0]) == pytest.approx(found["logprob"], abs=1e-4)
        assert found["tokens"] == int(numbers[2])
    [line] = score(gpt2, "--json", source="the house")[1].splitlines()
    assert json.loads(line)["text"] == "the house" and json.loads(line)["logprob"] < 0
    status, _, err = score(translator, "--input-format", "json", source='{"target": "x"}')
    assert status == 2 and "standard input, line 1: 'source' must be a string, got None" in err
