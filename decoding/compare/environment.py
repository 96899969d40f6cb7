"""Describes the device, commit and date of a measurement."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

# The flags that matter to the engines' kernels; /proc/cpuinfo lists a hundred more.
FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_bf16", "amx_int8")


@dataclass(frozen=True)
class Environment:
    device: str
    flags: str
    commit: str
    date: str


def environment(device: str = "cpu") -> Environment:
    """The environment of the CPU, or of the GPU that `device` names."""
    name, flags = cpu() if device == "cpu" else gpu(device)
    return Environment(
        device=name,
        flags=flags,
        commit=commit(),
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    )


def cpu() -> tuple[str, str]:
    info = cpu_info()
    name = f"{info.get('model name', platform.machine())}, {len(os.sched_getaffinity(0))} CPUs"
    return name, " ".join(flag for flag in FLAGS if flag in info.get("flags", "").split())


def gpu(device: str) -> tuple[str, str]:
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return torch.cuda.get_device_name(device), f"sm_{major}{minor}, CUDA {torch.version.cuda}"


def cpu_info() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo; empty where there is none."""
    path = Path("/proc/cpuinfo")
    text = path.read_text().split("\n\n")[0] if path.exists() else ""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def commit() -> str:
    """The project's commit, "+changes" if tracked files differ from it; "unknown" where this file
    is not tracked by git, as in an installed wheel."""
    here = Path(__file__)
    tracked = ["git", "ls-files", "--error-unmatch", here.name]
    command = ["git", "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+changes"]
    try:
        subprocess.run(tracked, cwd=here.parent, capture_output=True, check=True)
        found = subprocess.run(command, cwd=here.parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()
