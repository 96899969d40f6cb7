"""Damages the files of a model's folder, by format or byte by byte."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import yaml

from tests.fuzz.trees import OUTSIDE, TEXTS, damage, table_of

BRACKETS = (50, 500, 50_000, 100_000)
LARGE = 1 << 26  # bytes of what is small when it is compressed


def mutate(folder: Path, entry: str, rng: Random) -> list[str]:
    """Damages a folder at one to three places. entry: the file that will be loaded, or "". Returns
    what was done."""
    done: list[str] = []
    changed: set[Path] = set()
    for _ in range(rng.choice((1, 1, 1, 1, 1, 2, 2, 3))):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if not files:
            break
        path = rng.choice(files)
        if rng.random() < 0.3:  # where most of the meaning is
            path = rng.choice([each for each in files if each.suffix in MEANING] or files)
        names = [str(each.relative_to(folder)) for each in files]
        if path.is_symlink() or path.stat().st_mode & 0o170000 != 0o100000:
            continue
        how = rng.random()
        if how < 0.12 and str(path.relative_to(folder)) != entry:
            said = replace_file(folder, path, rng)
        elif how < 0.22 or path in changed:  # nothing damaged is parsed here
            said = damage_bytes(path, rng)
        else:
            said = damage_content(path, rng, names)
        changed.add(path)
        done.append(f"{path.relative_to(folder)}: {said}")
    return done


MEANING = (".json", ".yml", ".pt", ".npz")


# The file as a whole


def replace_file(folder: Path, path: Path, rng: Random) -> str:
    kind = rng.choice(
        ("gone", "empty", "pipe", "folder", "out", "out", "out", "loop", "zero", "twin", "sparse")
    )
    relative = path.relative_to(folder)
    content = path.read_bytes()
    path.unlink()
    if kind == "empty":
        path.touch()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "out":
        target = Path(OUTSIDE) / relative
        up = Path(*[".."] * (len(relative.parts) - 1))
        path.symlink_to(rng.choice((up / target, (folder / target).resolve())))
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "twin":
        others = [each for each in folder.rglob("*") if each.is_file()]
        shutil.copyfile(rng.choice(others), path) if others else path.write_bytes(content * 2)
    elif kind == "sparse":
        path.write_bytes(content)
        os.truncate(path, rng.choice((len(content) + 1, LARGE)))
    return kind


def damage_bytes(path: Path, rng: Random) -> str:
    """Of any file."""
    data = bytearray(path.read_bytes())
    if not data:
        return "empty"
    at = rng.randrange(len(data))
    if rng.random() < 0.4:  # headers come first, a zip's table last
        at = rng.choice(
            (rng.randrange(min(512, len(data))), -1 - rng.randrange(min(512, len(data))))
        )
    kind = rng.choice(("flip", "flips", "cut", "grow", "number", "insert", "repeat", "zeros"))
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "flips":
        for _ in range(rng.choice((4, 30))):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == "cut":
        del data[at:]
    elif kind == "grow":
        data += rng.randbytes(rng.choice((1, 8, 300)))
    elif kind == "number":
        numbers = (0, 1, 0x7F, 0xFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
        data[at : at + 8] = struct.pack("<Q", rng.choice(numbers))
    elif kind == "insert":
        data[at:at] = rng.choice((b"\xff", b"\0", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"[" * 50_000))
    elif kind == "repeat":
        data[at:at] = data[at : at + rng.choice((1, 16, 300))] * rng.choice((1, 50))
    elif kind == "zeros":
        data[at : at + 16] = bytes(16)
    path.write_bytes(data)
    return f"{kind} at {at}"


# What a file holds


def damage_content(path: Path, rng: Random, names: list[str]) -> str:
    """By the format that a file is in."""
    change = BY_SUFFIX.get(path.suffix, damage_lines)
    if path.suffix == ".bin" and path.name.startswith("pytorch"):
        change = damage_torch
    elif path.suffix in (".bin", ".spm", ".model"):
        return damage_bytes(path, rng)
    return change(path, rng, names)


def damage_text(text: str, rng: Random) -> str:
    """Of JSON and YAML: nesting, keys twice."""
    brackets = rng.choice(("[", '{"a":', "- ", "{", "&a [*a, ")) * rng.choice(BRACKETS)
    at = text.find(":", rng.randrange(len(text))) + 1
    end = text.find(",", at)
    kind = rng.randrange(3)
    if kind == 0 and end > at:
        return text[:at] + brackets + text[at:]
    if kind == 1 and end > at:
        return text[:at] + " " + brackets + text[end:]
    return text.replace("{", '{"model_type": 3, "weight_map": [], ', 1)


def damage_json(path: Path, rng: Random, names: list[str]) -> str:
    text = path.read_text(encoding="utf-8")
    if rng.random() < 0.06:
        path.write_text(damage_text(text, rng), encoding="utf-8")
        return "nesting or keys twice"
    content = {"root": json.loads(text)}
    said = damage(content, rng, names)
    # Escapes keep what UTF-8 cannot write.
    path.write_text(json.dumps(content.get("root")), encoding="utf-8")
    return said


def damage_yaml(path: Path, rng: Random, names: list[str]) -> str:
    path.write_bytes(damaged_yaml(path.read_bytes(), rng, names))
    return "YAML"


def damaged_yaml(data: bytes, rng: Random, names: list[str]) -> bytes:
    text = data.rstrip(b"\0").decode()
    kind = rng.random()
    if kind < 0.08:
        return damage_text(text, rng).encode()
    key = rng.choice([line.partition(":")[0] for line in text.splitlines() if ":" in line])
    if kind < 0.16:  # each line doubles the one before
        lines = ["a0: &a0 [x, x]"]
        lines += [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, rng.choice((3, 26)))]
        return ("\n".join(lines) + f"\n{text}\n{key}: *a{len(lines) - 1}\n").encode()
    if kind < 0.22:
        tag = rng.choice(("!!python/object/apply:os.system ['true']", "!!binary =", "!x y", "? !"))
        return f"{text}\n{key}: {tag}\n".encode()
    content = {"root": yaml.load(text, Loader=yaml.CSafeLoader)}
    damage(content, rng, names)
    return yaml.dump(content.get("root"), allow_unicode=rng.random() < 0.5).encode(
        "utf-8", "replace"
    )


def damage_safetensors(path: Path, rng: Random, names: list[str]) -> str:
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    content = {"root": json.loads(data[8 : 8 + size])}
    said = damage(content, rng, names)
    header = json.dumps(content.get("root")).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])
    return said


def damage_torch(path: Path, rng: Random, names: list[str]) -> str:
    if not zipfile.is_zipfile(path) or rng.random() < 0.35:
        return damage_pickle(path, rng)
    content = {"root": torch.load(path, weights_only=False)}
    if rng.random() < 0.08:
        shared: Any = ("x",)
        for _ in range(40):
            shared = (shared, shared)
        root = content["root"]
        options = root.get("args") or root.get("opt") or root.get("cfg") or root
        table_of(options)["arch"] = shared
        said = "tuples that share tuples"
    else:
        said = damage(content, rng, names)
    torch.save(content.get("root"), path, _use_new_zipfile_serialization=rng.random() < 0.9)
    return said


def damage_pickle(path: Path, rng: Random) -> str:
    """Bytes of the pickle in a torch file."""
    if not zipfile.is_zipfile(path):
        return damage_bytes(path, rng)
    members = read_members(path)
    name = next(name for name in members if name.endswith("data.pkl"))
    members[name] = damaged(members[name], path, rng)
    return write_members(path, members, rng)


def damaged(data: bytes, path: Path, rng: Random) -> bytes:
    beside = path.with_name("part")
    beside.write_bytes(data)
    damage_bytes(beside, rng)
    data = beside.read_bytes()
    beside.unlink()
    return data


def read_members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_members(path: Path, members: dict[str, bytes], rng: Random) -> str:
    kind = zipfile.ZIP_DEFLATED if rng.random() < 0.1 else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return "a part of its zip"


def damage_npz(path: Path, rng: Random, names: list[str]) -> str:
    members = read_members(path)
    name = rng.choice(list(members))
    kind = rng.randrange(5)
    if kind == 0:
        options = np.load(io.BytesIO(members["special:model.yml.npy"]))
        damaged_options = damaged_yaml(options.tobytes(), rng, names) + b"\0"
        members["special:model.yml.npy"] = array_bytes(np.frombuffer(damaged_options, np.int8))
    elif kind == 1:
        members[name] = damaged(members[name], path, rng)
    elif kind == 2:
        members[rng.choice((f"{OUTSIDE}/{name}", f"/{name}", f"{name}.npy", "é.npy"))] = (
            members.pop(name)
        )
    elif kind == 3:
        shape = rng.choice(("(1000000000000,)", "(0, 32)", "(2147483648, 2)", "(-1,)", "(3, 4, 5)"))
        text = f"{{'descr': '{rng.choice(('<f4', '<f8', '|O', '<i1'))}', 'fortran_order': False, "
        text += f"'shape': {shape}, }}\n"
        header = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()
        members[name] = header + members[name][128:]
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for each, data in members.items():
                archive.writestr(
                    each, array_bytes(np.zeros(LARGE, np.int8)) if each == name else data
                )
        return f"{name} is {LARGE} zeros"
    return write_members(path, members, rng)


def array_bytes(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def damage_lines(path: Path, rng: Random, names: list[str]) -> str:
    """Of vocabularies and merges."""
    lines = path.read_bytes().split(b"\n")
    at = rng.randrange(len(lines))
    kind = rng.choice(("drop", "twice", "text", "text", "join", "sort", "number", "many"))
    if kind == "drop":
        del lines[at]
    elif kind == "twice":
        lines.insert(at, rng.choice(lines))
    elif kind == "text":
        lines[at] += rng.choice(TEXTS).encode("utf-8", "surrogatepass")
    elif kind == "join":
        lines[at : at + 2] = [b" ".join(lines[at : at + 2])]
    elif kind == "sort":
        lines.sort()
    elif kind == "number":
        lines[at] = lines[at].rpartition(b" ")[0] + b" -99999999999999999999"
    else:
        lines[at:at] = [lines[at]] * 10_000
    path.write_bytes(b"\n".join(lines))
    return f"{kind}, line {at}"


BY_SUFFIX: dict[str, Callable[[Path, Random, list[str]], str]] = {
    ".json": damage_json,
    ".npz": damage_npz,
    ".pt": damage_torch,
    ".safetensors": damage_safetensors,
    ".yml": damage_yaml,
}
