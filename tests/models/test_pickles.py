"""Pickles from strangers: nothing that they name is called or changed, no claim fills memory."""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

import decoding
from decoding.models import load
from decoding.models.files import ModelFileError
from decoding.models.formats import pickles
from decoding.models.formats.foreign import StandIn
from tests.models.bounded import bounded
from tests.models.test_file_limits import refused
from tests.support import toolkits
from tests.support.checkpoints import gpt2, write

LEGACY = (
    b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}."  # torch.save's head
)


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def saved(path: Path, pickled: bytes, *, zipped: bool) -> Path:
    """A file of torch.save whose pickle is another, without any tensor."""
    if not zipped:
        path.write_bytes(LEGACY + pickled + b"\x80\x02].")
        return path
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
    return path


def ways_to_run(marker: Path) -> dict[str, bytes]:
    """Pickles that would make a file, each another way."""
    command = f"touch {marker}"
    os_system = b"cos\nsystem\n"
    text = b"X" + struct.pack("<I", len(command)) + command.encode()
    codes = {
        "reduce": b"\x80\x02" + os_system + text + b"\x85R.",
        "posix": b"\x80\x02cposix\nsystem\n" + text + b"\x85R.",
        "stack-global": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + text + b"\x85R.",
        "inst": b"(S'" + command.encode() + b"'\nios\nsystem\n.",
        "obj": b"\x80\x02(" + os_system + text + b"o.",
        "newobj": b"\x80\x02" + os_system + text + b"\x85\x81.",
        "newobj-ex": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + text + b"\x85}\x92.",
        "builtins": b"\x80\x02cbuiltins\neval\nX\x10\x00\x00\x00__import__('os')\x85R.",
        "attribute": b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93\x8c\x02os\x8c\x06system\x86R.",
        "extension": b"\x80\x02\x82\x01" + text + b"\x85R.",
        "persistent": b"\x80\x02" + os_system + text + b"\x85RQ.",
    }
    for name, call in {
        "open": Call(open, str(marker), "w"),
        "touch": Call(Path.touch, marker),
        "system": {"args": Call(os.system, command), "model": {}},
        "in-attributes": {"args": Namespace(a=Call(os.system, command)), "model": {}},
        "torch": Call(torch.save, {}, str(marker)),
        "as-key": {Call(os.system, command): 1},
    }.items():
        for protocol in (0, 2, 4):
            codes[f"{name}-{protocol}"] = pickle.dumps(call, protocol)
    return codes


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", ways_to_run(Path()))
@pytest.mark.parametrize("file", ["model.pt", "pytorch_model.bin"])
def test_no_code_runs(file: str, name: str, zipped: bool, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    if file == "pytorch_model.bin":
        (write(tmp_path, gpt2()) / "model.safetensors").unlink()
    saved(tmp_path / file, ways_to_run(marker)[name], zipped=zipped)
    refused(tmp_path, file)
    assert not marker.exists()


def test_the_pickles_would_have_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for name, content in ways_to_run(marker).items():
        if name in ("reduce", "stack-global", "inst", "open-2", "touch-2", "system-2", "torch-4"):
            pickle.loads(content)
            assert marker.exists(), name
            marker.unlink()


def test_nothing_that_stays_is_changed(tmp_path: Path) -> None:
    """BUILD sets attributes of whatever is there: classes and functions of ours, or of Python's."""
    targets = [
        *pickles.HARMLESS,
        ("decoding.models.formats.pickles", "StandIn"),
        ("torch", "float16"),
    ]
    attribute = {
        "__init__": 1,
        "__call__": 1,
        "__defaults__": (1,),
        "__name__": "../x",
        "update": 1,
    }
    before = [dict(vars(each)) for each in (StandIn, OrderedDict, Counter, defaultdict)]
    defaults = [torch._utils._rebuild_tensor_v2.__defaults__, pickles.rebuilt.__defaults__]
    for module, name in targets:
        name_codes = f"c{module}\n{name}\n".encode()
        states: tuple[Any, ...] = (attribute, (None, attribute), ({}, attribute))
        for state in states:
            content = b"\x80\x02" + name_codes + pickle.dumps(state, 2)[2:-1] + b"b."
            saved(tmp_path / "model.pt", content, zipped=True)
            refused(tmp_path / "model.pt")
    assert before == [dict(vars(each)) for each in (StandIn, OrderedDict, Counter, defaultdict)]
    assert defaults == [torch._utils._rebuild_tensor_v2.__defaults__, pickles.rebuilt.__defaults__]


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_sources_of_modules_are_not_compared(
    zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.load compares a module's source with its file's, and can write the difference."""
    monkeypatch.chdir(tmp_path)
    made = (
        b"cx\ny\n)R}(X\x0c\x00\x00\x00dump_patches\x88X\x08\x00\x00\x00__name__X\x01\x00\x00\x00zub"
    )
    content = (
        b"\x80\x02(X\x06\x00\x00\x00module" + made + b"X\x01\x00\x00\x00aX\x01\x00\x00\x00btQ."
    )
    saved(tmp_path / "model.pt", content, zipped=zipped)
    refused(tmp_path / "model.pt", "is no storage of a tensor")
    assert os.listdir(tmp_path) == ["model.pt"]


CLAIMS = {
    "memo": b"\x80\x02]r" + struct.pack("<I", 2**30) + b".",
    "memo-text": b"\x80\x02]p1000000000000\n.",
    "text": b"\x80\x02X" + struct.pack("<I", 2**30) + b"a.",
    "text-8": b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"a.",
    "bytes-8": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"a.",
    "array": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"a.",
    "string": b"\x80\x02T" + struct.pack("<i", 2**30) + b"a.",
    "negative": b"\x80\x02T" + struct.pack("<i", -1) + b"a.",
    "long": b"\x80\x02\x8b" + struct.pack("<i", 2**30) + b"a.",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"].",
    "buffer": b"\x80\x05\x97.",
    "stack": b"\x80\x020.",
    "empty": b"",
    "digits": b"\x80\x02L" + b"9" * 10_000 + b"L\n.",
    "deep-key": b"\x80\x02}" + b")" + b"\x85" * 300_000 + b"K\x01s.",
    "deep-pairs": b"\x80\x02ccollections\nOrderedDict\n])"
    + b"\x85" * 300_000
    + b"K\x01\x86a\x85R.",
    "deep-count": b"\x80\x02ccollections\nCounter\n])" + b"\x85" * 300_000 + b"K\x01\x86a\x85R.",
    "itself": b"\x80\x02}q\x00X\x05\x00\x00\x00modelh\x00sX\x04\x00\x00\x00argsh\x00s.",
}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", CLAIMS)
def test_claims(name: str, zipped: bool, tmp_path: Path) -> None:
    refused(saved(tmp_path / "model.pt", CLAIMS[name], zipped=zipped), "model.pt")


@pytest.fixture(scope="module")
def model() -> Any:
    return toolkits.fairseq_model(toolkits.FAIRSEQ["pre-norm"])


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_shared_tuples(zipped: bool, model: Any, tmp_path: Path) -> None:
    """40 pairs of pairs are a file of 1.4 kB, and JSON of 10^12 bytes."""
    bomb: Any = ("x", "x")
    for _ in range(40):
        bomb = (bomb, bomb)
    narrow: Any = ("x" * 100_000,)
    for _ in range(9):
        narrow = [narrow, narrow]
    for value, fits in ((bomb, True), (narrow, False)):
        options = Namespace(**toolkits.fairseq_options(model), unheard_of=value)
        content = {"args": options, "model": toolkits.fairseq_state(model)}
        path = tmp_path / "model.pt"
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
        if fits:  # too deep for an option: left out, as objects are
            with bounded():
                decoding.load(path, "cpu", threads=1).save(tmp_path / "saved")
        else:
            refused(path, "the option unheard_of is too large")


@pytest.mark.parametrize(
    "content",
    [
        {"args": 7, "model": {}},
        {"args": Namespace(), "model": []},
        {"args": Namespace(), "model": {"a": 7}},
        {"args": Namespace(), "model": {7: torch.zeros(1)}},
        {"args": Namespace(), "model": 7},
        {"args": Namespace(arch="transformer"), "model": {}},
        {"args": Namespace(arch="\ud800"), "model": {}},
        {"cfg": 7, "model": {}},
        {"cfg": {"model": 7}, "model": {}},
        {"cfg": {"model": {"encoder": 7}}, "model": {}},
        {"cfg": {7: {}}, "model": {}},
        {"args": {7: 7}, "model": {}},
        {"args": None, "cfg": {}, "model": {"a": torch.zeros(1).to_sparse()}},
        {"model": {"a.self_attn.in_proj_weight": torch.zeros(())}, "args": Namespace()},
        {"model": {"a.self_attn.in_proj_weight": torch.zeros(4)}, "args": Namespace()},
        {
            "model": {"encoder.layers.0.layer_norms.2.weight": torch.zeros(4)},
            "args": Namespace(arch="transformer"),
        },
        {"model": {}, "generator": {}, "opt": 7, "vocab": {"src": [], "tgt": []}},
        {"model": 7, "generator": 7, "opt": Namespace(), "vocab": {"src": ["a"], "tgt": ["a"]}},
        {"model": {}, "generator": {}, "opt": Namespace(), "vocab": 7},
        {"model": {}, "generator": {}, "opt": Namespace(), "vocab": [("src", 1)]},
        {"model": {}, "generator": {}, "opt": Namespace(), "vocab": {"src": [1], "tgt": [2]}},
        {"model": {}, "generator": {}, "opt": Namespace(), "vocab": Namespace(fields=[])},
        {"model": {}, "model_args": {"dim": 7}},
        {"model": {}, "model_args": 7},
        {"model": {}, "model_args": {"dim": 4, "vocab_size": "../../x"}},
        {7: 7},
        [],
        7,
    ],
)
def test_contents_of_other_kinds(content: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(content, path)
    refused(path)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_files_cut_anywhere(zipped: bool, model: Any, tmp_path: Path) -> None:
    content = {
        "args": Namespace(**toolkits.fairseq_options(model)),
        "model": toolkits.fairseq_state(model),
    }
    path = tmp_path / "model.pt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    for at in [*range(0, 300, 9), *range(300, len(whole), len(whole) // 50)]:
        for damaged in (whole[:at], whole[:at] + b"\xfe" * 3 + whole[at + 3 :]):
            path.write_bytes(damaged)
            try:
                with bounded():
                    dict(load(path).state)
            except ModelFileError as error:
                assert "model.pt" in str(error)
            except ValueError as error:
                assert "holds NaN" in str(error)  # the bytes that were hit are a weight's


# Tensors


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("file", ["model.pt", "pytorch_model.bin"])
def test_tensors_that_are_larger_than_their_file(
    file: str, zipped: bool, model: Any, tmp_path: Path
) -> None:
    """Steps of zero make a large tensor of one number."""
    large = torch.zeros(1).expand(1 << 20, 1 << 20)
    if file == "model.pt":
        content: Any = {"args": Namespace(), "model": {"a": large}}
    else:
        (write(tmp_path, gpt2()) / "model.safetensors").unlink()
        content = {"transformer.wte.weight": large}
    torch.save(content, tmp_path / file, _use_new_zipfile_serialization=zipped)
    refused(tmp_path, f"{file} has fewer bytes than the tensors")


@pytest.mark.parametrize("change", [("size", 10**6), ("stride", 10**6), ("offset", 10**6)])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_tensors_beyond_their_storage(
    change: tuple[str, int], zipped: bool, tmp_path: Path
) -> None:
    """In the pickle a tensor has a storage, an offset, a size and steps."""
    name, number = change
    path = tmp_path / "model.pt"
    values = {"offset": 0, "size": 77, "stride": 1} | {name: number}
    torch.save({"args": Namespace(), "model": {"a": torch.zeros(77)}}, path,
               _use_new_zipfile_serialization=zipped)  # fmt: skip
    old = b"QK\x00KM\x85"
    new = b"Q" + b"".join(
        b"J" + struct.pack("<i", values[each]) + (b"" if each == "offset" else b"\x85")
        for each in ("offset", "size", "stride")
    )
    content = rewritten(path, zipped)
    at = content.index(old)
    end = content.index(b"\x85", content.index(b"\x85", at) + 1) + 1
    end = max(end, content.index(b"K\x01\x85", at) + 3)
    content = content[:at] + new + content[end:]
    if zipped:
        saved_with_storage(path, content)
    else:
        path.write_bytes(content)
    refused(path, "has too few bytes")


def rewritten(path: Path, zipped: bool) -> bytes:
    if not zipped:
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        return archive.read(name)


def saved_with_storage(path: Path, pickled: bytes) -> None:
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, pickled if name.endswith("data.pkl") else content)


def test_compressed_torch_files(tmp_path: Path) -> None:
    (write(tmp_path, gpt2()) / "model.safetensors").unlink()
    torch.save(gpt2().state_dict(), tmp_path / "whole")
    for file in ("model.pt", "pytorch_model.bin"):
        with (
            zipfile.ZipFile(tmp_path / "whole") as old,
            zipfile.ZipFile(tmp_path / file, "w", zipfile.ZIP_DEFLATED) as new,
        ):
            for name in old.namelist():
                new.writestr(name, old.read(name))
    refused(tmp_path, "pytorch_model.bin cannot be read as weights: it is compressed")
    refused(tmp_path / "model.pt", "cannot be read as a checkpoint: it is compressed")


@pytest.mark.parametrize("version", ["2.4.0", "2.9.1+cu128"])
def test_older_torch(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write(tmp_path, gpt2())
    load(model)
    torch.save({"args": Namespace(), "model": {}}, tmp_path / "model.pt")
    torch.save(gpt2().state_dict(), tmp_path / "pytorch_model.bin")
    monkeypatch.setattr(torch, "__version__", version)
    load(model)  # safetensors are there, too
    (model / "model.safetensors").unlink()
    for path in (tmp_path, tmp_path / "model.pt"):
        refused(path, "install torch 2.10 or newer, or convert the weights to safetensors")
    monkeypatch.setattr(torch, "__version__", "2.10.0")
    load(model)
