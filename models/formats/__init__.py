"""Checkpoints of other toolkits: told by what lies at a path, read, and named as importers expect.

A format is a reader here, read(...) -> Foreign, and an importer that knows the toolkit's names.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from decoding.models.files import Directory, ModelFileError, short

if TYPE_CHECKING:
    from decoding.models.formats.foreign import Foreign

PATTERNS = ("decoder.yml", "*.decoder.yml", "*.npz", "*.pt", "*.bin")


def read(source: Path, *, trust_paths: bool = False) -> Foreign | None:
    """The checkpoint at `source`, a file or a directory that holds one; None where there is none.

    trust_paths: as in `files.Directory`. Raises ModelFileError for a directory of several and for a
    file that is none of these formats.
    """
    if source.is_dir():
        directory = Directory(source, trust_paths)
        path = checkpoint_in(directory)
    else:
        directory, path = Directory(source.parent, trust_paths), source
    if path is None or not path.exists():
        return None
    from decoding.models.formats import llama2c, marian

    if path.suffix == ".yml":
        return marian.read_decoder(path, directory)
    if path.suffix == ".npz":
        return marian.read(path, directory)
    if path.suffix == ".bin":
        return llama2c.read(path, directory)
    return read_torch(path, directory) if path.suffix == ".pt" else None


def read_torch(path: Path, directory: Directory) -> Foreign:
    from decoding.models.formats import fairseq, llama2c, opennmt, pickles

    content = pickles.read(path)
    if "model" in content and content.keys() & {"args", "cfg"}:
        return fairseq.read(path, content, directory)
    if {"model", "generator", "opt", "vocab"} <= content.keys():
        return opennmt.read(path, content, directory)
    arguments = content.get("model_args")
    if "model" in content and isinstance(arguments, dict) and "dim" in arguments:
        return llama2c.read_torch(path, content, directory)
    raise ModelFileError(
        f"{path} is no checkpoint of fairseq, OpenNMT-py or llama2.c, it holds "
        f"{short(list(content))}"
    )


def checkpoint_in(directory: Directory) -> Path | None:
    if directory.find("config.json") is not None:  # Hugging Face's
        return None
    for pattern in PATTERNS:
        names = [path.name for path in directory.path.glob(pattern)]
        found = [name for name in sorted(names) if is_checkpoint(directory.file(name))]
        if len(found) > 1:
            raise ModelFileError(
                f"{directory.path} holds several checkpoints, pass one of them: {', '.join(found)}"
            )
        if found:
            return directory.file(found[0])
    return None


def is_checkpoint(path: Path) -> bool:
    """Whether a file that has the name of one is more than what a toolkit keeps beside it."""
    if path.suffix == ".bin":
        from decoding.models.formats import llama2c

        return llama2c.is_model(path)
    return not path.match("*.optimizer.npz")
