"""Finds the checkpoint that load() is given: by path, by its name on the Hugging Face hub, or the
demo model."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
WEIGHTS = ("*.bin", "*.pt", "*.pth")  # of no use where there is one of SAFETENSORS
SAFETENSORS = {"model.safetensors", "model.safetensors.index.json"}
UNREAD = (  # files of other libraries, which no download fetches
    *("*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.ot", "*.gguf", "*.mlmodel", "*.tflite"),
    *("onnx/*", "openvino/*", "coreml/*", "original/*", "runs/*"),
)


def find_source(source: object, *, download: bool = False) -> object:
    """A path that exists, or `source` as it is where it is no path: a model in memory.

    A name that is no path is "demo" or that of a model on the Hugging Face hub, which is looked for
    in its local cache; download: and fetched where it is missing. In a terminal the user is asked.
    Raises FileNotFoundError with the command that fetches it, and ValueError for a file or a
    directory that is known to be something else.
    """
    if not isinstance(source, (str, os.PathLike)):
        return source
    path = Path(source)
    if path.exists():
        check_format(path)
        return path
    name = os.fspath(source)
    if name == "demo":
        return demo()
    if path.suffix == ".safetensors" or not HUB_NAME.fullmatch(name):
        raise FileNotFoundError(f"{name} is neither a file nor a directory")
    return from_hub(name, download)


def demo() -> Path:
    """The demo model's directory."""
    checkout = Path(__file__).parent.parent / "models" / "demo"
    if (checkout / "config.json").is_file():
        return checkout
    if find_spec("decoding_demo"):
        return Path(import_module("decoding_demo").path)
    raise FileNotFoundError(
        "the demo model is not installed: run `pip install ./models/demo` in a checkout of "
        "decoding, or pass the directory of another model"
    )


def from_hub(name: str, download: bool) -> Path:
    if not find_spec("huggingface_hub"):
        raise FileNotFoundError(
            f"{name} is no directory here, and without huggingface_hub it cannot be looked for in "
            "the Hugging Face cache: run `pip install huggingface_hub`, or pass a directory"
        )
    found = in_cache(name)
    if found is not None:
        return found
    if download or asked_for(name):
        return fetched(name)
    raise FileNotFoundError(
        f"{name} is no directory here and not in the local Hugging Face cache: run "
        f"`hf download {name}`, or pass download=True (--download)"
    )


def in_cache(name: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = Path(snapshot_download(name, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    complete = (found / "config.json").is_file() and any(
        path.match(pattern) for path in found.iterdir() for pattern in ("*.safetensors", *WEIGHTS)
    )
    return found if complete else None  # else a tokenizer, say, was all that another program needed


def asked_for(name: str) -> bool:
    """Whether the user, where a terminal has one, wants the download."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    question = f"{name} is not on this machine. Download it from huggingface.co? [y/N] "
    print(question, end="", file=sys.stderr, flush=True)  # standard output may be a file
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def fetched(name: str) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    safe = not SAFETENSORS.isdisjoint(HfApi().list_repo_files(name))
    ignored = [*UNREAD, *(WEIGHTS if safe else ())]
    return Path(snapshot_download(name, ignore_patterns=ignored))


def check_format(path: Path) -> None:
    """Raises ValueError for what is known and cannot be loaded, and says what to do."""
    if path.is_dir():
        check_directory(path)
    elif path.suffix == ".safetensors":
        beside = (path.parent / "config.json").is_file()
        rest = f"pass its directory, {path.parent}" if beside else "config.json must lie beside it"
        raise ValueError(f"{path} holds a model's weights alone: {rest}")
    elif starts_with(path, b"GGUF"):
        raise ValueError(
            f"{path} is a GGUF file, the format of llama.cpp, which decoding does not read: pass "
            'the Hugging Face directory that it was made of (dtype="int8" quantises that)'
        )


def check_directory(directory: Path) -> None:
    if (directory / "model.bin").is_file() and list(directory.glob("*vocabulary.*")):
        raise ValueError(
            f"{directory} is a CTranslate2 model, which decoding does not read: pass the directory "
            "that it was converted from"
        )
    if (directory / "config.json").is_file():
        return
    if (directory / "adapter_config.json").is_file():
        raise ValueError(
            f"{directory} holds a PEFT adapter and no model: merge it into its model with "
            "merge_and_unload(), and load that, or the directory that save_pretrained() makes of it"
        )
    if list(directory.glob("*.gguf")):
        raise ValueError(
            f"{directory} holds GGUF files, the format of llama.cpp, which decoding does not read: "
            "pass the Hugging Face directory that they were made of"
        )


def starts_with(path: Path, magic: bytes) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(magic)) == magic
