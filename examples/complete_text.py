"""Continues a text with a decoder-only model, and prints it as it is generated.

    python -m examples.complete_text "Once upon a time"

The default model, of 260 thousand weights, tells children's stories.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import decoding

STORIES = Path(__file__).parent.parent / "tests/data/stories260K"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("prompt", nargs="?", default="Once upon a time")
    parser.add_argument("--model", type=Path, default=STORIES)
    parser.add_argument("--tokens", type=int, default=200, help="new ones, at most")
    parser.add_argument("--seed", type=int, help="repeats a sample")
    args = parser.parse_args(arguments)

    model = decoding.load(args.model)
    print(args.prompt, end="", flush=True)
    # Options have the names and meanings of transformers' generate().
    for piece in model.stream_text(
        args.prompt,
        do_sample=True,
        temperature=0.8,
        top_p=0.9,
        max_new_tokens=args.tokens,
        seed=args.seed,
    ):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
