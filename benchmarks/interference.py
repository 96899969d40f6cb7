"""What requests that an engine runs side by side cost each other.

churn: requests that join and leave at each step. mixed: greedy search, sampling and beams of
several widths. prompts: long prompts that come among decoders. caching: random prompts, without a
prefix cache and with one, which finds nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.cases.serving import CAUSAL, save
from benchmarks.cases.workloads import WORKLOADS
from benchmarks.online import PROVIDERS, Provider
from benchmarks.online.interference import Pair, Sizes, caching, churn, mixed, prompts
from benchmarks.online.process import Host
from benchmarks.report.rows import show_and_write
from decoding.compare.bounds import WIDTHS
from decoding.compare.engines import Settings
from decoding.compare.environment import Environment, environment
from decoding.compare.report.table import number

VOCABULARIES = {name: model.vocabulary for name, model in WORKLOADS.items()}
VOCABULARIES |= {name: config["vocab_size"] for name, config in CAUSAL.items()}


@dataclass(frozen=True)
class Measure:
    """models, sizes: by device."""

    run: Callable[[Provider, Sizes], list[Pair]]
    models: dict[str, str]
    sizes: dict[str, Sizes]


MEASURES = {
    "churn": Measure(
        churn,
        {"cpu": "gpt2-124M", "cuda": "gpt2-124M"},
        {"cpu": Sizes(rows=16, source=1, new=16), "cuda": Sizes(rows=128, source=1, new=128)},
    ),
    "mixed": Measure(
        mixed,
        {"cpu": "marian-base", "cuda": "marian-base"},
        {"cpu": Sizes(rows=40, source=16, new=16), "cuda": Sizes(rows=160, source=32, new=256)},
    ),
    "prompts": Measure(
        prompts,
        {"cpu": "llama-small", "cuda": "llama-1B"},
        {
            "cpu": Sizes(rows=4, source=16, new=256, prompt=256, every=1.0, seconds=10),
            "cuda": Sizes(rows=64, source=32, new=1024, prompt=4096, every=0.1, seconds=10),
        },
    ),
    "caching": Measure(
        caching,
        {"cpu": "gpt2-124M", "cuda": "gpt2-124M"},
        {"cpu": Sizes(rows=16, source=65, new=16), "cuda": Sizes(rows=128, source=513, new=64)},
    ),
}
BOUNDED = ("churn", "caching")  # measures whose engine steps with no more rows than theirs
GIVEN = ("rows", "source", "new", "prompt", "every", "seconds")  # sizes on the command line
DTYPES = {"cpu": "float32", "cuda": "bfloat16"}


@dataclass(frozen=True)
class Conditions:
    """rows, source, new: as in Sizes."""

    measure: str
    model: str
    provider: str
    version: str
    dtype: str
    threads: int
    rows: int
    source: int
    new: int
    repeats: int


@dataclass(frozen=True)
class InterferenceRow(Environment, Pair, Conditions):
    """alone, beside: medians over the repeats. ratio: of beside to alone."""

    ratio: float

    def __str__(self) -> str:
        return (
            f"{self.measure:8} {self.model:11} {self.provider:11} {self.case:48} "
            f"{number(self.alone):>7} -> {number(self.beside):>7} {self.unit:8} x {self.ratio:.2f}"
        )


def measured(options: argparse.Namespace, name: str) -> Iterator[InterferenceRow]:
    measure, device = MEASURES[name], options.device
    model = options.model or measure.models[device]
    given = {key: value for key in GIVEN if (value := getattr(options, key)) is not None}
    sizes = replace(measure.sizes[device], vocabulary=VOCABULARIES[model], **given)
    settings = Settings(device, options.dtype or DTYPES[device], options.threads)
    most = sizes.rows if name in BOUNDED else None
    with tempfile.TemporaryDirectory() as folder:
        directory = save(model, Path(folder))
        with Host(options.provider, directory, settings, most) as host:
            host.run(measure.run, replace(sizes, seconds=3 * sizes.every))  # the warm-up
            repeats = [
                host.run(measure.run, replace(sizes, seed=sizes.seed + i))
                for i in range(1, options.repeats + 1)
            ]
            for same in zip(*repeats, strict=True):
                alone = median(pair.alone for pair in same)
                beside = median(pair.beside for pair in same)
                yield InterferenceRow(
                    measure=name,
                    model=model,
                    provider=options.provider,
                    version=host.version,
                    dtype=settings.dtype,
                    threads=options.threads,
                    rows=sizes.rows,
                    source=sizes.source,
                    new=sizes.new,
                    repeats=options.repeats,
                    **asdict(replace(same[0], alone=alone, beside=beside)),
                    ratio=beside / alone,
                    **asdict(environment(device)),
                )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.interference", description=__doc__)
    add = parser.add_argument
    add("--measure", nargs="+", choices=MEASURES, default=list(MEASURES))
    add("--device", choices=list(DTYPES), default="cpu")
    add("--dtype", choices=list(WIDTHS), help=f"default: {DTYPES}")
    add("--provider", choices=PROVIDERS, default="ours")
    add("--model", choices=VOCABULARIES, help="default: that of the measure on the device")
    add("--rows", type=int, help="computed at once; in mixed a multiple of 40")
    add("--source", type=int, help="tokens of a source or prompt")
    add("--new", type=int, help="tokens of an answer; in churn as many as rows")
    add("--prompt", type=int, help="tokens of a long prompt")
    add("--every", type=float, help="seconds between two long prompts")
    add("--seconds", type=float, help="of decoding with long prompts, and without")
    add("--threads", type=int, default=2, help="of the engine on a CPU")
    add("--repeats", type=int, default=3)
    add("--output", type=Path, help="a CSV file for the rows")
    options = parser.parse_args(arguments)
    rows = (row for name in options.measure for row in measured(options, name))
    show_and_write(rows, options.output)


if __name__ == "__main__":
    main()
