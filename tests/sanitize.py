"""Short generations of each family in each type, for tests/sanitize.sh.

python -m tests.sanitize [tokens ...]: with sources of so many tokens each.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from tests.random_models import load

SEARCHES: list[dict[str, Any]] = [
    {"num_beams": 4},
    {"num_beams": 1},
    {"do_sample": True, "top_k": 20, "top_p": 0.9, "num_return_sequences": 2},
]


def main(lengths: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    for name in ("marian", "gpt2", "marian-large", "gpt2-large"):
        for dtype in ("float32", "float16"):
            model = load(name, "cuda", dtype=dtype)
            for length in lengths:
                ids = torch.randint(12, 50, (3, length), generator=generator)
                for options in SEARCHES:
                    model.generate(ids, max_new_tokens=6, **options)
            print(f"{name} {dtype} done", flush=True)


if __name__ == "__main__":
    main([int(length) for length in sys.argv[1:]])
