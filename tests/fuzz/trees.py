"""Damages values inside of each other: tables, lists, numbers, names, tensors."""

from __future__ import annotations

import reprlib
from argparse import Namespace
from collections.abc import Iterator
from random import Random
from typing import Any

import torch

# The folder beside the model's with the same files, which no model may read: see sandbox.py.
OUTSIDE = "../outside"
LARGE = 1 << 24  # characters of a value, written out
NUMBERS: tuple[float, ...] = (
    *(-1, 0, 1, 2, 3, 7, 64, 255, 1000, 10**5, 10**7, 10**9, 10**12, 10**30, -(10**9)),
    *(2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**31), -(2**63)),
    *(0.5, -0.5, 1e-30, 1e30, 1e308, float("nan"), float("inf"), float("-inf")),
)
TEXTS = (
    *(
        "",
        " ",
        "a",
        "0",
        "-1",
        "true",
        "none",
        "\0",
        "\n",
        "\t",
        "\u2028",
        "é",
        "\U0001f600",
        "\u202e",
    ),
    *(
        "..",
        "/",
        "../..",
        f"{OUTSIDE}/config.json",
        "/etc/passwd",
        "/dev/zero",
        "~",
        "a/../b",
        "//",
    ),
    *("%s%n", "{0}", "$HOME", "\ud800", "x" * 300, "x" * 100_000, "[" * 2000, "a.b.c", "</s>"),
)


def strange(rng: Random, files: list[str]) -> Any:
    """A value of any type. files: names in the model's folder."""
    name = rng.choice(files)
    simple = [None, True, False, rng.choice(NUMBERS), rng.choice(NUMBERS), rng.choice(TEXTS)]
    simple += [f"{OUTSIDE}/{name}", name, f"sub/../{OUTSIDE}/{name}"]
    value: Any = rng.choice(simple)
    kind = rng.randrange(14)
    if kind == 0:
        count = rng.choice((0, 1, 2, 3, 1000, 100_000))
        return [value] * min(count, LARGE // len(f"{value}_"))
    if kind == 1:
        return {rng.choice(TEXTS): value for _ in range(rng.choice((0, 1, 2, 50)))}
    if kind == 2:
        for _ in range(rng.choice((2, 20, 200))):
            value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def children(value: Any) -> list[Any]:
    """Keys under which a value holds others."""
    if isinstance(value, Namespace):
        return list(vars(value))
    if isinstance(value, dict):
        return list(value)
    return list(range(len(value))) if isinstance(value, list) else []


def table_of(value: Any) -> Any:
    return vars(value) if isinstance(value, Namespace) else value


def places(value: Any, depth: int = 6) -> Iterator[tuple[Any, Any]]:
    """What holds a value, and its key there; of long lists and tables only some."""
    table = table_of(value)
    keys = children(value)
    for key in keys if len(keys) <= 400 else keys[:: len(keys) // 200]:
        yield table, key
        if depth:
            yield from places(table[key], depth - 1)


def damage(root: Any, rng: Random, files: list[str]) -> str:
    """Changes one place, and says how."""
    found = list(places(root))
    if not found:
        return "nothing to change"
    holder, key = rng.choice(found)
    old = holder[key]
    how = rng.choice(("strange", "strange", "strange", "near", "near", "drop", "move", "swap"))
    if how == "near" and not isinstance(old, bool | int | float | str | list | torch.Tensor):
        how = "strange"
    if how == "drop":
        del holder[key]
    elif how == "move" and isinstance(holder, dict):
        holder[rng.choice((f"{key}_", f" {key}", *TEXTS[:12]))] = holder.pop(key)
    elif how == "swap":
        other, place = rng.choice(found)
        if place in children(other):
            holder[key] = other[place] if not is_inside(holder, other[place]) else None
    elif how == "near":
        holder[key] = near(old, rng)
    else:
        holder[key] = strange(rng, files)
    return f"{how} {str(key)[:60]!r} -> {brief(holder, key)}"


def brief(holder: Any, key: Any) -> str:
    try:
        return reprlib.repr(holder[key])[:60]  # what is shared may be endless, written out
    except (KeyError, IndexError):
        return "-"


def is_inside(inner: Any, outer: Any) -> bool:
    """Whether `inner` is `outer` or somewhere in it: to move it there would make a circle."""
    return inner is table_of(outer) or any(
        is_inside(inner, table_of(outer)[key]) for key in children(outer)
    )


def near(old: Any, rng: Random) -> Any:
    """A value of the same type."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int | float):
        return rng.choice((old + 1, old - 1, -old, old * 2, old * 1000, old // 2, str(old), [old]))
    if isinstance(old, str):
        at = rng.randrange(len(old) + 1)
        return rng.choice((old[:at], old + old, old[:at] + rng.choice(TEXTS) + old[at:], [old]))
    if isinstance(old, list):
        return rng.choice((old[:-1], old + old[:1], old[::-1], old * 2, [], [old], old + [None]))
    return other_tensor(old, rng)


def other_tensor(old: torch.Tensor, rng: Random) -> Any:
    tensors = (
        old.flatten(),
        old[None],
        old[:1],
        old[:0],
        old.int(),
        old.double(),
        old * float("nan"),
        old * 1e30,
        torch.zeros(()),
        torch.zeros(1).expand(10**6, 1000),  # 4 GB of 4 bytes
        torch.zeros(1).expand(2**20, 2**20, 2**20),
        old.to(torch.complex64),
        old.t() if old.ndim == 2 else old,
        old.tolist(),
    )
    return rng.choice(tensors)
