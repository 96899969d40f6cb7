"""Checkpoints of other toolkits: told by what lies at a path, read, and named as importers expect.

A format is a reader here, read(...) -> Foreign, and an importer that knows the toolkit's names.
"""

from __future__ import annotations

from pathlib import Path

from decoding.models.formats import fairseq, llama2c, marian, opennmt, pickles
from decoding.models.formats.foreign import Foreign

PATTERNS = ("decoder.yml", "*.decoder.yml", "*.npz", "*.pt", "*.bin")


def read(source: Path) -> Foreign | None:
    """The checkpoint at `source`, a file or a directory that holds one; None where there is none.

    Raises ValueError for a directory of several and for a file that is none of these formats.
    """
    path = checkpoint_in(source) if source.is_dir() else source
    if path is None or not path.is_file():
        return None
    if path.suffix == ".yml":
        return marian.read_decoder(path)
    if path.suffix == ".npz":
        return marian.read(path)
    if path.suffix == ".bin":
        return llama2c.read(path)
    return read_torch(path) if path.suffix == ".pt" else None


def read_torch(path: Path) -> Foreign:
    content = pickles.read(path)
    if "model" in content and content.keys() & {"args", "cfg"}:
        return fairseq.read(path, content)
    if {"model", "generator", "opt", "vocab"} <= content.keys():
        return opennmt.read(path, content)
    if "model" in content and "dim" in content.get("model_args", ()):
        return llama2c.read_torch(path, content)
    raise ValueError(
        f"{path} is no checkpoint of fairseq, OpenNMT-py or llama2.c, it holds "
        f"{', '.join(map(str, content)) or 'nothing'}"
    )


def checkpoint_in(directory: Path) -> Path | None:
    if (directory / "config.json").is_file():  # Hugging Face's
        return None
    for pattern in PATTERNS:
        found = [path for path in directory.glob(pattern) if is_checkpoint(path)]
        if len(found) > 1:
            names = ", ".join(sorted(path.name for path in found))
            raise ValueError(f"{directory} holds several checkpoints, pass one of them: {names}")
        if found:
            return found[0]
    return None


def is_checkpoint(path: Path) -> bool:
    """Whether a file that has the name of one is more than what a toolkit keeps beside it."""
    if path.suffix == ".bin":
        return llama2c.is_model(path)
    return not path.match("*.optimizer.npz")
