"""Files of torch.save, as torch.load reads them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch

from decoding.models.files import ModelFileError, open_file

# Before, files could write beyond their tensors and run code (CVE-2025-32434, CVE-2026-24747).
FIRST = (2, 10)
MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # of torch.save until version 1.5


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
    """Raises ValueError where torch.save has not written such a file: it compresses nothing."""
    with open_file(path) as file:
        if file.read(len(MAGIC)) == MAGIC:
            return
        with zipfile.ZipFile(file) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("it is compressed, which torch.save never does")


def is_mapped(path: Path) -> bool:
    """Whether torch.load can map a file: a zip, as torch.save writes since version 1.6."""
    return zipfile.is_zipfile(path)
