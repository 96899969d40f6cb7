"""Updates of the demo model with decoding.nn and with torch's own modules, in turns; on a GPU both
eagerly and as CUDA graphs.

python -m benchmarks.train_demo [--device cuda] [--steps 60] [--r-drop 4 0] [--output FILE]

Batches are of random ids, as long as Tatoeba's sentences, and the same for all.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.report.rows import show_and_write
from decoding.compare.environment import environment
from decoding.compare.timing import percentile
from decoding.models.torch.blocks import Dropout
from examples.train_a_translator.corpus import EOS, Batch, Packed, batches
from examples.train_a_translator.trainer import Trainer, make_model, make_spec

VOCABULARY = 8000
SHAPE = (4, 3, 256, 4, 896)
RATES = Dropout(block=0.1, attention=0.1, activation=0.1)
LONGEST = 20  # tokens of a sentence; Tatoeba's have 10 on average
SENTENCES = 20000
WARM_UP = 5  # steps
TURN = 5  # steps
PROVIDERS = {
    "cpu": ["ours", "torch"],
    "cuda": ["ours", "ours-graphs", "torch", "torch-graphs"],
}


@dataclass(frozen=True)
class TrainRow:
    """Milliseconds of a step. memory: that an eager one takes on a GPU at most beside the weights,
    MB. What graphs hold, torch counts as reserved alone."""

    what: str
    provider: str
    r_drop: float
    tokens: int
    threads: int
    steps: int
    p20: float
    p50: float
    p80: float
    unit: str
    memory: float
    version: str
    device: str
    flags: str
    commit: str
    date: str

    def __str__(self) -> str:
        return (
            f"R-Drop {self.r_drop:g}  {self.provider:12} {self.p50:9.2f} ms"
            f" [{self.p20:.2f} {self.p80:.2f}] {self.memory:8.0f} MB"
        )


def random_batches(tokens: int, device: torch.device) -> Iterator[Batch]:
    random = np.random.default_rng(0)
    sides = []
    for _ in range(2):
        lengths = random.integers(2, LONGEST, SENTENCES)
        ids = random.integers(2, VOCABULARY - 1, lengths.sum()).astype(np.int16)
        offsets = np.concatenate([[0], lengths.cumsum()])
        ids[offsets[1:] - 1] = EOS
        sides.append(Packed(ids, offsets))
    while True:
        yield from batches((sides[0], sides[1]), VOCABULARY - 1, tokens, random, device)


def steps(trainer: Trainer, given: Sequence[Batch]) -> list[float]:
    """Seconds of each."""
    cuda, taken = trainer.device.type == "cuda", []
    for batch in given:
        begin = time.perf_counter()
        trainer.step(batch, 0.0)
        if cuda:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    return taken


def compare(options: argparse.Namespace, r_drop: float) -> list[TrainRow]:
    device = torch.device(options.device)
    given = list(itertools.islice(random_batches(options.tokens, device), WARM_UP + options.steps))
    # The first batch of a shape loads kernels, the second is captured.
    every_shape = [*{(*batch.source.shape, len(batch.labels)): batch for batch in given}.values()]
    trainers, seconds, memory = {}, dict[str, list[float]](), dict[str, float]()
    for provider in PROVIDERS[options.device]:
        torch.manual_seed(1)
        plain, graphs = provider.startswith("torch"), provider.endswith("graphs")
        model = make_model(make_spec(*SHAPE, vocab=VOCABULARY), RATES, plain).to(device).train()
        how = argparse.Namespace(rate=1e-4, warmup=1, r_drop=r_drop, plain=plain)
        trainers[provider] = Trainer(model, how, graphs)
        found = peak(trainers[provider], given[:WARM_UP])  # the first of a shape are eager
        memory[provider] = math.nan if graphs else found
        steps(trainers[provider], 2 * every_shape if options.device == "cuda" else [])
        seconds[provider] = []
    for begin in range(WARM_UP, len(given), TURN):
        for provider, trainer in trainers.items():
            seconds[provider] += steps(trainer, given[begin : begin + TURN])
    where = environment(options.device)
    return [
        TrainRow(
            what="demo model, one update",
            provider=provider,
            r_drop=r_drop,
            tokens=options.tokens,
            threads=options.threads if options.device == "cpu" else 0,
            steps=len(taken),
            p20=1e3 * percentile(taken, 20),
            p50=1e3 * percentile(taken, 50),
            p80=1e3 * percentile(taken, 80),
            unit="ms",
            memory=memory[provider] / 1e6,
            version=f"torch {torch.__version__}" if provider.startswith("torch") else "",
            **asdict(where),
        )
        for provider, taken in seconds.items()
    ]


def peak(trainer: Trainer, given: Sequence[Batch]) -> float:
    """Bytes that the steps take beyond what there was, weights and optimizer not counted."""
    steps(trainer, given[:1])  # makes the optimizer's state
    if trainer.device.type == "cpu":
        steps(trainer, given[1:])
        return math.nan
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    steps(trainer, given[1:])
    return torch.cuda.max_memory_allocated() - before


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=16384, help="of a batch")
    parser.add_argument("--r-drop", type=float, nargs="+", default=[4.0, 0.0])
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--output", type=Path, help="a CSV file for the rows")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("high")
    found = (row for r_drop in options.r_drop for row in compare(options, r_drop))
    show_and_write(found, options.output)


if __name__ == "__main__":
    main()
