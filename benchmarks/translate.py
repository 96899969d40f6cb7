"""Whole programs that translate a file: ours, CTranslate2 and transformers on the same weights.

Each run is a process from its start to its end: imports, loading, tokenisation, translation,
writing. See benchmarks/README.md for what a row means.
"""

from __future__ import annotations

import argparse
import importlib
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import sacrebleu

from benchmarks.cases import forced, texts
from benchmarks.cases.workloads import WORKLOADS
from benchmarks.gpu_watch import GpuWatch
from benchmarks.report.rows import write_rows
from decoding.compare.engines import installed
from decoding.compare.engines.conversion import convert
from decoding.compare.environment import Environment, environment
from decoding.compare.memory import resident
from decoding.compare.timing import percentile, pin_to_cores

MODULES = {  # each program, and the libraries that its time depends on
    "ours": ("decoding translate", ("decoding", "torch")),
    "ctranslate2": ("benchmarks.translate_ctranslate2", ("ctranslate2",)),
    "huggingface": ("benchmarks.translate_transformers", ("transformers", "torch")),
}
# Source tokens in a batch that a program may choose the best of; others have --batch-tokens.
BATCH_TOKENS = {"ctranslate2": [8192, 16384, 32768]}
DTYPES = {"cpu": ["float32", "bfloat16", "int8"], "cuda": ["float16"]}
MAX_NEW_TOKENS = 256  # of a line, the same for all; no caption comes near
BLEU_TOLERANCE = 1.0  # more is not the same model, whatever the type
POLL = 0.02  # seconds between two looks at a process


@dataclass(frozen=True)
class TranslateRow:
    """One program on one file. p20, p50, p80: seconds of a whole process, over the repeats.

    threads: of the CPU; 0 with a GPU, where each library takes what it likes. ratio: p50 over that
    of ours in the same type; NaN where ours did not run in it. sentences, tokens: in a second, of
    the median; tokens are those of the translations with their ends. memory: peak of the process's
    resident memory, MB, without what it has on a GPU. busy: share of the process's time in which
    the device computed, of the CPU's threads or of the GPU, the median; NaN where that is not
    known. equal: lines with the very translation that
    the first program gives, ours in the first type. bleu: against the references.
    """

    model: str
    text: str
    lines: int
    provider: str
    version: str
    dtype: str
    beams: int
    batch_tokens: int
    threads: int
    repeats: int
    p20: float
    p50: float
    p80: float
    unit: str
    ratio: float
    sentences: float
    tokens: float
    memory: float
    busy: float
    bleu: float
    equal: int
    device: str
    flags: str
    commit: str
    date: str


@dataclass
class Program:
    """A command that translates, and what its runs were."""

    provider: str
    dtype: str
    batch_tokens: int
    threads: int  # 0 with a GPU
    command: list[str]
    output: Path
    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    memory: int = 0

    def run(self) -> None:
        with GpuWatch(not self.threads) as gpu:
            begin, cores = time.perf_counter(), core_seconds()
            process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
            while process.poll() is None:
                self.memory = max(self.memory, resident("VmHWM", process.pid))
                time.sleep(POLL)
            seconds = time.perf_counter() - begin
        if process.returncode != 0:
            assert process.stderr is not None
            raise RuntimeError(f"{' '.join(self.command)} failed:\n{process.stderr.read()}")
        self.seconds.append(seconds)
        of_cores = (core_seconds() - cores) / (seconds * self.threads) if self.threads else gpu.busy
        self.busy.append(of_cores)

    def forget(self) -> None:
        """What its runs so far were."""
        self.seconds, self.busy = [], []

    @property
    def median(self) -> float:
        return percentile(self.seconds, 50)

    @property
    def lines(self) -> list[str]:
        return self.output.read_text(encoding="utf-8").split("\n")[:-1]


def core_seconds() -> float:
    """Of all processes that have ended, on all cores."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def programs(options: argparse.Namespace, text: texts.Text, folder: Path) -> Iterator[Program]:
    """In the order of `--providers`, of each those types that it computes in on the device, and
    the sizes of batches that it may have."""
    arguments = ["--device", options.device, "--num-beams", options.num_beams]
    arguments += ["--max-new-tokens", MAX_NEW_TOKENS]
    if options.threads:
        arguments += ["--threads", options.threads]
    original, inputs = options.model, plain_input(text, folder)
    if options.shape:
        original = folder / options.shape
        forced.save_model(options.shape, options.model, original)
        inputs = forced_input(text, forced.limits(options.model, text.references), folder)
    for engine in installed(options.providers):
        for dtype in options.dtype:
            if dtype not in engine.dtypes[options.device]:
                continue
            model, more = original, []
            if engine.converts:
                model, more = folder / f"model-{dtype}", ["--pieces", options.model]
                convert(original, model, dtype, numbered=False)
            output = folder / f"{engine.name}-{dtype}.txt"
            module, _ = MODULES[engine.name]
            for tokens in BATCH_TOKENS.get(engine.name, [options.batch_tokens]):
                own = ["--model", model, "--dtype", dtype, "--output", output, *more]
                own += ["--batch-tokens", tokens, *inputs[engine.name], *arguments]
                command = [sys.executable, "-m", *module.split(), *map(str, own)]
                yield Program(engine.name, dtype, tokens, options.threads, command, output)


def plain_input(text: texts.Text, folder: Path) -> dict[str, list[Any]]:
    """The arguments of each program that say what to translate."""
    source = folder / "source.txt"
    source.write_text("".join(line + "\n" for line in text.sources), encoding="utf-8")
    return dict.fromkeys(MODULES, ["--input", source])


def forced_input(text: texts.Text, limits: Sequence[int], folder: Path) -> dict[str, list[Any]]:
    """The same, where each translation has as many tokens as its reference: the end is banned."""
    found = plain_input(text, folder)
    lines, numbers = folder / "source.jsonl", folder / "limits.txt"
    forced.write_lines(lines, text.sources, limits)
    numbers.write_text("".join(f"{limit}\n" for limit in limits))
    ours = ["--input", lines, "--input-format", "json", "--output-format", "lines"]
    found["ours"] = [*ours, "--suppress-tokens", 0]
    found["ctranslate2"] += ["--limits", numbers]
    return found


def fastest(found: Iterable[Program]) -> list[Program]:
    """Of each provider and type the program with the best size of batches, by a first run, which
    does not count."""
    best: dict[tuple[str, str], Program] = {}
    for program in found:
        program.run()
        other = best.setdefault((program.provider, program.dtype), program)
        if program.median < other.median:
            best[program.provider, program.dtype] = program
    for program in best.values():
        program.forget()
    return list(best.values())


def measure(options: argparse.Namespace) -> list[TranslateRow]:
    """All programs in turns, so that a machine that slows down does so for each.

    Raises RuntimeError where a program fails, loses lines, or translates unlike the first.
    """
    text = texts.joined(texts.read(options.text, options.lines))
    with tempfile.TemporaryDirectory() as folder:
        found = fastest(programs(options, text, Path(folder)))
        for _ in range(options.repeats):
            for program in found:
                program.run()
        where, first = environment(options.device), found[0].lines
        ours = {program.dtype: program.median for program in found if program.provider == "ours"}
        rows = [make_row(options, text, program, first, ours, where) for program in found]
    for row in rows:
        if abs(row.bleu - rows[0].bleu) > BLEU_TOLERANCE:
            raise RuntimeError(f"{row.provider} in {row.dtype} has BLEU {row.bleu:.2f}: {rows[0]}")
    return rows


def make_row(
    options: argparse.Namespace,
    text: texts.Text,
    program: Program,
    first: Sequence[str],
    ours: Mapping[str, float],
    where: Environment,
) -> TranslateRow:
    """first: lines of the first program. ours: our seconds in each type."""
    lines = program.lines
    if len(lines) != len(text.sources):
        raise RuntimeError(f"{program.provider} wrote {len(lines)} of {len(text.sources)} lines")
    tokens = sum(forced.limits(options.model, text.references if options.shape else lines))
    p20, p50, p80 = (percentile(program.seconds, percent) for percent in (20, 50, 80))
    return TranslateRow(
        model=options.shape or options.model.name,
        text=" ".join(f"{prefix.parent.name}/{prefix.name}" for prefix in options.text),
        lines=len(lines),
        provider=program.provider,
        version=versions(program.provider),
        dtype=program.dtype,
        beams=options.num_beams,
        batch_tokens=program.batch_tokens,
        threads=options.threads,
        repeats=len(program.seconds),
        p20=p20,
        p50=p50,
        p80=p80,
        unit="s",
        ratio=p50 / ours.get(program.dtype, math.nan),
        sentences=len(lines) / p50,
        tokens=tokens / p50,
        memory=program.memory / 1e6,
        busy=percentile(program.busy, 50),
        bleu=sacrebleu.corpus_bleu(lines, [text.references]).score,
        equal=sum(map(str.__eq__, lines, first)),
        **asdict(where),
    )


def versions(provider: str) -> str:
    """ "transformers 5.23.0, torch 2.13.0"."""
    _, libraries = MODULES[provider]
    found = {name: importlib.import_module(name).__version__ for name in libraries}
    return ", ".join(f"{name} {version}" for name, version in found.items())


def console(row: TranslateRow) -> str:
    return (
        f"{row.provider:12} {row.dtype:8} {row.p50:6.2f} s [{row.p20:.2f} {row.p80:.2f}] | "
        f"{row.ratio:5.2f} times ours | "
        f"{row.sentences:6.0f} sentences/s | {row.tokens:7.0f} tokens/s | {row.memory:5.0f} MB | "
        f"busy {row.busy:4.0%} | batches of {row.batch_tokens} | "
        f"BLEU {row.bleu:.2f} | {row.equal} of {row.lines} as the first"
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.translate", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="of Marian's architecture")
    texts.add_arguments(parser, lines=10000)
    parser.add_argument(
        "--shape",
        choices=[name for name, workload in WORKLOADS.items() if workload.has_encoder],
        help="random weights of this shape in place of the model's, each translation forced to "
        "the length of its reference",
    )
    parser.add_argument("--device", choices=DTYPES, default="cpu")
    parser.add_argument("--providers", nargs="+", choices=MODULES, default=list(MODULES))
    parser.add_argument(
        "--dtype", nargs="+", help=f"default: {DTYPES}; who has no such type is left out"
    )
    parser.add_argument("--num-beams", type=int, default=4)
    parser.add_argument(
        "--batch-tokens", type=int, default=4096, help=f"but for {', '.join(BATCH_TOKENS)}"
    )
    parser.add_argument("--threads", type=int, help="of the CPU (default: 2, with a GPU any)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a CSV file for the rows")
    options = parser.parse_args(arguments)
    if options.shape and "huggingface" in options.providers:
        parser.error("transformers has no lengths by row: leave it out with --shape")
    options.dtype = options.dtype or DTYPES[options.device]
    if options.threads is None:
        options.threads = 2 if options.device == "cpu" else 0
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.threads:
        pin_to_cores(options.threads)
    rows = measure(options)
    print("\n".join(map(console, rows)))
    if options.output:
        write_rows(rows, options.output)


if __name__ == "__main__":
    main()
