"""Translates a corpus with `datasets`, and measures the translations with sacrebleu.

    python -m examples.evaluate_corpus SOURCE REFERENCE

Both are files with a sentence in each line. It needs `pip install datasets sacrebleu`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import datasets  # pyright: ignore[reportMissingTypeStubs]
import sacrebleu

import decoding

DEMO = Path(__file__).parent.parent / "models/demo"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--beams", type=int, default=4)
    args = parser.parse_args(arguments)

    columns = {name: lines(getattr(args, name)) for name in ("source", "reference")}
    corpus = datasets.Dataset.from_dict(columns)
    with decoding.load(args.model) as model:

        def translated(batch: dict[str, list[str]]) -> dict[str, list[str]]:
            return {"translation": model.translate(batch["source"], num_beams=args.beams)}

        # One process: the engine uses all cores itself. new_fingerprint names the result, which
        # datasets would otherwise derive from the model.
        corpus = corpus.map(translated, batched=True, new_fingerprint="translated")
    for metric in (sacrebleu.BLEU(), sacrebleu.CHRF()):
        print(metric.corpus_score(corpus["translation"][:], [corpus["reference"][:]]))


def lines(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="\n") as file:  # a lone "\r" ends no line
        return [line.rstrip("\r\n") for line in file]


if __name__ == "__main__":
    main()
