"""transformers' pipeline with this library's generate(): the same text, sooner.

    python -m examples.fast_pipeline --model DIR "Once upon a time"

DIR is a text generation model in Hugging Face's format. It needs `pip install transformers`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from transformers import pipeline

import decoding


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("prompt", nargs="?", default="Once upon a time")
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, default=32, help="new ones, at most")
    args = parser.parse_args(arguments)

    generator = pipeline("text-generation", model=args.model)
    options = {"max_new_tokens": args.tokens, "num_beams": 4, "do_sample": False}
    theirs = timed("transformers", generator, args.prompt, options)
    with decoding.accelerate(generator.model):  # until the end of the block
        ours = timed("decoding", generator, args.prompt, options)
    print(f"{ours}\nthe same text: {ours == theirs}")


def timed(name: str, generator: Any, prompt: str, options: dict[str, Any]) -> str:
    """What a pipeline writes; prints the seconds of a second call."""
    generator(prompt, **options)
    start = time.perf_counter()
    [found] = generator(prompt, **options)
    print(f"{name}: {time.perf_counter() - start:.3f} s")
    return str(found["generated_text"])


if __name__ == "__main__":
    main()
