"""`decoding embed`: vectors of lines, as .npy and as JSON lines."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import decoding
from decoding.cli.npy import write_rows
from decoding.cli.writing import Sink, opened
from tests.cli.program import Program, one_line
from tests.support.sentences import write_bert
from tests.support.vocabularies import ENGLISH, GERMAN

SHORT = [line[:20] for line in ENGLISH + GERMAN]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sentences")
    write_bert(folder)
    return folder


def test_npy(program: Program, folder: Path, tmp_path: Path) -> None:
    """A row for each line, in order, whatever the batches."""
    expected = decoding.load(folder, "cpu").embed([*SHORT, ""]).numpy()
    lines = "".join(f"{line}\n" for line in [*SHORT, ""])
    for batch in ("1", "50", "4096"):
        path = tmp_path / "vectors.npy"
        words = ["--batch-tokens", batch, "--output", str(path), "--device", "cpu"]
        status, out, err = program("embed", "-m", str(folder), *words, source=lines)
        assert (status, out) == (0, "") and one_line(err)
        assert err.startswith(f"{len(SHORT) + 1} lines, ")
        found = np.load(path)
        assert found.dtype == np.float32 and found.shape == (len(SHORT) + 1, 32)
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_standard_output(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    from decoding.cli.main import main

    (folder / "none").write_text("")
    assert main(["embed", "--model", str(folder), "--quiet", str(folder / "none")]) == 0
    assert np.load(io.BytesIO(capfdbinary.readouterr().out)).shape == (0, 32)


def test_json_lines(program: Program, folder: Path) -> None:
    expected = decoding.load(folder, "cpu").embed(SHORT).tolist()
    lines = "".join(json.dumps({"id": i, "text": line}) + "\n" for i, line in enumerate(SHORT))
    words = ["--model", str(folder), "--device", "cpu", "--input-format", "json", "--json"]
    out = program("embed", *words, source=lines).out
    for i, (line, vector) in enumerate(zip(out.splitlines(), expected, strict=True)):
        found = json.loads(line)
        assert (found["id"], found["text"]) == (i, SHORT[i])
        np.testing.assert_allclose(found["embedding"], vector, atol=1e-6)


def test_mistakes(program: Program, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text(f"so\n{'so ' * 30}\nso\n")
    words = ["embed", "--device", "cpu", str(tmp_path / "in"), "--json", "--quiet"]
    status, _, err = program(*words, "--model", str(folder))
    said = f"{tmp_path / 'in'}, line 2: the text has 62 tokens, the model reads 30: shorten it"
    assert status == 2 and one_line(err) and said in err and "--truncate" in err
    assert program(*words, "--model", str(folder), "--truncate").out.count("\n") == 3
    status, _, err = program(*words, "--model", "models/demo")
    assert status == 2 and "embed needs an encoder, such as BERT" in err
    plain = tmp_path / "plain"
    plain.mkdir()
    for name in ("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"):
        shutil.copy(folder / name, plain)
    status, _, err = program(*words, "--model", str(plain))
    assert status == 2 and "modules.json" in err


def rows_of(count: int) -> np.ndarray:
    return np.arange(3 * count, dtype=np.float32).reshape(count, 3)


def test_rows_reach_the_file_as_they_come(tmp_path: Path) -> None:
    """And an end by an exception leaves those before it."""
    path = tmp_path / "rows.npy"

    def rows() -> Iterator[np.ndarray]:
        for count, row in enumerate(rows_of(1200)):
            assert path.stat().st_size == 128 + 12 * count
            yield row
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), opened(str(path), []) as sink:
        write_rows(rows(), 3, sink)
    np.testing.assert_array_equal(np.load(path), rows_of(1200))


def test_rows_behind_others(tmp_path: Path) -> None:
    """A file that already holds an array, with and without appending."""
    path = tmp_path / "rows.npy"
    for mode in ("ab", "r+b"):
        np.save(path, rows_of(2))
        with open(path, mode) as file:
            file.seek(0, 2)
            assert write_rows(iter(rows_of(5)), 3, Sink(file, "rows")) == 5
        with open(path, "rb") as file:
            for count in (2, 5):
                np.testing.assert_array_equal(np.load(file), rows_of(count))
