"""Whole programs that translate a file: `decoding translate` and CTranslate2 on the same weights.

Each run is a process from its start to its end: imports, loading, tokenisation, translation,
writing. See benchmarks/README.md for what a row means.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import ctranslate2
import sacrebleu
import sentencepiece

import decoding
from benchmarks.cases import texts
from benchmarks.report.rows import write_rows
from decoding.compare.engines.conversion import convert
from decoding.compare.environment import Environment, environment
from decoding.compare.memory import resident
from decoding.compare.timing import percentile, pin_to_cores

PROGRAMS = {"ours": ("float32", "bfloat16", "int8"), "ctranslate2": ("float32", "int8")}
POLL = 0.02  # seconds between two looks at a process


@dataclass(frozen=True)
class TranslateRow:
    """One program on one file. p20, p50, p80: seconds of a whole process, over the repeats.

    sentences, tokens: in a second, of the median; tokens are those of the translations with their
    ends. memory: peak of the process's resident memory, MB. equal: lines with the very translation
    that the first program gives, ours in float32. bleu: against the references.
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
    sentences: float
    tokens: float
    memory: float
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
    command: list[str]
    output: Path
    seconds: list[float]
    memory: int = 0

    def run(self) -> None:
        begin = time.perf_counter()
        process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        while process.poll() is None:
            self.memory = max(self.memory, resident("VmHWM", process.pid))
            time.sleep(POLL)
        if process.returncode != 0:
            assert process.stderr is not None
            raise RuntimeError(f"{' '.join(self.command)} failed:\n{process.stderr.read()}")
        self.seconds.append(time.perf_counter() - begin)

    @property
    def lines(self) -> list[str]:
        return self.output.read_text(encoding="utf-8").split("\n")[:-1]


def programs(options: argparse.Namespace, source: Path, folder: Path) -> Iterator[Program]:
    for provider in options.providers:
        for dtype in PROGRAMS[provider]:
            if dtype not in options.dtype:
                continue
            module, model = ["decoding", "translate"], options.model
            more = []
            if provider == "ctranslate2":
                module, model = ["benchmarks.translate_ctranslate2"], folder / f"model-{dtype}"
                more = ["--pieces", str(options.model)]
                convert(options.model, model, dtype, numbered=False)
            output = folder / f"{provider}-{dtype}.txt"
            command = [sys.executable, "-m", *module, "--model", str(model), *more]
            command += ["--input", str(source), "--output", str(output), "--dtype", dtype]
            command += ["--threads", str(options.threads), "--num-beams", str(options.num_beams)]
            command += ["--batch-tokens", str(options.batch_tokens)]
            yield Program(provider, dtype, command, output, [])


def measure(options: argparse.Namespace) -> list[TranslateRow]:
    """All programs in turns, so that a machine that slows down does so for each."""
    text = texts.joined(texts.read(options.text, options.lines))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.txt"
        source.write_text("".join(line + "\n" for line in text.sources), encoding="utf-8")
        found = list(programs(options, source, Path(folder)))
        for _ in range(options.repeats):
            for program in found:
                program.run()
        where, first = environment(), found[0].lines
        return [make_row(options, text, program, first, where) for program in found]


def make_row(
    options: argparse.Namespace,
    text: texts.Text,
    program: Program,
    first: Sequence[str],
    where: Environment,
) -> TranslateRow:
    lines = program.lines
    if len(lines) != len(text.sources):
        raise RuntimeError(f"{program.provider} wrote {len(lines)} of {len(text.sources)} lines")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(options.model / "target.spm"))
    tokens = sum(len(row) + 1 for row in pieces.encode(lines))
    p20, p50, p80 = (percentile(program.seconds, percent) for percent in (20, 50, 80))
    library = {"ours": decoding, "ctranslate2": ctranslate2}[program.provider]
    return TranslateRow(
        model=options.model.name,
        text=" ".join(f"{prefix.parent.name}/{prefix.name}" for prefix in options.text),
        lines=len(lines),
        provider=program.provider,
        version=f"{library.__name__} {library.__version__}",
        dtype=program.dtype,
        beams=options.num_beams,
        batch_tokens=options.batch_tokens,
        threads=options.threads,
        repeats=len(program.seconds),
        p20=p20,
        p50=p50,
        p80=p80,
        unit="s",
        sentences=len(lines) / p50,
        tokens=tokens / p50,
        memory=program.memory / 1e6,
        bleu=sacrebleu.corpus_bleu(lines, [text.references]).score,
        equal=sum(map(str.__eq__, lines, first)),
        **asdict(where),
    )


def console(row: TranslateRow) -> str:
    return (
        f"{row.provider:12} {row.dtype:8} {row.p50:6.2f} s [{row.p20:.2f} {row.p80:.2f}] | "
        f"{row.sentences:6.0f} sentences/s | {row.tokens:7.0f} tokens/s | {row.memory:5.0f} MB | "
        f"BLEU {row.bleu:.2f} | {row.equal} of {row.lines} as the first"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.translate", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="of Marian's architecture")
    texts.add_arguments(parser, lines=10000)
    parser.add_argument("--providers", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16", "int8"])
    parser.add_argument("--num-beams", type=int, default=4)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a CSV file for the rows")
    options = parser.parse_args(arguments)
    pin_to_cores(options.threads)
    rows = measure(options)
    print("\n".join(map(console, rows)))
    if options.output:
        write_rows(rows, options.output)


if __name__ == "__main__":
    main()
