"""Continues all lines of a file in large batches, and writes JSON lines with their scores.

    python -m examples.batch_corpus INPUT OUTPUT

Each output line has the prompt, its continuation, and the mean log-probability of its tokens.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import decoding

STORIES = Path(__file__).parent.parent / "tests/data/stories260K"
CHUNK = 1024  # lines of one call


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", type=Path, default=STORIES)
    parser.add_argument("--tokens", type=int, default=32, help="new ones of each line")
    args = parser.parse_args(arguments)

    model = decoding.load(args.model)
    with (
        args.input.open(encoding="utf-8") as source,
        args.output.open("w", encoding="utf-8") as target,
    ):
        prompts = (line.strip() for line in source if line.strip())
        while chunk := list(islice(prompts, CHUNK)):
            for found in complete(model, chunk, args.tokens):
                target.write(json.dumps(found, ensure_ascii=False) + "\n")


def complete(model: decoding.Model, prompts: list[str], tokens: int) -> Iterator[dict[str, object]]:
    """A record for each prompt."""
    ids = [model.tokenizer.encode(prompt) for prompt in prompts]
    # Rows may have any lengths: generate() sorts them, splits them into batches that fit into the
    # caches or the GPU, and returns them in their order, prompts padded on the left.
    found = model.generate(ids, num_beams=4, max_new_tokens=tokens)
    width = max(map(len, ids))
    continuations = [until_end(model, row[width:]) for row in found.tolist()]
    rows = [prompt + new for prompt, new in zip(ids, continuations, strict=True)]
    # Teacher forcing: labels of -100 do not count, so that only new tokens are scored.
    labels = [[-100] * len(prompt) + new for prompt, new in zip(ids, continuations, strict=True)]
    scores = model.score(rows, labels).means.tolist()
    for prompt, new, score in zip(prompts, continuations, scores, strict=True):
        yield {
            "prompt": prompt,
            "text": model.tokenizer.decode(new, skip_special_tokens=True),
            "score": round(score, 4),
        }


def until_end(model: decoding.Model, tokens: list[int]) -> list[int]:
    """The tokens of a row as far as its first end token; padding follows it."""
    ends = model.generation_config["eos_token_id"]
    ends = ends if isinstance(ends, list) else [ends]
    end = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: end + 1]


if __name__ == "__main__":
    main()
