"""The tasks of this library: plain data, which a worker makes a model of."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from decoding.corpus.row_task import Answerer, Fields

# Of each command the column that its texts are in, and the kinds of the columns of its answers.
KEYS = {"translate": "text", "generate": "prompt", "score": "target", "embed": "text"}
ANSWERS = {
    "translate": {"translation": "text", "score": "number", "tokens": "count"},
    "generate": {"completion": "text", "score": "number", "tokens": "count"},
    "score": {"logprob": "number", "per_token": "number", "tokens": "count"},
    "embed": {"embedding": "vector"},
}
# Files that a model's text is read with, which may also lie beside a checkpoint that is one file.
TEXT_FILES = (
    *("*.model", "*.spm", "*.vocab", "vocab*.json", "vocab.txt", "merges.txt", "*.yml", "*.yaml"),
    *("dict.*.txt", "bpecodes", "code", "tok*.bin"),  # fairseq's, and llama2.c's
)
MODEL_FILES = (
    *TEXT_FILES,
    *("*.json", "*.jinja", "*.safetensors", "*.bin", "*.pt", "*.pth", "*.npz"),
)
ENDS = 1 << 16  # bytes of a file's beginning and end that are compared


@dataclass(frozen=True)
class Task:
    """A command of this library on each row: translate, generate, score or embed.

        Task("translate", "models/demo", options={"num_beams": 2})

    column: that a text is in; None: the command's own. load: arguments of decoding.load(). options:
    of translate those of Translator, target_prefix and own_options (a row may have a column
    max_new_tokens); of generate those of Model.complete(), and unique, batch_tokens, chat, system,
    chat_template, raw, own_options (also temperature, top_k, top_p and seed); of score
    source_column, src_lang and tgt_lang; of embed truncate.

    Raises ValueError for an unknown command.
    """

    command: str
    model: str
    column: str | None = None
    load: Fields = field(default_factory=dict)
    options: Fields = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.command not in ANSWERS:
            raise ValueError(f"a task is one of {', '.join(ANSWERS)}, not {self.command!r}")

    @property
    def key(self) -> str:
        return self.column or ("messages" if self.options.get("chat") else KEYS[self.command])

    @property
    def texts(self) -> list[tuple[str, ...]]:
        """Of each text that a row must have the columns where it may be. Of score those for any
        model: which one it is nobody has looked at yet."""
        source = self.options.get("source_column")
        sources = [] if source is None else [(source,)]
        if self.column is not None:
            return [(self.column,), *sources]
        usual = ("target", "2", "text", "1") if self.command == "score" else (self.key, "1")
        return [usual, *sources]

    @property
    def answers(self) -> dict[str, str]:
        more = {}
        if self.options.get("alignments"):
            more["alignment"] = "pairs"
        if (self.options.get("n_best") or 1) > 1:
            more["n_best"] = "any"
        return {**ANSWERS[self.command], **more}

    @property
    def cells(self) -> tuple[str, ...]:
        if self.command in ("score", "embed"):
            return tuple(self.answers)
        first = next(iter(self.answers))
        scored = ("score",) if self.options.get("n_best") else ()
        aligned = ("alignment",) if self.options.get("alignments") else ()
        return (first, *scored, *aligned)

    @property
    def signs(self) -> bool:
        return self.command == "generate" and not self.options.get("raw")

    def identity(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "column": self.column,
            "model": checksums(model_path(self.model, self.load)),
            **self._named_files(),
            "load": {k: v for k, v in self.load.items() if k not in ("threads", "download")},
            "options": dict(self.options),
        }

    def _named_files(self) -> dict[str, Any]:
        """Checksums of what the paths in load and options hold."""
        found: dict[str, Any] = {}
        tokenizer, shortlist = self.load.get("tokenizer"), self.options.get("shortlist")
        if isinstance(tokenizer, (str, os.PathLike)):
            found["tokenizer"] = checksums(Path(tokenizer))
        if isinstance(shortlist, (str, os.PathLike)):
            found["shortlist"] = checksum(Path(shortlist))
        return found

    def open(self, device: str, workers: int) -> Answerer:
        from decoding.engine.opening import open_gpu

        open_gpu(device)  # while the library is imported
        from decoding.corpus.answering import KINDS, Asked, open_model

        model = open_model(self.model, {**self.load, "device": device}, workers)
        asked = Asked(self.column, self.key, self.answers, self.options)
        return KINDS[self.command](asked, model)


def model_path(name: str, load: Fields) -> Path:
    """Where a model is. Raises the errors of decoding.load() where it is nowhere."""
    from decoding.sources import find_source

    found = find_source(name, download=bool(load.get("download")))
    assert isinstance(found, Path)
    return found


def files_of(path: Path) -> list[Path]:
    """The files that are read with a model, and not, say, an output beside it. path: its directory,
    or its checkpoint, beside which other checkpoints may lie."""
    if path.is_file():
        beside = (each for each in sorted(path.parent.iterdir()) if is_one_of(each, TEXT_FILES))
        return [path, *(each for each in beside if each != path)]
    return [each for each in sorted(path.rglob("*")) if is_one_of(each, MODEL_FILES)]


def is_one_of(path: Path, patterns: Sequence[str]) -> bool:
    is_named = any(fnmatchcase(path.name, pattern) for pattern in patterns)
    return is_named and path.is_file() and not path.parent.name.endswith(".job")


def checksums(path: Path) -> dict[str, str]:
    """Of each file of a model, by its name."""
    folder = path.parent if path.is_file() else path
    return {each.relative_to(folder).as_posix(): checksum(each) for each in files_of(path)}


def checksum(path: Path) -> str:
    """A file's size, and a checksum of its beginning and end, since reading all of the weights
    would take as long as loading them."""
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(ENDS))
        file.seek(max(0, size - ENDS), os.SEEK_SET)
        digest.update(file.read(ENDS))
    return f"{size} bytes, {digest.hexdigest()[:16]}"
