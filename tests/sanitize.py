"""Short generations of each family in each type, for tests/sanitize.sh.

python -m tests.sanitize [--device cuda] [tokens ...]: with sources of so many tokens each.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

import decoding
from tests.support.families import FAMILIES, encoder
from tests.support.random_models import load

SEARCHES: list[dict[str, Any]] = [
    {"num_beams": 4},
    {"num_beams": 1},
    {"do_sample": True, "top_k": 20, "top_p": 0.9, "num_return_sequences": 2},
]
# One of each kind of attention, with heads as wide as real ones: shared, in windows, with soft
# caps, with norms of heads, rotary positions in both layouts, T5's table, ALiBi.
ATTENTIONS: dict[str, dict[str, Any]] = {
    "mistral": {"hidden_size": 256, "head_dim": 64, "vocab_size": 3000},
    "gemma2": {"hidden_size": 256, "head_dim": 256, "vocab_size": 3000},
    "qwen3": {"hidden_size": 256, "head_dim": 128, "vocab_size": 3000},
    "gptj": {"n_embd": 256, "rotary_dim": 32, "vocab_size": 3000},
    "t5": {"d_model": 256, "d_kv": 64, "vocab_size": 3000},
    "bloom": {"hidden_size": 256, "vocab_size": 3000},
}


def models(**options: Any) -> Iterator[tuple[str, decoding.Model]]:
    for name in ("marian", "gpt2", "marian-large", "gpt2-large"):
        yield name, load(name, **options)
    for name, sizes in ATTENTIONS.items():
        family = replace(FAMILIES[name], config=FAMILIES[name].config | sizes)
        yield name, decoding.load(family.model(end=2), **options)


def main(lengths: list[int], device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype in ("float32", "float16" if device == "cuda" else "bfloat16"):
        for name, model in models(device=device, dtype=dtype):
            for length in lengths:
                ids = torch.randint(12, 50, (3, length), generator=generator)
                for options in SEARCHES:
                    model.generate(ids, max_new_tokens=6, **options)
            print(f"{name} {dtype} done", flush=True)
        # Not with a pooler, which is torch's and cuBLAS's.
        encode = decoding.load(encoder("bert-masked"), device=device, dtype=dtype).encode
        for length in lengths:
            encode(torch.randint(12, 50, (3, length), generator=generator))
        print(f"bert {dtype} done", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize", description=__doc__)
    parser.add_argument("lengths", nargs="*", type=int, metavar="TOKENS")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    main(arguments.lengths, arguments.device)
