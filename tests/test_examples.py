"""The programs in examples/ run as their first lines say; each in seconds."""

from __future__ import annotations

import ast
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import decoding
from benchmarks.cases.texts import read_lines
from examples import (
    batch_corpus,
    compare_engines,
    complete_text,
    evaluate_corpus,
    fast_pipeline,
    parallel_processes,
    tokenizer_workers,
    translate_file,
)
from examples.train_a_translator import corpus, train
from tests.text.trained_tokenizers import text_generation_directory

ROOT = Path(__file__).parent.parent
SENTENCES = translate_file.DEMO / "sentences.de.txt"


def separated(folder: Path) -> tuple[Path, list[str]]:
    """A file and its lines, some with what ends a line for str.splitlines()."""
    sentences = SENTENCES.read_text("utf-8").splitlines()
    lines = ["\u2028".join(sentences[:2]), "\r".join(sentences[2:4]), *sentences[4:]]
    (folder / "in").write_bytes("\r\n".join(lines).encode())
    return folder / "in", lines


def test_translate_file(tmp_path: Path) -> None:
    output = tmp_path / "out"
    given, sources = separated(tmp_path)
    translate_file.main([str(given), str(output)])
    expected = decoding.load(translate_file.DEMO).translate(sources, num_beams=4)
    assert output.read_text("utf-8").splitlines() == expected


def test_complete_text(capsys: pytest.CaptureFixture[str]) -> None:
    complete_text.main(["Once upon a time", "--tokens", "20", "--seed", "1"])
    first = capsys.readouterr().out
    assert first.startswith("Once upon a time") and len(first) > 40
    complete_text.main(["Once upon a time", "--tokens", "20", "--seed", "1"])
    assert capsys.readouterr().out == first


def test_batch_corpus(tmp_path: Path) -> None:
    prompts = ["Once upon a time", "", "Lily saw a big dog", "The"]
    (tmp_path / "in").write_text("\n".join(prompts))
    batch_corpus.main([str(tmp_path / "in"), str(tmp_path / "out"), "--tokens", "8"])
    found = [json.loads(line) for line in (tmp_path / "out").read_text("utf-8").splitlines()]
    assert [line["prompt"] for line in found] == [prompt for prompt in prompts if prompt]
    assert all(line["text"] and -9 < line["score"] < 0 for line in found)


@pytest.mark.parametrize("example", [parallel_processes, tokenizer_workers])
def test_processes(example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_processes, "CHUNK", 5)
    given, sources = separated(tmp_path)
    example.main([str(given), str(tmp_path / "out")])
    expected = decoding.load(translate_file.DEMO, "cpu").translate(sources, num_beams=4)
    assert (tmp_path / "out").read_text("utf-8").splitlines() == expected


def test_evaluate_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = SENTENCES.read_text("utf-8").splitlines()
    found = decoding.load(translate_file.DEMO).translate(sources, num_beams=4)
    for references, score in ((found, "100.00"), (sources, "")):
        (tmp_path / "en").write_text("\n".join(references), "utf-8")
        evaluate_corpus.main([str(SENTENCES), str(tmp_path / "en")])
        said = capsys.readouterr().out
        assert said.startswith(f"BLEU = {score}") and f"chrF2 = {score}" in said
    assert "100.00" not in said


def test_lines_of_corpora_end_with_a_newline_alone(tmp_path: Path) -> None:
    path, expected = separated(tmp_path)
    assert evaluate_corpus.lines(path) == expected
    for language in ("de", "en"):
        (tmp_path / f"dev.{language}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert corpus.read_split(tmp_path, "dev") == (expected, expected)
    assert read_lines(tmp_path / "dev", "de") == expected


def test_fast_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text_generation_directory("gpt2", tmp_path)
    fast_pipeline.main(["--model", str(tmp_path), "--tokens", "8"])
    said = capsys.readouterr().out
    assert "decoding: 0." in said and said.endswith("the same text: True\n")


def test_tour(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a notebook would show last in each cell is there; HTML where we say so."""
    monkeypatch.chdir(ROOT / "examples")
    names: dict[str, Any] = {}
    shown = []
    for cell in json.loads(Path("tour.ipynb").read_text("utf-8"))["cells"]:
        assert cell["cell_type"] == "markdown" or not cell["outputs"]
        if cell["cell_type"] == "code":
            *statements, last = ast.parse("".join(cell["source"])).body
            exec(compile(ast.Module(statements, []), "tour.ipynb", "exec"), names)
            assert isinstance(last, ast.Expr)
            shown.append(eval(compile(ast.Expression(last.value), "tour.ipynb", "eval"), names))
    model, texts, beams, scores, plan, text = shown
    assert texts[0] == "Good morning." and text.startswith(", ")
    assert all("<" in each._repr_html_() for each in (model, beams, scores, plan))


@pytest.mark.slow
def test_pipelines(tmp_path: Path) -> None:
    """The shell's example, with this Python as the program."""
    subprocess.run(
        ["bash", "examples/pipelines.sh", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "DECODING": f"{sys.executable} -m decoding"},
        check=True,
        timeout=120,
    )
    lines = SENTENCES.read_text("utf-8").splitlines()
    uncertain = [line.split("\t") for line in (tmp_path / "uncertain.tsv").open(encoding="utf-8")]
    assert sorted(source for _, source, _ in uncertain) == sorted(lines)
    scores = [float(score) for score, *_ in uncertain]
    assert scores == sorted(scores)
    found = [json.loads(line) for line in (tmp_path / "translated.jsonl").open(encoding="utf-8")]
    assert [line["id"] for line in found] == ["a1", "b2"]
    assert found[0]["translation"] == "Good morning."
    answers = (tmp_path / "answers.tsv").read_text("utf-8")
    assert answers == "Wo ist der Bahnhof?\tWhere's the station?\nIch habe Hunger.\tI'm hungry.\n"
    [sampled] = [json.loads(line) for line in (tmp_path / "stories.jsonl").open(encoding="utf-8")]
    assert len(sampled["n_best"]) == 3 and sampled["score"] < 0


@pytest.mark.slow
def test_compare_engines(capsys: pytest.CaptureFixture[str]) -> None:
    compare_engines.main(["--against", "--rounds", "1"])
    said = capsys.readouterr().out
    assert "decoding float32, 4 beams: 12 of 12 lines" in said and "float32 8x4" in said


@pytest.mark.slow
def test_train_a_translator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A very small model learns for two steps, and what is written can be loaded."""
    pytest.importorskip("sacrebleu")
    lines = {"de": SENTENCES.read_text("utf-8").splitlines()}
    lines["en"] = decoding.load(translate_file.DEMO).translate(lines["de"])
    for split in ("train", "dev", "test"):
        for language, texts in lines.items():
            with gzip.open(tmp_path / f"{split}.{language}.gz", "wt", encoding="utf-8") as file:
                file.write("\n".join(texts) + "\n")
    monkeypatch.setattr(train, "PIECES", 150)
    program = "train --steps 2 --evaluations 1 --workers 1 --tokens 256 --shape 1 1 32 2 64".split()
    monkeypatch.setattr(
        sys, "argv", [*program, "--data", str(tmp_path), "--out", str(tmp_path / "model")]
    )
    train.main()
    assert len(decoding.load(tmp_path / "model").translate(lines["de"][:2])) == 2
