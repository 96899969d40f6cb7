"""How work scales over devices: a corpus by data parallelism, steps by tensor parallelism, and the
exchanges between GPUs that these steps wait for.

    python -m benchmarks.scale corpus --model models/demo --input german.txt --counts 1 2
    python -m benchmarks.scale steps --model llama-1B --device cuda --dtype bfloat16 --counts 1 2 4
    python -m benchmarks.scale exchange --counts 2 4

Counts are of GPUs; with `--device cpu` of processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report.rows import write_rows
from benchmarks.scale_ranks import MODELS, PROVIDERS
from decoding.compare.environment import environment


@dataclass(frozen=True)
class ScaleRow:
    """part: corpus, steps or exchange. what: a file, a shape, or bytes of each rank's part. p50: of
    a job in seconds, of a step in milliseconds, of an exchange in microseconds. ratio: the time of
    the first row of the same provider and `what` over this one's."""

    part: str
    model: str
    what: str
    provider: str
    dtype: str
    count: int
    threads: int
    repeats: int
    p50: float
    unit: str
    rate: float
    ratio: float
    device: str
    flags: str
    commit: str
    date: str


def corpus(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Whole commands, from the start of the first process to the end of the last; rate: lines a
    second."""
    with options.input.open("rb") as file:
        lines = sum(1 for _ in file)
    command = [sys.executable, "-m", "decoding", "translate", "--quiet", "--input", options.input]
    command += ["--model", options.model, "--dtype", options.dtype]
    command += ["--threads", str(options.threads), "--shard-lines", str(options.shard_lines)]
    for count in options.counts:
        gpus = ",".join(map(str, range(count)))
        where = ["--workers", str(count)] if options.device == "cpu" else ["--devices", gpus]
        times = []
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as folder:
                begin = time.perf_counter()
                output = Path(folder) / "output.txt"
                subprocess.run([*command, *where, "--output", output], check=True)
                times.append(time.perf_counter() - begin)
        p50 = sorted(times)[len(times) // 2]
        yield {"what": options.input.name, "count": count, "p50": p50, "rate": lines / p50}


def on_ranks(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What rank 0 of as many ranks prints, line by line."""
    given = {name: str(value) for name, value in vars(options).items() if name != "counts"}
    for count in options.counts:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count)]
        command += ["-m", "benchmarks.scale_ranks", json.dumps(given)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ranks:
            for line in ranks.stdout or ():
                if line.startswith("{"):  # libraries print there, too
                    yield {"count": count, **json.loads(line)}
        if ranks.returncode:
            raise SystemExit(f"{count} ranks have ended with {ranks.returncode}")


UNITS = {"corpus": "s", "steps": "ms/step", "exchange": "us"}


def rows(options: argparse.Namespace) -> Iterator[ScaleRow]:
    """As they come."""
    first: dict[tuple[str, str], float] = {}
    for each in corpus(options) if options.part == "corpus" else on_ranks(options):
        provider = each.pop("provider", "ours")
        alone = first.setdefault((provider, each["what"]), each["p50"])
        row = ScaleRow(
            part=options.part,
            model="" if options.part == "exchange" else Path(options.model).name,
            provider=provider,
            dtype=options.dtype,
            threads=options.threads,
            repeats=options.repeats,
            unit=UNITS[options.part],
            ratio=alone / each["p50"],
            **each,
            **asdict(environment(options.device)),
        )
        print(
            f"{row.what:>12} {row.provider:10} on {row.count}: {row.p50:10.3f} {row.unit:8} "
            f"{row.rate:10.1f}/s  {row.ratio:5.2f} x",
            flush=True,
        )
        yield row


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("part", choices=UNITS)
    parser.add_argument("--model", default="models/demo", help=f"of steps: {', '.join(MODELS)}")
    parser.add_argument("--input", type=Path, help="a corpus, a sentence in each line")
    parser.add_argument("--shard-lines", type=int, default=10_000)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1, help="of each process on a CPU")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--providers", nargs="+", choices=PROVIDERS, default=list(PROVIDERS))
    parser.add_argument("--output", type=Path, help="a CSV file for the rows")
    options = parser.parse_args(arguments)
    if options.part == "corpus" and options.input is None:
        parser.error("corpus needs --input")
    if options.part == "steps" and options.model not in MODELS:
        parser.error(f"steps need --model {' or '.join(MODELS)}")
    if options.part == "exchange":
        options.device = "cuda"
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    found = []
    for row in rows(options):
        found.append(row)
        if options.output:
            write_rows(found, options.output)  # what is there stays, whatever comes


if __name__ == "__main__":
    main()
