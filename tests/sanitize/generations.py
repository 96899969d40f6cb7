"""Short generations of some models in one type, for compute_sanitizer.py.

python -m tests.sanitize.generations NAME,NAME,... DTYPE [--device cuda] TOKENS ...: with sources of
so many tokens each.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import torch

import decoding
from tests.support.families import ENCODERS, FAMILIES, Family, encoder
from tests.support.random_models import LARGE, load

SEARCHES: list[dict[str, Any]] = [
    {"num_beams": 4},
    {"num_beams": 1},
    {"do_sample": True, "top_k": 20, "top_p": 0.9, "num_return_sequences": 2},
]
# One of each kind of attention, with heads as wide as real ones: shared, in windows, with soft
# caps, with norms of heads, rotary positions in both layouts, T5's table, ALiBi.
WIDE: dict[str, dict[str, Any]] = {
    "mistral": {"hidden_size": 256, "head_dim": 64, "vocab_size": 3000},
    "gemma2": {"hidden_size": 256, "head_dim": 256, "vocab_size": 3000},
    "qwen3": {"hidden_size": 256, "head_dim": 128, "vocab_size": 3000},
    "gptj": {"n_embd": 256, "rotary_dim": 32, "vocab_size": 3000},
    "t5": {"d_model": 256, "d_kv": 64, "vocab_size": 3000},
    "bloom": {"hidden_size": 256, "vocab_size": 3000},
}
RANDOM = ("marian", "gpt2", *LARGE)
# Not encoders with a pooler, which is torch's and cuBLAS's.
MASKED = [name for name in ENCODERS if name.endswith("-masked")]
NAMES = (*RANDOM, *FAMILIES, *(f"{name}-wide" for name in WIDE), *MASKED)


def load_model(name: str, **options: Any) -> decoding.Model:
    if name in RANDOM:
        return load(name, **options)
    if name in ENCODERS:
        return decoding.load(encoder(name), **options)
    family: Family = FAMILIES[name.removesuffix("-wide")]
    if name.endswith("-wide"):
        family = replace(family, config=family.config | WIDE[name.removesuffix("-wide")])
    return decoding.load(family.model(end=2), **options)


def main(name: str, dtype: str, lengths: list[int], device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    model = load_model(name, device=device, dtype=dtype)
    for length in lengths:
        ids = torch.randint(12, 50, (3, length), generator=generator)
        if model.is_encoder:
            model.encode(ids)
            continue
        for options in SEARCHES:
            model.generate(ids, max_new_tokens=6, **options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize.generations")
    parser.add_argument("names", metavar="NAME,NAME,...")
    parser.add_argument("dtype")
    parser.add_argument("lengths", nargs="+", type=int, metavar="TOKENS")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    for name in arguments.names.split(","):
        main(name, arguments.dtype, arguments.lengths, arguments.device)
