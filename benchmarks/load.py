"""How long loading takes beside reading the file, and how much memory: of a random Llama on a disk.

Each load and each copy is that of a new process, since memory that a process has just given back
is faster than what a virtual machine's host has taken away meanwhile. The file is in the system's
cache: it has just been written, or read.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.report.rows import show_and_write
from decoding.compare.environment import environment
from decoding.compare.memory import ResidentMemory

# Llama 3.2 1B's sizes: 1.24 G weights, with one table for tokens and output.
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
FILES = {"safetensors": "model.safetensors", "torch": "pytorch_model.bin"}


@dataclass(frozen=True)
class LoadRow:
    """One type of one file. load: seconds of decoding.load, the median. read: seconds of reading
    the file into a buffer of 1 MiB, copy: into memory of its size. peak: growth of the resident set
    while loading, kept: the weights that the engine has then, MB."""

    model: str
    weights: int
    format: str
    stored: str
    dtype: str
    threads: int
    repeats: int
    load: float
    read: float
    copy: float
    peak: float
    kept: float
    device: str
    flags: str
    commit: str
    date: str

    def __str__(self) -> str:
        return (
            f"{self.format} {self.stored} -> {self.dtype:8} load {self.load:.2f} s  "
            f"read {self.read:.2f} s  copy {self.copy:.2f} s  "
            f"peak {self.peak:.0f} MB  kept {self.kept:.0f} MB"
        )


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = LLAMA["hidden_size"], LLAMA["intermediate_size"]
    keys = hidden * LLAMA["num_key_value_heads"] // LLAMA["num_attention_heads"]
    yield "model.embed_tokens.weight", (LLAMA["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    for layer in range(LLAMA["num_hidden_layers"]):
        for name, shape in {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }.items():
            yield f"model.layers.{layer}.{name}.weight", shape


def write(directory: Path, form: str, dtype: torch.dtype) -> int:
    """Returns the number of weights."""
    torch.manual_seed(0)
    state = {name: torch.empty(shape, dtype=dtype).normal_(0, 0.02) for name, shape in shapes()}
    (directory / "config.json").write_text(json.dumps(LLAMA))
    if form == "torch":
        torch.save(state, directory / FILES[form])
    else:
        save_file(state, directory / FILES[form])
    return sum(tensor.numel() for tensor in state.values())


def read(path: Path) -> float:
    """Seconds of reading a file into a buffer that stays in the processor's cache."""
    buffer, start = bytearray(1 << 20), time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - start


def copy(path: str) -> None:
    """Prints the seconds of reading a file into new memory, by a process as large as load's."""
    importlib.import_module("decoding")
    start = time.perf_counter()
    Path(path).read_bytes()
    print(json.dumps([time.perf_counter() - start]))


def load(directory: str, device: str, dtype: str, threads: str) -> None:
    """Prints seconds, bytes at the peak and bytes kept."""
    import decoding

    memory = ResidentMemory()
    with memory:
        start = time.perf_counter()
        model = decoding.load(directory, device, dtype, threads=int(threads))
        seconds = time.perf_counter() - start
    print(json.dumps([seconds, memory.growth, model.weight_bytes]))


def in_a_process(*arguments: str) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.load", "--child", *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(json.loads(found.stdout))


def measure(options: argparse.Namespace, directory: Path) -> Iterator[LoadRow]:
    stored = getattr(torch, options.stored)
    weights = write(directory, options.format, stored)
    path = directory / FILES[options.format]
    for dtype in options.dtype:
        reads, copies, loads = [], [], []
        for _ in range(options.repeats):  # in turns, so that a drift of the machine hits all alike
            reads.append(read(path))
            copies += in_a_process("copy", str(path))
            place = (str(directory), options.device, dtype, str(options.threads))
            loads.append(in_a_process("load", *place))
        yield LoadRow(
            model="llama-1B",
            weights=weights,
            format=options.format,
            stored=options.stored,
            dtype=dtype,
            threads=options.threads,
            repeats=options.repeats,
            load=median(seconds for seconds, _, _ in loads),
            read=median(reads),
            copy=median(copies),
            peak=max(peak for _, peak, _ in loads) / 1e6,
            kept=loads[0][2] / 1e6,
            **asdict(environment(options.device)),
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("--format", choices=FILES, default="safetensors")
    parser.add_argument("--stored", default="bfloat16", help="the type of the file's weights")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "int8", "float32"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, help="a CSV file for the rows")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        task, *given = options.child
        tasks: dict[str, Callable[..., None]] = {"copy": copy, "load": load}
        tasks[task](*given)
        return
    with tempfile.TemporaryDirectory() as directory:
        show_and_write(measure(options, Path(directory)), options.output)


if __name__ == "__main__":
    main()
