"""Translation quality of our engine and of Hugging Face on the same weights.

python -m benchmarks.quality --model models/demo --data DIR [--device cuda --dtype float32 float16]
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
from collections.abc import Callable
from pathlib import Path

import sacrebleu
import torch
import transformers

import decoding

Translate = Callable[[list[str]], list[str]]


def read_lines(path: Path) -> list[str]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def ours(options: argparse.Namespace, dtype: str) -> Translate:
    model = decoding.load(options.model, options.device, dtype, threads=options.threads)
    return lambda texts: model.translate(texts, num_beams=options.num_beams)


def hugging_face(options: argparse.Namespace, dtype: str) -> Translate:
    """32 sentences of similar length at a time."""
    torch.set_num_threads(options.threads)
    family, tokens = transformers.MarianMTModel, transformers.MarianTokenizer
    model = family.from_pretrained(options.model, dtype=getattr(torch, dtype)).eval()
    model = model.to(options.device)
    tokenizer = tokens.from_pretrained(options.model)

    def translate(texts: list[str]) -> list[str]:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        found = [""] * len(texts)
        for begin in range(0, len(order), 32):
            rows = order[begin : begin + 32]
            batch = tokenizer([texts[i] for i in rows], return_tensors="pt", padding=True)
            with torch.inference_mode():
                ids = model.generate(**batch.to(options.device), num_beams=options.num_beams)
            for i, text in zip(
                rows, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True
            ):
                found[i] = text
        return found

    return translate


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="holds test.de.gz and test.en.gz")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", nargs="+", default=["float32"], help="of a GPU, one or more")
    parser.add_argument("--num-beams", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    sources, references = (read_lines(options.data / f"test.{side}.gz") for side in ("de", "en"))
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    exact: list[str] | None = None
    for dtype in options.dtype:
        for name, provider in (("decoding", ours), ("transformers", hugging_face)):
            translate = provider(options, dtype)
            translate(sources[:64])
            start = time.perf_counter()
            found = translate(sources)
            speed = len(sources) / (time.perf_counter() - start)
            scores = [metric.corpus_score(found, [references]).score for metric in (bleu, chrf)]
            exact = exact or found
            same = sum(map(str.__eq__, found, exact))
            print(
                f"{name:14} {dtype:9} BLEU {scores[0]:.2f}  chrF {scores[1]:.2f}  "
                f"{speed:.0f} sentences/s, {same} of {len(sources)} as the first",
                flush=True,
            )
            for i, (a, b) in enumerate(zip(found, exact, strict=True)):
                if a != b and dtype == "float32":
                    print(f"line {i + 1} differs:\n  {a}\n  {b}", file=sys.stderr)
    print(f"signatures: {bleu.get_signature()} {chrf.get_signature()}")


if __name__ == "__main__":
    main()
