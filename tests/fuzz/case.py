"""One case of the file fuzzer: a damaged model, what happened to it, and the verdict."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch

import decoding
from decoding.generation.config import OPTIONS
from tests.fuzz.mutations import mutate
from tests.fuzz.sandbox import Ended, Tree, run

ALLOWED = ("FileNotFoundError", "ModelFileError", "NotImplementedError", "ValueError", "Error")
LONGEST = 3000  # characters of a message
MEMORY = 64 << 20  # bytes beside twice the files
TEXT = "Der Zug ist da, oder?"
# Words of messages that say which part of a model is meant.
NAMES = {
    "architecture",
    "tensors",
    "input_ids",
    "vocabulary",
    "tokens",
    "logits",
    "weights",
    "memory",
    "batch",
    "positions",
}
FILE = re.compile(r"[^\s/]\.(bin|json|model|npz|pt|safetensors|spm|txt|yml)\b")
TENSOR = re.compile(
    r"\.(weight|bias)\b|\b(encoder|decoder|layers?|output|norm|embed)[.\w]|\btensor \w"
)


class Verdict(NamedTuple):
    """kind: "loads" and "refused" are good; "crash", "hang", "escape", "unclear", "memory" are
    not."""

    kind: str
    what: str
    done: list[str]  # how the model was damaged


BAD = ("crash", "hang", "escape", "unclear", "memory")


def run_case(
    seed: int, number: int, corpus: Path, place: Path, sound: int = 0
) -> tuple[str, Verdict]:
    """Damages one of the corpus' models and uses it. place: a folder for it. sound: bytes that a
    model takes which is not damaged. Returns the model's name and the verdict. A function of the
    seed and the number."""
    rng = Random(f"{seed} {number}")
    entries: dict[str, str] = json.loads((corpus / "entries.json").read_text())
    name = rng.choice(list(entries))
    entry = entries[name]
    shutil.rmtree(place, ignore_errors=True)
    given, outside, saved = place / "in", place / "outside", place / "out"
    shutil.copytree(corpus / name, given)
    shutil.copytree(corpus / name, outside)
    saved.mkdir()
    names = set(known_names(given))
    done = mutate(given, entry, rng)
    names |= {path.name for path in given.rglob("*")} | NAMES | set(OPTIONS)
    size = sum(path.lstat().st_size for path in given.rglob("*"))
    trees = [Tree(given), Tree(outside, watch_reads=True)]
    ended = run(lambda: use(given / entry, saved / "model"), [given], [saved])
    ended = ended._replace(peak=max(0, ended.peak - sound))
    return name, judge(ended, names, size, trees, saved, done)


def warm_up(corpus: Path, place: Path) -> int:
    """Uses all models as they are: what is imported now takes no memory of a case. Returns the most
    that one takes in a child, in bytes: pages of libraries, above all, which differ between
    machines. Raises RuntimeError where one cannot be used."""
    peak = 0
    for name, entry in json.loads((corpus / "entries.json").read_text()).items():
        errors = use(corpus / name / entry, place / name)
        if errors:
            raise RuntimeError(f"{name}: {errors}")
        shutil.rmtree(place)
        ended = run(lambda: use(corpus / name / entry, place / name), [corpus], [place])  # noqa: B023
        peak = max(peak, ended.peak)
        shutil.rmtree(place)
    return peak


def use(source: Path, target: Path) -> dict[str, Any]:
    """Loads, encodes, generates and saves; returns the error that ended each of them."""
    errors: dict[str, tuple[str, str]] = {}
    warnings.simplefilter("ignore")

    def attempt(stage: str, function: Any) -> Any:
        try:
            return function()
        except Exception as error:
            errors[stage] = type(error).__name__, str(error)[: 2 * LONGEST]

    model = attempt("load", lambda: decoding.load(source, "cpu", threads=1))
    if model is not None:
        ids = attempt("tokenizer", lambda: model.tokenizer.encode(TEXT)) or [5, 6, 7]
        attempt("generate", lambda: run_model(model, ids))
        attempt("save", lambda: model.save(target))
        if "save" not in errors:
            attempt("load saved", lambda: decoding.load(target, "cpu", threads=1))
    return errors


def run_model(model: Any, ids: list[int]) -> None:
    if not model.is_encoder:
        vocab = (model.spec.encoder or model.spec.decoder).vocab
        model.generate([[number % vocab for number in ids[:8]]], max_new_tokens=2)
        return
    vocab = model.encoder_spec.encoder.vocab
    model.encode([[number % vocab for number in ids[:8]]])
    if (model.directory / "modules.json").exists():
        model.embed([TEXT])


def judge(
    ended: Ended, names: set[str], size: int, trees: list[Tree], saved: Path, done: list[str]
) -> Verdict:
    changes = [change for tree in trees for change in tree.changes()]
    if ended.opened or changes:
        return Verdict("escape", "; ".join([*ended.opened, *changes])[:500], done)
    if ended.status != "done":
        return Verdict(ended.status, ended.result.get("signal", ""), done)
    if left := [str(path) for path in saved.iterdir() if path.name != "model"]:
        return Verdict("escape", "; ".join(left)[:500], done)
    errors: dict[str, tuple[str, str]] = ended.result
    for stage, (kind, message) in errors.items():
        if unclear := why_unclear(stage, kind, message, names):
            return Verdict("unclear", f"{stage}: {unclear}: {kind}: {message[:300]}", done)
    if ended.peak > 2 * size + MEMORY:
        return Verdict("memory", f"{ended.peak >> 20} MiB for {size >> 10} KiB", done)
    if not errors:
        return Verdict("loads", "", done)
    said = "; ".join(f"{stage}: {kind}: {text}" for stage, (kind, text) in errors.items())
    return Verdict("refused", said[:500], done)


def why_unclear(stage: str, kind: str, message: str, names: set[str]) -> str:
    """What is wrong with an exception; empty where nothing is."""
    if kind not in ALLOWED and not (kind == "TypeError" and stage == "generate"):
        return "its type"
    if stage == "load saved":
        return "what was saved does not load"
    if len(message) > LONGEST:
        return f"{len(message)} characters"
    words = set(re.findall(r"[\w.-]+", message))
    words |= {part for word in words for part in (word.strip("."), *word.split("."))}
    words |= {Path(word).name for word in message.split()}
    if not (words & names or FILE.search(message) or TENSOR.search(message)):
        return "it names no file and no field"
    return ""


def known_names(folder: Path) -> Iterator[str]:
    """Files, and fields of the files that are JSON, YAML or options of a toolkit."""
    for path in folder.rglob("*"):
        yield path.name
        if path.suffix == ".json" and "vocab" not in path.name:
            yield from keys_of(json.loads(path.read_text()))
        elif path.suffix == ".yml" and "vocab" not in path.name:
            yield from re.findall(r"^([\w-]+):", path.read_text(), re.MULTILINE)
        elif path.suffix == ".npz":
            yield from re.findall(r"^([\w-]+):", path.read_bytes().decode("latin1"), re.MULTILINE)
        elif path.suffix == ".pt":
            yield from keys_of(torch.load(path, weights_only=False))


def keys_of(value: Any) -> Iterator[str]:
    if hasattr(value, "__dict__") and not isinstance(value, torch.Tensor):
        value = vars(value)
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from keys_of(inner)
