"""Files that claim much, nest deeply or are damaged: an error that names the file, in little time
and memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoding.models import load
from decoding.models.files import (
    CONFIGURATION,
    VOCABULARY,
    YAML_OPTIONS,
    Bounds,
    ModelFileError,
    parse_json,
    read_bytes,
    short,
)
from decoding.models.files.yaml import parse_yaml
from decoding.text.tokenizers import load_tokenizer
from tests.models.bounded import bounded
from tests.support import toolkits
from tests.support.checkpoints import gpt2, write
from tests.support.demo import DEMO
from tests.support.toolkits import PRE_NORM, marian_arrays
from tests.support.vocabularies import train_sentencepiece

DEEP = [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 1000 + b"]" * 1000, b'{"a":' * 900]


def refused(path: Path, match: str = "", read: Callable[[Path], object] = load) -> None:
    """Reading says what is wrong in a sentence that names something in the model's directory."""
    with bounded(), pytest.raises(ModelFileError, match=match or None) as error:
        read(path)
    directory = path if path.is_dir() else path.parent
    assert str(directory) in str(error.value) and len(str(error.value)) < 1500


# JSON


@pytest.mark.parametrize("content", DEEP, ids=["lists", "tables", "closed", "tables-900"])
@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "model.safetensors.index.json"]
)
def test_deep_json(name: str, content: bytes, tmp_path: Path) -> None:
    write(tmp_path, gpt2())
    if "index" in name:
        (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(content)
    refused(tmp_path, rf"{name} (nests more than 64|is not valid JSON)")


@pytest.mark.parametrize("content", DEEP, ids=["lists", "tables", "closed", "tables-900"])
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("gpt2", "tokenizer_config.json"),
        ("gpt2", "vocab.json"),
        ("gpt2", "tokenizer.json"),
        ("gpt2", "special_tokens_map.json"),
        ("marian", "vocab.json"),
        ("blenderbot-small", "vocab.json"),
    ],
)
def test_deep_json_of_tokenizers(family: str, name: str, content: bytes, tmp_path: Path) -> None:
    for file in ("source.spm", "target.spm"):
        (tmp_path / file).write_bytes((DEMO / file).read_bytes())
    (tmp_path / "vocab.json").write_text('{"<|endoftext|>": 0}')
    (tmp_path / "merges.txt").touch()
    (tmp_path / name).write_bytes(content)
    refused(tmp_path, name, lambda path: load_tokenizer(path, {"model_type": family}))


def test_the_deepest_json() -> None:
    content = b"[" * 64 + b"]" * 64
    assert json.dumps(parse_json(content, "x")).encode() == content
    with pytest.raises(ModelFileError, match="x nests more than 64"):
        parse_json(b"[" + content + b"]", "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": "\xff"}', "x is not UTF-8: byte 7 is 0xff"),
        (b'{"a": "\\ud800"}', "x has half of a surrogate pair"),
        (b'{"a\\udfff": 1}', "x has half of a surrogate pair"),
        (b'{"a": ' + b"9" * 5000 + b"}", "x is not valid JSON"),
        (b"", "x is not valid JSON"),
        (b"[" + b"0," * (2 * CONFIGURATION.nodes) + b"0]", "x has more than 500000 entries"),
    ],
)
def test_json_that_is_none(content: bytes, message: str) -> None:
    with bounded(), pytest.raises(ModelFileError, match=message):
        parse_json(content, "x")
    assert parse_json(b'"\\ud83d\\ude00"', "x") == "\U0001f600"


def test_a_lone_surrogate_does_not_load(tmp_path: Path) -> None:
    directory = write(tmp_path, gpt2())
    config = directory / "config.json"
    config.write_text(config.read_text().replace("{", '{"name": "\\ud800",', 1))
    refused(directory, "config.json has half of a surrogate pair")


def test_sizes_of_files(tmp_path: Path) -> None:
    directory = write(tmp_path, gpt2())
    with (directory / "config.json").open("r+b") as file:
        file.truncate(CONFIGURATION.bytes + 1)  # it takes no place on the disk
    refused(directory, "config.json has more than 16 MiB")
    with (tmp_path / "vocab.json").open("wb") as file:
        file.truncate(VOCABULARY.bytes + 1)
    refused(
        tmp_path,
        "vocab.json has more than 64 MiB",
        lambda path: load_tokenizer(path, {"model_type": "blenderbot-small"}),
    )
    (tmp_path / "small").write_bytes(b"12345")
    assert read_bytes(tmp_path / "small", Bounds(5, 1)) == b"12345"
    with pytest.raises(ModelFileError):
        read_bytes(tmp_path / "small", Bounds(4, 1))


# YAML


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 50_000, "(nests more than 64|not valid YAML: .*nesting depth)"),
        ("a: " + "{b: " * 50_000, "nests more than 64"),
        ("- " * 50_000, "nests more than 64"),
        ("? " * 50_000, "(nests more than 64|a key that is no text|not valid YAML)"),
        ("a: &a [b]\nc: *a", "an anchor or a tag.*line 1"),
        ("c: *a", "an anchor or a tag"),
        ("a: !!python/object/apply:os.system [ls]", "an anchor or a tag"),
        ("a: !!int ''", "an anchor or a tag"),
        ("[a]: b", "a key that is no text"),
        ("--- a\n--- b", "several documents"),
        ("a: b: c", "is not valid YAML"),
        ("a: \x00", "is not valid YAML"),
        ("a: \ud800", "is not valid YAML"),
        ("[" + "0," * (2 * YAML_OPTIONS.nodes) + "]", "more than 20000 entries"),
    ],
)
def test_yaml_within_bounds(text: str, message: str) -> None:
    with bounded(), pytest.raises(ModelFileError, match=f"(?s)^x .*{message}"):
        parse_yaml(text, "x")


def test_yaml_as_marian_writes_it() -> None:
    """Numbers, words and text without quotes, as in yaml-cpp."""
    text = """
        a: [1, -2, 0.5, .5, 1e-09, 2., yes, 'yes', "3", ~, null, , 1_000, 2001-01-01, x y]
        b: {c: d, 'e': {}}
        f:
        1: 2
    """
    assert parse_yaml(text.replace(", ,", ", "), "x") == {
        "a": [1, -2, 0.5, 0.5, 1e-9, 2.0, True, "yes", "3", None, None, "1_000", "2001-01-01"]
        + ["x y"],
        "b": {"c": "d", "e": {}},
        "f": None,
        "1": 2,
    }
    assert parse_yaml("a: [1, no]", "x", plain=True) == {"a": ["1", "no"]}
    assert parse_yaml("", "x") is None


BOMB = "\n".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" if i else "a0: &a0 [x]" for i in range(26))


@pytest.mark.parametrize("name", ["models", "word-penalty", "skip-cost"])
def test_yaml_bombs_in_a_decoder(name: str, tmp_path: Path) -> None:
    toolkits.write_marian(tmp_path / "model.npz", toolkits.marian_model(PRE_NORM))
    decoder = tmp_path / "decoder.yml"
    decoder.write_text(f"models: [model.npz]\n{BOMB}\n{name}: *a25\n")
    refused(tmp_path, "decoder.yml has an anchor")
    decoder.write_bytes(b"models: ['\xff']")
    refused(tmp_path, "decoder.yml is not UTF-8")


@pytest.fixture(scope="module")
def marian_npz() -> Any:
    return toolkits.marian_model(PRE_NORM)


@pytest.mark.parametrize("name", ["type", "transformer-decoder-dim-ffn", "dim-emb", "enc-depth"])
def test_yaml_bombs_in_a_model(name: str, marian_npz: Any, tmp_path: Path) -> None:
    write_npz(tmp_path / "model.npz", marian_npz, f"{BOMB}\n{name}: *a25\n".encode())
    refused(tmp_path, "special:model.yml of .*model.npz has an anchor")
    write_npz(tmp_path / "model.npz", marian_npz, b"type: \xff\n")
    refused(tmp_path, "special:model.yml of .*model.npz is not UTF-8")
    long = f"{name}: [{'x, ' * 100_000}]\n"
    write_npz(tmp_path / "model.npz", marian_npz, long.encode())
    refused(tmp_path)


def write_npz(path: Path, model: Any, options: bytes, **changed: Any) -> None:
    arrays = marian_arrays(model)
    arrays["special:model.yml"] = np.frombuffer(options + b"\0", np.int8)
    np.savez(path, **{**arrays, **changed})


@pytest.mark.parametrize("content", ["a: " + "[" * 50_000, BOMB, "a: -1", "a: 1.5", "a: [1]", "a"])
def test_vocabularies_of_marian(content: str, tmp_path: Path) -> None:
    train_sentencepiece(["ein haus"], tmp_path / "source.spm")
    for name in ("vocab.yml", "vocab.json"):
        (tmp_path / name).write_text(content)
        config = {"model_type": "marian_npz", "vocabs": [name, name]}
        refused(tmp_path, name, lambda path, config=config: load_tokenizer(path, config))  # type: ignore[misc]


def test_messages_are_short() -> None:
    with bounded():
        found: Any = "x"
        for _ in range(100):
            found = [found, found]
        values = [found, "y" * 10**7, 10**100_000, {i: found for i in range(10**5)}]
        assert all(len(short(value)) < 2000 for value in values)
        assert len(short(ValueError("z " * 10**6))) < 500
    assert short({"a": [1, "b"]}) == "{'a': [1, 'b']}" and short(KeyError("a")) == "KeyError 'a'"
