"""Translation quality in each type of weight, on parallel text.

The first provider in the first type is what the others are compared with, line by line.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sacrebleu
import torch
import transformers

import decoding
from benchmarks.cases import texts
from benchmarks.report.rows import write_rows
from decoding.compare.environment import environment

Translate = Callable[[list[str]], list[str]]


@dataclass(frozen=True)
class QualityRow:
    """One provider in one type on one text. kv_cache: of ours, keys and values. identical: the
    share of lines that are the very translations of the first. sentences: in a second, of all texts
    together."""

    model: str
    text: str
    lines: int
    provider: str
    version: str
    dtype: str
    kv_cache: str
    beams: int
    bleu: float
    chrf: float
    identical: float
    sentences: float
    signatures: str
    device: str
    flags: str
    commit: str
    date: str


def ours(options: argparse.Namespace, dtype: str, kv_cache: str, **given: Any) -> Translate:
    threads = options.threads if options.device == "cpu" else None
    model = decoding.load(
        options.model, options.device, dtype, threads=threads, kv_cache_dtype=kv_cache
    )
    return lambda lines: model.translate(lines, num_beams=options.num_beams, **given)


def shortlisted(options: argparse.Namespace, dtype: str, kv_cache: str) -> Translate:
    """Ours with a shortlist."""
    return ours(options, dtype, kv_cache, shortlist=options.shortlist)


def hugging_face(options: argparse.Namespace, dtype: str, _: str) -> Translate:
    """32 sentences of similar length at a time."""
    torch.set_num_threads(options.threads)
    family, tokens = transformers.MarianMTModel, transformers.MarianTokenizer
    model = family.from_pretrained(options.model, dtype=getattr(torch, dtype)).eval()
    model = model.to(options.device)
    tokenizer = tokens.from_pretrained(options.model)

    def translate(lines: list[str]) -> list[str]:
        order = sorted(range(len(lines)), key=lambda i: -len(lines[i]))
        found = [""] * len(lines)
        for begin in range(0, len(order), 32):
            rows = order[begin : begin + 32]
            batch = tokenizer([lines[i] for i in rows], return_tensors="pt", padding=True)
            with torch.inference_mode():
                ids = model.generate(**batch.to(options.device), num_beams=options.num_beams)
            for i, text in zip(
                rows, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True
            ):
                found[i] = text
        return found

    return translate


PROVIDERS: dict[str, tuple[Callable[[argparse.Namespace, str, str], Translate], str]] = {
    "ours": (ours, f"decoding {decoding.__version__}"),
    "shortlist": (shortlisted, f"decoding {decoding.__version__}"),
    "huggingface": (hugging_face, f"transformers {transformers.__version__}"),
}


@dataclass(frozen=True)
class Setting:
    provider: str
    dtype: str
    kv_cache: str


def measure(options: argparse.Namespace) -> Iterator[list[QualityRow]]:
    """After each setting, all rows so far."""
    parts = texts.read(options.text, options.lines)
    whole = texts.joined(parts)
    first: list[str] | None = None
    rows: list[QualityRow] = []
    for kv_cache, dtype, provider in itertools.product(
        options.kv_cache_dtype, options.dtype, options.providers
    ):
        setting = Setting(provider, dtype, kv_cache)
        translate = PROVIDERS[provider][0](options, dtype, kv_cache)
        translate(whole.sources[:64])
        begin = time.perf_counter()
        found = translate(whole.sources)
        speed = len(found) / (time.perf_counter() - begin)
        first = first or found
        if dtype == "float32" and kv_cache in ("auto", "float32"):
            show_differences(found, first)
        start = 0
        for text in parts:
            here = slice(start, start + len(text.sources))
            rows.append(make_row(options, setting, text, found[here], first[here], speed))
            print(console(rows[-1]), flush=True)
            start = here.stop
        rows.append(make_row(options, setting, whole, found, first, speed))
        print(console(rows[-1]), flush=True)
        yield rows


def show_differences(found: Sequence[str], first: Sequence[str]) -> None:
    for i, (a, b) in enumerate(zip(found, first, strict=True)):
        if a != b:
            print(f"line {i + 1} differs:\n  {a}\n  {b}", file=sys.stderr)


def make_row(
    options: argparse.Namespace,
    setting: Setting,
    text: texts.Text,
    found: Sequence[str],
    first: Sequence[str],
    speed: float,
) -> QualityRow:
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    scores = [metric.corpus_score(found, [text.references]).score for metric in (bleu, chrf)]
    return QualityRow(
        model=options.model.name,
        text=text.name,
        lines=len(found),
        version=PROVIDERS[setting.provider][1],
        beams=options.num_beams,
        bleu=scores[0],
        chrf=scores[1],
        identical=sum(map(str.__eq__, found, first)) / len(found),
        sentences=speed,
        signatures=f"{bleu.get_signature()} {chrf.get_signature()}",
        **asdict(setting),
        **asdict(environment(options.device)),
    )


def console(row: QualityRow) -> str:
    return (
        f"{row.provider:11} {row.dtype:8} K/V {row.kv_cache:8} {row.text:28} "
        f"{row.lines:5} lines  BLEU {row.bleu:.2f}  "
        f"chrF {row.chrf:.2f}  {row.identical:.2%} as the first  {row.sentences:.0f} sentences/s"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="of Marian's architecture")
    texts.add_arguments(parser, lines=40000)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", nargs="+", default=["float32"], help="one or more")
    parser.add_argument(
        "--kv-cache-dtype", nargs="+", default=["auto"], help="of ours, each with each --dtype"
    )
    parser.add_argument("--providers", nargs="+", choices=PROVIDERS, default=["ours"])
    parser.add_argument("--shortlist", type=Path, help="the shortlist of that provider")
    parser.add_argument("--num-beams", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="a CSV file for the rows")
    options = parser.parse_args(arguments)
    if "shortlist" in options.providers and options.shortlist is None:
        parser.error("the provider shortlist needs --shortlist")
    for rows in measure(options):
        if options.output:
            write_rows(rows, options.output)


if __name__ == "__main__":
    main()
