"""Files of torch.save, as torch.load reads them."""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

from decoding.models.files import ModelFileError, open_file

# Before, files could write beyond their tensors and run code (CVE-2025-32434, CVE-2026-24747).
FIRST = (2, 10)
MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # of torch.save until version 1.5
OLD_PICKLES = 5  # in such a file: that one, the protocol, the system, the content, its storages
LONGEST_NAME = 1000  # bytes of a class's name
MOST_BYTES = 64 << 20  # of a pickle


def load(path: Path, **options: Any) -> Any:
    """torch.load(path, **options) onto the CPU; mapped, where torch can.

    Raises ModelFileError where torch is too old to be given a stranger's file, and ValueError,
    without the file's name, where it is of another kind; else whatever torch raises.
    """
    if tuple(map(int, torch.__version__.split(".")[:2])) < FIRST:
        raise ModelFileError(
            f"{path}: torch {torch.__version__} is not safe against hostile files of its own "
            f"format: install torch {'.'.join(map(str, FIRST))} or newer, or convert the weights "
            "to safetensors"
        )
    check_kind(path)
    return torch.load(path, map_location="cpu", mmap=is_mapped(path), **options)


def check_kind(path: Path) -> None:
    """Raises ValueError where torch.save has not written such a file: it compresses nothing, and
    names classes."""
    with open_file(path) as file:
        if file.read(len(MAGIC)) == MAGIC:
            file.seek(0)
            for _ in range(OLD_PICKLES):
                check_names(file)
            return
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise ValueError("it is compressed, which torch.save never does")
                if entry.filename.endswith("data.pkl"):
                    if entry.file_size > MOST_BYTES:
                        raise ValueError(f"its pickle has {entry.file_size} bytes")
                    with archive.open(entry) as content:
                        check_names(content)


def check_names(file: IO[bytes]) -> None:
    """Raises ValueError where a pickle names a class at length: the time in which torch.load says
    that it does not know a class grows with the square of the name."""
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name == "GLOBAL" and len(str(argument)) > LONGEST_NAME:
            raise ValueError(f"it names a class of {len(str(argument))} letters")


def is_mapped(path: Path) -> bool:
    """Whether torch.load can map a file: a zip, as torch.save writes since version 1.6."""
    return zipfile.is_zipfile(path)
