"""Files that jobs over corpora read: sound ones of every format, and what is damaged in them."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from decoding.corpus.formats.compressed import reading, writing
from tests.fuzz.mutations import damage_bytes, damage_lines, damage_text
from tests.fuzz.trees import NUMBERS, TEXTS, damage

WORDS = ("", " ", "a", "dog", "ä", "ß", "\U0001f600", 'say "so"', "one, two", "x" * 300, "bad word")
NAMES = ("in.txt", "in.jsonl", "in.tsv", "in.csv", "in.parquet")
COMPRESSIONS = ("", "", "", ".gz", ".zst")
LARGEST = 1 << 20  # bytes of a text
BOMB = 1 << 24  # bytes of what is small when it is compressed
OWN = ("max_new_tokens", "temperature", "top_k", "top_p", "seed")
COLUMNS: dict[str, Callable[[int], Any]] = {  # of Parquet, by row
    "int": lambda i: i if i % 3 else None,
    "decimal": lambda i: Decimal(i) / 8,
    "date": lambda i: date(2000, 1, 1 + i % 28),
    "bytes": lambda i: b"\xff" * (i % 3),
    "list": lambda i: [i] * (i % 3),
    "struct": lambda i: {"a": i, "b": None},
    "float": lambda i: float("nan") if i % 2 else 0.5,
    "none": lambda i: None,
}


def texts(rng: Random) -> list[str]:
    return [" ".join(rng.choices(WORDS, k=rng.randint(0, 3))) for _ in range(rng.randint(0, 9))]


def write_sound(folder: Path, rng: Random) -> Path:
    """A file of some rows."""
    name = rng.choice(NAMES)
    compression = "" if name.endswith(".parquet") else rng.choice(COMPRESSIONS)
    path = folder / (name + compression)
    if name == "in.parquet":
        write_parquet(path, rng)
        return path
    end = rng.choice(("\n", "\n", "\r\n"))
    lines = {"in.jsonl": json_lines, "in.csv": csv_lines}.get(name, text_lines)(texts(rng), rng)
    header = ["id\ttext"] if name == "in.tsv" else []
    if name == "in.tsv":
        lines = [f"{number}\t{line}" for number, line in enumerate(lines)]
    data = rng.choice(("", "", "\ufeff")) + end.join([*header, *lines]) + rng.choice(("", end))
    with writing(str(path), compression) as file:
        file.write(data.encode("utf-8", "surrogatepass"))
    return path


def text_lines(given: list[str], rng: Random) -> list[str]:
    return given


def json_lines(given: list[str], rng: Random) -> list[str]:
    """Objects, some of which have options of their own, and texts."""
    lines = []
    for number, text in enumerate(given):
        row: Any = {"id": number, "text": text}
        for name in OWN:
            if rng.random() < 0.15:
                row[name] = rng.choice((1, 2, 0.5, *NUMBERS, *TEXTS, None, True, [], {}))
        lines.append(json.dumps(row if rng.random() < 0.9 else text))
    return lines


def csv_lines(given: list[str], rng: Random) -> list[str]:
    file = io.StringIO()
    rows = [[str(number), text] for number, text in enumerate(given)]
    csv.writer(file, lineterminator="\n").writerows([["id", "text"], *rows])
    return file.getvalue().splitlines()


def write_parquet(path: Path, rng: Random) -> None:
    given = texts(rng)
    kind = rng.choice((pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())))
    columns: dict[str, Any] = {"text": pa.array(given, pa.string()).cast(kind)}
    for name in rng.sample([*COLUMNS], k=rng.randint(0, 3)):
        columns[name] = pa.array([COLUMNS[name](i) for i in range(len(given))])
    if rng.random() < 0.2:
        columns["text"] = columns.popitem()[1]  # of another type, or none at all
    names = list(columns)
    if rng.random() < 0.1:
        names[-1] = names[0]  # twice
    size, codec = rng.randint(1, 5), rng.choice(("none", "snappy", "zstd", "gzip"))
    table = pa.table(list(columns.values()), names=names)
    pq.write_table(table, path, row_group_size=size, compression=codec)


def damage_input(path: Path, rng: Random) -> str:
    """Of a file that a job reads. Returns what was done."""
    kind = rng.random()
    compression = path.suffix if path.suffix in (".gz", ".zst") else ""
    if kind < 0.1:
        return replace_file(path, rng)
    if path.suffix == ".parquet" or kind < 0.3:
        return damage_bytes(path, rng)
    if compression and kind < 0.4:  # members, of which the last may be broken, or too large
        with path.open("ab") as file, (path.parent / "more").open("wb+"):
            with writing(str(path.parent / "more"), compression) as more:
                more.write(rng.choice((b"more\n", b"", b"\0" * BOMB)))
            data = (path.parent / "more").read_bytes()
            file.write(data[: rng.choice((len(data), len(data) // 2))])
        (path.parent / "more").unlink()
        return "another member"
    beside = path.with_name("plain")
    with reading(str(path), compression) as (text, _):
        beside.write_bytes(text.read())
    said = damage_plain(beside, path.name, rng)
    with writing(str(path), compression) as out:
        out.write(beside.read_bytes()[:LARGEST])
    beside.unlink()
    return said


def damage_plain(path: Path, name: str, rng: Random) -> str:
    data = path.read_bytes()
    if name.startswith("in.jsonl") and data and rng.random() < 0.5:
        lines = data.decode("utf-8", "replace").splitlines()
        at = rng.randrange(len(lines))
        if lines[at] and rng.random() < 0.3:
            lines[at] = damage_text(lines[at], rng)
        else:
            lines[at] = damaged_json(lines[at], rng)
        path.write_text("\n".join(lines), encoding="utf-8")
        return f"JSON, line {at}"
    return rng.choice((damage_bytes, lambda path, rng: damage_lines(path, rng, [])))(path, rng)


def damaged_json(text: str, rng: Random) -> str:
    content = {"root": json.loads(text.lstrip("\ufeff") or "null")}
    damage(content, rng, ["in.jsonl"])
    return json.dumps(content.get("root"))


def replace_file(path: Path, rng: Random) -> str:
    kind = rng.choice(("gone", "empty", "folder", "pipe", "loop", "twin"))
    data = path.read_bytes()
    path.unlink()
    if kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "twin":
        path.write_bytes(data + data)
    return kind


def damage_folder(folder: Path, rng: Random) -> str:
    """Of an interrupted job. Returns what was done."""
    path = rng.choice(sorted(each for each in folder.iterdir() if each.name != "lock"))
    kind = rng.random()
    if kind < 0.15:
        path.unlink()
        said = "gone"
    elif kind < 0.25:
        path.unlink()
        path.mkdir()
        said = "folder"
    elif path.suffix == ".json" and kind < 0.8:
        path.write_text(damaged_json(path.read_text("utf-8"), rng), "utf-8")
        said = "JSON"
    elif path.name == "shards.jsonl" and kind < 0.8 and path.stat().st_size:
        lines = path.read_text("utf-8").splitlines()
        at = rng.randrange(len(lines))
        lines[at] = damaged_json(lines[at], rng)
        path.write_text("\n".join(lines) + "\n", "utf-8")
        said = f"JSON, line {at}"
    elif kind < 0.9:
        said = damage_bytes(path, rng)
    else:
        other = rng.choice(sorted(each for each in folder.iterdir() if each.is_file()))
        if other != path:
            shutil.copyfile(other, path)
        said = f"a copy of {other.name}"
    return f"{path.name}: {said}"
