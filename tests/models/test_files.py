"""Where files of a model may lie: nothing is read or written outside of its directory."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import decoding
from decoding.models import load
from decoding.models.files import Directory, ModelFileError, open_file
from decoding.models.files.writing import replacing, replacing_directory
from decoding.text.embed import read_pooling
from decoding.text.tokenizers import load_tokenizer
from decoding.text.tokenizers.files import files_of
from tests.models.bounded import bounded
from tests.support import toolkits
from tests.support.checkpoints import gpt2, write
from tests.support.demo import DEMO
from tests.support.toolkits import PRE_NORM
from tests.support.vocabularies import train_sentencepiece

HOW = r"trust_paths=True \(--trust-paths\)"
TEXT = ["das ist ein haus", "wir gehen ins kino"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a model's directory, `model`, and a `secret` outside of that."""
    (tmp_path / "home" / "model").mkdir(parents=True)
    (tmp_path / "home" / "secret").write_text('{"secret": 0}\nsecret 1\n')
    (tmp_path / "home" / "secret.txt").touch()
    return tmp_path / "home"


# Names in files


@pytest.mark.parametrize("name", ["../secret", "x/../../secret", "{home}/secret", "/etc/passwd"])
def test_a_name_leads_nowhere_else(home: Path, name: str) -> None:
    directory, name = Directory(home / "model"), name.format(home=home)
    with pytest.raises(ModelFileError, match=HOW):
        directory.file(name)
    assert directory.named(name, "option") == home / "model" / Path(name).name
    with pytest.raises(FileNotFoundError, match=f"is elsewhere, .*{HOW}"):
        directory.required_named(name, "option", "it is needed")
    trusted = Directory(home / "model", trust_paths=True)
    (home / "model" / "x").mkdir()
    assert os.path.samefile(trusted.required_named(name, "option", ""), home / "model" / name)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "x/" * 3000, "\ud800"])
@pytest.mark.parametrize("trust_paths", [False, True])
def test_what_is_no_name(home: Path, name: str, trust_paths: bool) -> None:
    directory = Directory(home / "model", trust_paths)
    with pytest.raises(ModelFileError) as error:
        directory.required(name, "")
    assert len(str(error.value)) < 1000
    others: tuple[Any, ...] = (name, 3, None, ["a"], {}, "", ".", "//", "a/..", "../..")
    for other in others:
        with pytest.raises((ModelFileError, FileNotFoundError), match="^option|option must be"):
            directory.required_named(other, "option", "it is needed")


def index(home: Path, name: str) -> None:
    (write(home / "model", gpt2()) / "model.safetensors").unlink()
    content = {"weight_map": {"transformer.wte.weight": name}}
    (home / "model" / "model.safetensors.index.json").write_text(json.dumps(content))
    load(home / "model")


def pooling(home: Path, name: str) -> None:
    modules = [{"type": "m.Transformer", "path": ""}, {"type": "m.Pooling", "path": name}]
    (home / "model" / "modules.json").write_text(json.dumps(modules))
    read_pooling(Directory(home / "model"))


def dictionary(home: Path, name: str) -> None:
    config = {"model_type": "fairseq", "source_lang": f"x/../{name}", "target_lang": "en"}
    load_tokenizer(home / "model", config)


def option(option: str, **config: Any) -> Callable[[Path, str], None]:
    """Loads a tokenizer whose option names a file."""

    def read(home: Path, name: str) -> None:
        for language in ("de", "en"):
            (home / "model" / f"dict.{language}.txt").write_text("a 1\n")
        load_tokenizer(home / "model", config | {option: name})

    return read


FAIRSEQ = {"model_type": "fairseq", "source_lang": "de", "target_lang": "en"}
OPENNMT: dict[str, Any] = {"model_type": "opennmt"}
OPENNMT |= {"vocabularies": {"src": ["<unk>"], "tgt": ["<unk>"]}, "transforms": ["sentencepiece"]}


def marian_vocabulary(home: Path, name: str) -> None:
    load_tokenizer(home / "model", {"model_type": "marian_npz", "vocabs": [name, name]})


def marian_model(home: Path, name: str) -> None:
    (home / "model" / "decoder.yml").write_text(f"models: ['{name}']\n")
    load(home / "model")


NAMES: dict[str, Callable[[Path, str], None]] = {
    "weight_map": index,
    "modules.json": pooling,
    "source_lang": dictionary,
    "bpe_codes": option("bpe_codes", bpe="fastbpe", **FAIRSEQ),
    "sentencepiece_model": option("sentencepiece_model", bpe="sentencepiece", **FAIRSEQ),
    "src_subword_model": option("src_subword_model", **OPENNMT),
    "tokenizer_file": option("tokenizer_file", model_type="llama2c", vocab_size=300),
    "vocabs": marian_vocabulary,
    "models": marian_model,
}


@pytest.mark.parametrize("name", ["../secret", "{home}/secret"])
@pytest.mark.parametrize("kind", NAMES)
def test_files_name_none_outside(kind: str, name: str, home: Path) -> None:
    opened: list[str] = []
    with Watching(opened), pytest.raises((ModelFileError, FileNotFoundError)) as error:
        NAMES[kind](home, name.format(home=home))
    assert str(home / "model") in str(error.value)
    if kind != "source_lang" or name.startswith(".."):
        assert "trust_paths" in str(error.value)
    assert not [path for path in opened if "secret" in path and "/model/" not in path]


class Watching:
    """Collects the paths that the program opens."""

    hooked, lists = False, list[list[str]]()

    def __init__(self, found: list[str]) -> None:
        self.found = found

    def __enter__(self) -> None:
        if not Watching.hooked:  # a hook stays for good
            sys.addaudithook(lambda event, given: self.opened(event, given))
            Watching.hooked = True
        Watching.lists.append(self.found)

    def __exit__(self, *given: object) -> None:
        Watching.lists.remove(self.found)

    @staticmethod
    def opened(event: str, given: Any) -> None:
        if event == "open" and isinstance(given[0], (str, bytes)):
            for found in Watching.lists:
                found.append(os.path.realpath(os.fsdecode(given[0])))


def test_marians_options_may_be_trusted(tmp_path: Path) -> None:
    """A decoder.yml names vocabularies and a model where they were trained, or elsewhere."""
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    for folder in (elsewhere, here):
        folder.mkdir()
    toolkits.write_marian(elsewhere / "model.npz", toolkits.marian_model(PRE_NORM))
    train_sentencepiece(TEXT, elsewhere / "both.spm", eos_id=0, unk_id=1)
    (here / "decoder.yml").write_text(
        f"models: [../elsewhere/model.npz]\nvocabs: ['{elsewhere}/both.spm', ../elsewhere/both.spm]"
    )
    with pytest.raises(FileNotFoundError, match=rf"{here}/model.npz is missing.*{HOW}"):
        decoding.load(here)
    model = decoding.load(here, trust_paths=True, threads=1)
    assert model.tokenizer.encode(TEXT[0])
    model.save(tmp_path / "saved")
    assert (tmp_path / "saved" / "both.spm").is_file()
    assert decoding.load(tmp_path / "saved").tokenizer.encode(TEXT[0])
    shutil.copy(elsewhere / "model.npz", here)
    with pytest.raises(FileNotFoundError, match=rf"{here}/both.spm is missing.*{HOW}"):
        _ = decoding.load(here, threads=1).tokenizer
    shutil.copy(elsewhere / "both.spm", here)  # the rule for files of another machine
    assert decoding.load(here, threads=1).tokenizer.encode(TEXT[0])


# Links


def test_links_stay_inside(home: Path) -> None:
    write(home / "other", gpt2())
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        os.symlink(f"../other/{name}", home / "model" / name)
    with pytest.raises(ModelFileError, match=f"leads out of the directory.*{HOW}"):
        load(home / "model")
    load(home / "model", trust_paths=True)
    os.symlink("other", home / "link")  # the caller's own
    load(home / "link")


def test_the_cache_of_the_hub(tmp_path: Path) -> None:
    """huggingface_hub keeps files in `blobs`, and a snapshot of links to them."""
    repository = tmp_path / "hub" / "models--us--name"
    snapshot, blobs = repository / "snapshots" / "0a1b", repository / "blobs"
    shutil.copytree(DEMO, blobs)
    (snapshot / "1_Pooling").mkdir(parents=True)
    for path in blobs.iterdir():
        os.symlink(f"../../blobs/{path.name}", snapshot / path.name)
    (blobs / "pooling").write_text('{"pooling_mode_mean_tokens": true}')
    os.symlink("../../../blobs/pooling", snapshot / "1_Pooling" / "config.json")
    model = decoding.load(snapshot, threads=1)
    assert model.translate(["Danke."]) == decoding.load(DEMO, threads=1).translate(["Danke."])
    assert Directory(snapshot).find("1_Pooling/config.json")
    (tmp_path / "hub" / "secret").touch()
    os.symlink("../../../secret", snapshot / "vocab.txt")
    with pytest.raises(ModelFileError, match="leads out"):
        Directory(snapshot).find("vocab.txt")


def test_a_link_to_itself(home: Path) -> None:
    os.symlink("config.json", home / "model" / "config.json")
    with pytest.raises(ModelFileError, match="config.json"):
        load(home / "model")


# What is no regular file


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listener(path: Path) -> None:
    socket.socket(socket.AF_UNIX).bind(os.path.relpath(path))


@pytest.mark.parametrize("make", [pipe, Path.mkdir, listener])
@pytest.mark.parametrize("trust_paths", [False, True])
def test_only_regular_files_are_opened(make: Any, trust_paths: bool, tmp_path: Path) -> None:
    directory = write(tmp_path / "model", gpt2())
    for name in ("config.json", "model.safetensors"):
        shutil.move(directory / name, tmp_path / name)
        make(directory / name)
        with bounded(), pytest.raises(ModelFileError, match=f"{name} (is no regular|cannot be op)"):
            load(directory, trust_paths=trust_paths)
        if (directory / name).is_dir():
            (directory / name).rmdir()
        else:
            (directory / name).unlink()
        shutil.move(tmp_path / name, directory / name)


@pytest.mark.parametrize(
    "name", ["model.bin", "model.pt", "model.npz", "decoder.yml", "pytorch_model.bin"]
)
def test_a_pipe_does_not_hang(name: str, tmp_path: Path) -> None:
    if name == "pytorch_model.bin":
        (write(tmp_path, gpt2()) / "model.safetensors").unlink()
    os.mkfifo(tmp_path / name)
    with bounded(), pytest.raises(ModelFileError, match=f"{name} is no regular file"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["decoding.bin", "decoding.json"])
def test_a_pipe_in_a_converted_model(name: str, tmp_path: Path) -> None:
    decoding.load(gpt2(), "cpu", threads=1).save(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with bounded(), pytest.raises(ModelFileError, match=f"{name} is no regular file"):
        load(tmp_path)


def test_a_device(tmp_path: Path) -> None:
    for device in ("/dev/zero", "/dev/null", "/dev/stdin"):
        with bounded(), pytest.raises((ModelFileError, FileNotFoundError)):
            open_file(Path(device))


# Writing


ESCAPES = ["sentencepiece_model", "bpe_codes", "tokenizer_file", "src_subword_model"]
ESCAPES += ["tgt_subword_model", "vocabs", "source_lang"]


@pytest.mark.parametrize("trust_paths", [False, True])
@pytest.mark.parametrize("name", ["../payload/.profile", "{tmp}/payload/.profile"])
@pytest.mark.parametrize("option", ESCAPES)
def test_saving_writes_below_its_target(
    option: str, name: str, trust_paths: bool, tmp_path: Path
) -> None:
    """A configuration that names a file outside is no way to copy it, or to write it anywhere but
    into the new directory."""
    payload, model = tmp_path / "payload", tmp_path / "model"
    payload.mkdir()
    (payload / ".profile").write_text("rm -r\n")
    (payload / ".profile.txt").write_text("rm -r\n")
    named = name.format(tmp=tmp_path)
    if option == "source_lang":
        named = "x/../" + named
    config: dict[str, Any] = {option: [named] if option == "vocabs" else named}
    write(model, gpt2(), **config)
    loaded = decoding.load(model, "cpu", threads=1, trust_paths=trust_paths)
    before = tree(tmp_path)
    output = tmp_path / "home" / "out" / "converted"
    try:
        loaded.save(output)
    except ModelFileError as error:
        assert not trust_paths and option == "source_lang", error
    assert {path for path in tree(tmp_path) if not path.is_relative_to(output)} == before | (
        {tmp_path / "home", tmp_path / "home" / "out"}
    )
    held = {path.name for path in tree(output)}
    if not trust_paths:
        assert not [name for name in held if name.startswith(".profile")]


def tree(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_saving_through_a_link_that_leads_out(tmp_path: Path) -> None:
    """A link in the target's directory is replaced, and a folder that is one is an error."""
    outside, target = tmp_path / "outside", tmp_path / "target"
    for folder in (outside, target):
        folder.mkdir()
    (outside / "config.json").write_text("mine")
    os.symlink(outside / "config.json", target / "config.json")
    decoding.load(gpt2(), "cpu", threads=1).save(target)
    assert (outside / "config.json").read_text() == "mine"
    assert not (target / "config.json").is_symlink()
    os.symlink(outside, target / "1_Pooling")
    model = write(tmp_path / "model", gpt2())
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"1_Pooling leads out of .*target: remove that link"):
        decoding.load(model, "cpu", threads=1).save(target)
    assert os.listdir(outside) == ["config.json"]


class Stopped(BaseException):
    """As KeyboardInterrupt."""


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("step", range(6))
def test_an_interrupted_save_leaves_nothing_that_loads(
    old: bool, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever file or rename is the last; an older model there is whole, or does not load."""
    target = tmp_path / "saved"
    if old:
        decoding.load(gpt2(), "cpu", "int8", threads=1).save(target)
    model = decoding.load(gpt2(), "cpu", threads=1)
    count = 0

    def stopping(function: Any) -> Any:
        def stopped(*given: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count > step:
                raise Stopped
            return function(*given, **named)

        return stopped

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stopping(Path.replace))
        patch.setattr("decoding.models.files.writing.flush", stopping(lambda file: None))
        patch.setattr(Path, "write_text", stopping(Path.write_text))
        try:
            model.save(target)
        except Stopped:
            pass
    assert [path.name for path in tmp_path.iterdir()] in ([], ["saved"])
    try:
        dtype = decoding.load(target).dtype
    except FileNotFoundError:
        return
    assert dtype == torch.int8 or count <= step


def test_a_file_is_replaced_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(Stopped), replacing(path) as file:
        file.write(b"new")
        raise Stopped
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]
    os.symlink("file", tmp_path / "link")
    with replacing(tmp_path / "link") as file:
        file.write(b"new")
    assert path.read_text() == "new" and (tmp_path / "link").is_symlink()
    with replacing(Path("/dev/null")) as file:
        file.write(b"new")
    assert not Path("/dev/null").is_file()


def test_a_directory_keeps_what_else_it_holds(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "README.md").write_text("mine")
    with replacing_directory(tmp_path / "model", last="b") as unfinished:
        (unfinished / "a").mkdir()
        for name in ("a/a", "b"):
            (unfinished / name).write_text("new")
    assert tree(tmp_path / "model") == {
        tmp_path / "model" / name for name in ("README.md", "a", "a/a", "b")
    }
    assert os.listdir(tmp_path) == ["model"]


def test_tokenizer_files_are_those_of_the_directory(home: Path) -> None:
    for name in ("merges.txt", "dict.de.txt"):
        (home / "model" / name).touch()
    config = {"source_lang": "de", "bpe_codes": "../secret", "vocabs": ["/x/merges.txt"]}
    assert files_of(Directory(home / "model"), config).keys() == {"merges.txt", "dict.de.txt"}
    trusted = files_of(Directory(home / "model", trust_paths=True), config)
    assert trusted.keys() == {"merges.txt", "dict.de.txt", "secret"}
