"""Files whose parts contradict each other: archives, tensors, indices, headers."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import decoding
from decoding.models import load
from decoding.models.files import Directory, ModelFileError
from decoding.models.formats import npz
from decoding.models.weights.converted import BLOCK, INDEX
from decoding.text import shortlist
from decoding.text.embed import read_mode, read_pooling
from decoding.text.shortlist import Shortlist
from tests.models.bounded import bounded
from tests.models.test_file_limits import refused
from tests.support import toolkits
from tests.support.checkpoints import gpt2, write
from tests.support.demo import DEMO
from tests.support.toolkits import PRE_NORM

# numpy's archives


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("marian") / "model.npz"
    return toolkits.write_marian(path, toolkits.marian_model(PRE_NORM))


def changed(archive: Path, folder: Path, name: str, content: bytes, **options: Any) -> Path:
    """A copy of an archive in which one array's file is another."""
    path = folder / "model.npz"
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.namelist():
            new.writestr(entry, content if entry == name else old.read(entry), **options)
    return path


def header(text: str, version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text.encode()


def claim(shape: str, dtype: str = "<f4") -> bytes:
    return header(f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}\n")


@pytest.mark.parametrize(
    "content",
    [
        claim("(10**12,)"),
        claim("(1000000000000,)") + b"1234",
        claim("(1000000000000, 1000000000000)"),
        claim("(-1, 4)") + b"1234",
        claim("(2,)") + b"1234",  # too few
        claim("(2,)") + b"1" * 12,  # too many
        claim("(1,)", "|O") + b"1" * 8,
        claim("(1,)", "|V4") + b"1234",
        claim("(10000000000,)", "|V0"),
        claim("(1,)", "<U1") + b"1234",
        claim("(1,)", "no type") + b"1234",
        header("{'descr'"),
        header("[" * 5000),
        header("{}"),
        header("x", b"\x09\x00"),
        b"\x93NUMPY\x01",
        b"",
    ],
)
@pytest.mark.parametrize("name", ["encoder_l1_ffn_W1", "encoder_Wemb", "special:model.yml"])
def test_arrays_that_claim_what_they_are_not(
    name: str, content: bytes, archive: Path, tmp_path: Path
) -> None:
    path = changed(archive, tmp_path, f"{name}.npy", content)
    assert path.stat().st_size < 1 << 20
    refused(path, "model.npz")


def test_compressed_zeros(archive: Path, tmp_path: Path) -> None:
    zeros = claim("(1000, 75000)") + bytes(300_000_000)
    for name in ("encoder_l1_ffn_W1.npy", "special:model.yml.npy"):
        path = changed(archive, tmp_path, name, zeros, compress_type=zipfile.ZIP_DEFLATED)
        refused(path, "model.npz is a small archive of large arrays")
    load(changed(archive, tmp_path, "", b"", compress_type=zipfile.ZIP_DEFLATED))


def test_archives_cut_anywhere(archive: Path, tmp_path: Path) -> None:
    content, path = archive.read_bytes(), tmp_path / "model.npz"
    for at in [*range(0, 100, 7), *range(100, len(content), len(content) // 40)]:
        for damaged in (content[:at], content[:at] + b"\xff" * 9 + content[at + 9 :]):
            path.write_bytes(damaged)
            try:
                with bounded():
                    dict(load(path).state)
            except ModelFileError as error:
                assert "model.npz" in str(error)
            except ValueError as error:
                assert "holds NaN" in str(error)  # the bytes that were hit are a weight's


def test_shortlists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "de-en.npz"
    for arrays in (
        {"candidates": np.zeros(3)},
        {"candidates": np.zeros((2, 2), np.int32), "frequent": np.zeros(1, np.int32)},
        {
            "candidates": np.zeros((2, 2), np.int32),
            "frequent": np.zeros(1, np.int32),
            "target_ids": np.array(["x"]),
        },
    ):
        np.savez(path, **arrays)
        with bounded(), pytest.raises(ModelFileError, match="de-en.npz is no shortlist"):
            Shortlist.load(path)
    monkeypatch.setattr(shortlist, "MOST_BYTES", 1 << 20)
    np.savez_compressed(path, candidates=np.zeros((1 << 10, 1 << 10), np.int32))
    with bounded(), pytest.raises(ModelFileError, match="de-en.npz is .* of large arrays"):
        Shortlist.load(path)
    with pytest.raises(FileNotFoundError):
        npz.read_headers(tmp_path / "no.npz")


# Hugging Face's directories


@pytest.mark.parametrize("architectures", [{"a": 1}, 7, "GPT2LMHeadModel", [7], [None], [["a"]]])
def test_architectures(architectures: Any, tmp_path: Path) -> None:
    write(tmp_path, gpt2(), architectures=architectures)
    refused(tmp_path, "architectures must be a list of names")


@pytest.mark.parametrize(
    "value", [2**31, 2**63, 10**30, -(2**40), 1.5, "2", {}, [2**63], [[1]], True]
)
@pytest.mark.parametrize("name", ["eos_token_id", "pad_token_id", "decoder_start_token_id"])
def test_ids_of_tokens(name: str, value: Any, tmp_path: Path) -> None:
    directory = write(tmp_path, gpt2(), **{name: value})
    refused(directory, f"config.json: {name} must be a token's id")
    write(tmp_path, gpt2())
    (directory / "generation_config.json").write_text(json.dumps({name: value}))
    refused(directory, f"generation_config.json: {name} must be a token's id")


@pytest.mark.parametrize("content", [7, [], {}, {"weight_map": 7}, {"weight_map": {"a": 7}}, None])
def test_an_index_of_another_kind(content: Any, tmp_path: Path) -> None:
    (write(tmp_path, gpt2()) / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(content))
    refused(tmp_path, "model.safetensors.index.json (is not an index|must hold a JSON object)")


def test_headers_of_safetensors(tmp_path: Path) -> None:
    path = write(tmp_path, gpt2()) / "model.safetensors"
    content = path.read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    for changes in (
        {"shape": [10**12]},
        {"shape": [-1]},
        {"shape": "x"},
        {"data_offsets": [0, 10**15]},
        {"data_offsets": [4, 0]},
        {"dtype": "F4"},
        {"dtype": 4},
    ):
        text = json.dumps({"x": entry | changes}).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + b"1234")
        refused(tmp_path, "model.safetensors cannot be read as weights")
    for claim in (2**63, size + 1, 10**9, 0):
        path.write_bytes(struct.pack("<Q", claim) + content[8:])
        refused(tmp_path, "model.safetensors cannot be read as weights")


@pytest.mark.parametrize(
    "modules", [7, [{}], [7], [{"type": "m.Pooling", "path": 7}], {"a": 1}, []]
)
def test_modules(modules: Any, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    refused(tmp_path, "modules.json", lambda path: read_pooling(Directory(path)))


def test_lengths_of_sentences(tmp_path: Path) -> None:
    modules = [{"type": "m.Transformer", "path": ""}, {"type": "m.Pooling", "path": "pool"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    for tokens in ("7", -1, [7], 1.5):
        settings = {"max_seq_length": tokens}
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps(settings))
        refused(tmp_path, "max_seq_length", lambda path: read_pooling(Directory(path)))


def test_a_long_name_of_a_pooling_mode(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"pooling_mode_" + 6000 * "[": True}))
    refused(tmp_path / "config.json", "sets pooling_mode_", read_mode)


# Converted models


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("converted") / "model"
    decoding.load(DEMO, "cpu", "int8", threads=1).save(directory)
    return directory


SPEC: list[tuple[str, Any]] = [
    ("encoder", 0),
    ("encoder", []),
    ("decoder", None),
    ("logits_cap", "x"),
    ("decoder.layers", 10**9),
    ("decoder.layers", -1),
    ("decoder.layers", 7),
    ("decoder.hidden", 2**31 - 1),
    ("decoder.vocab", 1),
    ("decoder.positions", 10**9),
    ("decoder.heads", [4] * 99),
    ("decoder.heads", [4]),
    ("decoder.heads", []),
    ("decoder.ffn", [64]),
    ("decoder.attention_scale", [1.0]),
    ("decoder.window", [3]),
    ("decoder.heads", 0),
    ("decoder.activation", ["relu"]),
    ("decoder.activation", "sine"),
    ("decoder.attention_scale", [10**400]),
    ("decoder.eps", True),
    ("decoder.rotary", {"size": 2}),
    ("decoder.unheard", 1),
]


@pytest.mark.parametrize(("name", "value"), SPEC)
def test_specs_of_converted_models(name: str, value: Any, converted: Path, tmp_path: Path) -> None:
    index = json.loads((converted / INDEX).read_text())
    inner = index["spec"]
    *tables, field = name.split(".")
    for table in tables:
        inner = inner[table]
    inner[field] = value
    refused(linked(converted, tmp_path, index), "convert the checkpoint again", try_to_load)


def linked(converted: Path, folder: Path, index: Any) -> Path:
    for path in converted.iterdir():
        (folder / path.name).hardlink_to(path)
    (folder / INDEX).unlink()
    (folder / INDEX).write_text(json.dumps(index))
    return folder


def try_to_load(path: Path) -> None:
    try:
        decoding.load(path, threads=1)
    except decoding.Error as error:  # what only the engine knows
        raise ModelFileError(f"{path}: convert the checkpoint again: {error}") from error


TENSORS: list[dict[str, Any]] = [
    {"shape": [1]},
    {"shape": [10**12]},
    {"shape": [-1, 2]},
    {"shape": "x"},
    {"offset": -256},
    {"offset": 10**12},
    {"offset": 1},
    {"offset": None},
    {"dtype": "load"},
    {"dtype": "float64"},
    {"dtype": 7},
    {"dtype": ["int8"]},
]


@pytest.mark.parametrize("change", TENSORS)
@pytest.mark.parametrize(
    "name", ["decoder.embed.positions", "decoder.layers.0.cross_attention.q.bias"]
)
def test_tensors_of_converted_models(
    name: str, change: dict[str, Any], converted: Path, tmp_path: Path
) -> None:
    index = json.loads((converted / INDEX).read_text())
    index["tensors"][name] |= change
    refused(linked(converted, tmp_path, index), "convert the checkpoint again")


@pytest.mark.parametrize(
    "change",
    [{"dtype": ["int8"]}, {"bytes": 7}, {"checksum": "x"}, {"tensors": []}, {"tensors": {}}],
)
def test_indices_of_converted_models(change: Any, converted: Path, tmp_path: Path) -> None:
    index = json.loads((converted / INDEX).read_text()) | change
    refused(linked(converted, tmp_path, index), "convert the checkpoint again")
    assert (tmp_path / BLOCK).is_file()


# llama2.c


def test_headers_of_llama2c(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    for numbers in (
        [2, 2, 2**31 - 1, 1, 1, 2, 2],
        [2**31 - 1] * 7,
        [64, 64, 1, 0, 1, 2, 2],
        [-1] * 7,
        [0x616B3432, 2, 64, 64, 1, 8, 8, 32, 16],
        [0x616B3432, 9, 64, 64, 1, 8, 8, 32, 16],
    ):
        path.write_bytes(struct.pack(f"<{len(numbers)}i", *numbers) + bytes(300))
        refused(path, "model.bin is (no model of llama2.c|of llama2.c's version 9)")
    many = 10**6  # layers of 16 bytes each, all there
    sizes = [1, 1, many, 1, 1, 1, 1]
    path.write_bytes(struct.pack("<7i", *sizes) + bytes(4 * (9 * many + 2)))
    refused(path, "model.bin is no model of llama2.c")


# fairseq


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"args": None, "cfg": torch.zeros(2)}, "cfg must hold options"),
        ({"args": None, "cfg": {}}, "its args and its cfg are empty"),
        ({"args": {"arch": "\ud800"}}, "no proper text"),
        ({"args": {"\ud800": 1}}, "no proper text"),
    ],
)
def test_options_of_fairseq(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = toolkits.fairseq_model(toolkits.FAIRSEQ["pre-norm"])
    path = toolkits.write_fairseq(tmp_path / "model.pt", model)
    torch.save(torch.load(path, weights_only=False) | changes, path)
    refused(path, f"model.pt.*{message}")


def test_a_vocabulary_of_nothing(tmp_path: Path) -> None:
    model = toolkits.fairseq_model(toolkits.FAIRSEQ["pre-norm"])
    path = toolkits.write_fairseq(tmp_path / "model.pt", model)
    content = torch.load(path, weights_only=False)
    name = "encoder.embed_tokens.weight"
    content["model"][name] = content["model"][name][:0]
    torch.save(content, path)
    refused(path, f"{name} must hold numbers")


# Weights


@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 4), (0,), (0, 5)])
def test_tensors_of_another_rank(shape: tuple[int, ...], tmp_path: Path) -> None:
    directory = write(tmp_path, gpt2())
    for name in ("transformer.wte.weight", "transformer.h.0.ln_1.weight"):
        state = {name: torch.zeros(shape)}
        save_file(state, directory / "model.safetensors")
        refused(directory)


@pytest.mark.parametrize("old", [False, True])
def test_classes_of_long_names(old: bool, tmp_path: Path) -> None:
    """torch.load would search its own message about the name for minutes."""
    directory = write(tmp_path, gpt2())
    state = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    path = directory / "pytorch_model.bin"
    torch.save(state, path, _use_new_zipfile_serialization=not old)
    load(directory)
    content = path.read_bytes()
    name = b"FloatStorage\n"
    assert name in content
    if old:
        path.write_bytes(content.replace(name, b"F" + b"[" * 100_000 + b"\n"))
    else:
        with zipfile.ZipFile(path) as archive:
            parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}
        with zipfile.ZipFile(path, "w") as archive:
            for part, held in parts.items():
                archive.writestr(part, held.replace(name, b"F" + b"[" * 100_000 + b"\n"))
    refused(directory, "pytorch_model.bin .* names a class of 100")


@pytest.mark.parametrize("layers", [999, 1000])
def test_more_layers_than_tensors(layers: int, tmp_path: Path) -> None:
    refused(write(tmp_path, gpt2(), n_layer=layers), "lacks the tensor")


def test_positions_that_are_computed(tmp_path: Path) -> None:
    """fairseq's options name the sizes of tables that no file holds."""
    model = toolkits.fairseq_model(toolkits.FAIRSEQ["pre-norm"])
    for positions in (10**9, 10**6, 2**24):
        path = toolkits.write_fairseq(tmp_path / "model.pt", model, max_source_positions=positions)
        refused(path, "positions")
