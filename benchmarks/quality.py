"""Translation quality of our engine and of Hugging Face on the same weights.

python -m benchmarks.quality --model models/demo --source test.de.gz --reference test.en.gz
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


def read_lines(path: Path) -> list[str]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def ours(model: Path, threads: int, beams: int) -> Callable[[list[str]], list[str]]:
    loaded = decoding.load(model, threads=threads)
    return lambda texts: loaded.translate(texts, num_beams=beams)


def hugging_face(model: Path, threads: int, beams: int) -> Callable[[list[str]], list[str]]:
    """float32, 32 sentences of similar length at a time."""
    torch.set_num_threads(threads)
    loaded = transformers.MarianMTModel.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer = transformers.MarianTokenizer.from_pretrained(model)

    def translate(texts: list[str]) -> list[str]:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        found = [""] * len(texts)
        for begin in range(0, len(order), 32):
            rows = order[begin : begin + 32]
            batch = tokenizer([texts[i] for i in rows], return_tensors="pt", padding=True)
            with torch.inference_mode():
                ids = loaded.generate(**batch, num_beams=beams)
            for i, text in zip(
                rows, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True
            ):
                found[i] = text
        return found

    return translate


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True, help="a line a sentence, or .gz")
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--num-beams", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    sources, references = read_lines(args.source), read_lines(args.reference)
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    outputs = []
    for name, provider in (("decoding", ours), ("transformers", hugging_face)):
        translate = provider(args.model, args.threads, args.num_beams)
        start = time.perf_counter()
        outputs.append(translate(sources))
        seconds = time.perf_counter() - start
        scores = [metric.corpus_score(outputs[-1], [references]).score for metric in (bleu, chrf)]
        print(
            f"{name:14} BLEU {scores[0]:.2f}  chrF {scores[1]:.2f}  "
            f"{len(sources) / seconds:.0f} sentences/s",
            flush=True,
        )
    same = sum(a == b for a, b in zip(*outputs, strict=True))
    print(f"identical: {same} of {len(sources)}")
    print(f"signatures: {bleu.get_signature()} {chrf.get_signature()}")
    for i, (a, b) in enumerate(zip(*outputs, strict=True)):
        if a != b:
            print(f"line {i + 1} differs:\n  {a}\n  {b}", file=sys.stderr)


if __name__ == "__main__":
    main()
