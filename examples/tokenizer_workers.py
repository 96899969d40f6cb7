"""A DataLoader whose workers make token ids while the model generates.

    python -m examples.tokenizer_workers INPUT OUTPUT

Workers have the tokenizer alone; the model stays in the process that loops.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

import decoding

DEMO = Path(__file__).parent.parent / "models/demo"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--batch", type=int, default=32, help="lines in one call of the model")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args(arguments)

    model = decoding.load(args.model)
    tokenizer = model.tokenizer
    with args.input.open(encoding="utf-8", newline="\n") as source:  # a lone "\r" ends no line
        lines: Any = [line.rstrip("\r\n") for line in source]
    batches = DataLoader(
        lines,
        batch_size=args.batch,
        collate_fn=partial(tokenizer, padding=True, truncation=True, return_tensors="pt"),
        num_workers=args.workers,
        # A forked process has locks of its parent's threads, which it never gets.
        multiprocessing_context="spawn" if args.workers else None,
    )
    with args.output.open("w", encoding="utf-8") as target:
        for batch in batches:
            rows = model.generate(**batch, num_beams=4)
            for text in tokenizer.batch_decode(rows, skip_special_tokens=True):
                target.write(text + "\n")
    print(f"{len(lines)} lines written to {args.output}")


if __name__ == "__main__":
    main()
