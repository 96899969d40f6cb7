"""The same answers from a model that two or more processes share out, over the grammar of options.

    torchrun --nproc-per-node 2 -m tests.fuzz.tensor_parallel --cases 500 --seed 1
    torchrun --nproc-per-node 2 -m tests.fuzz.tensor_parallel --device cuda --seconds 60 --first 120

The cases are those of generate.py, from the number `--first` to `--cases`, or as many as begin
within `--seconds`; what is said at the end tells where to go on. All ranks must have the same bits,
and the tokens of the whole model; where these differ, the answer is held against transformers', as
there. With `--device cuda` each rank has a GPU of its own, with `--device cuda:0` they share one.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import os
import sys
import time
import traceback
import warnings
from functools import cache
from typing import Any

import torch.distributed as dist

import decoding
from tests.fuzz.generate import compare, run_ours
from tests.support.grammar import Case, Draw
from tests.support.random_models import load, ours

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SAY = 25  # cases between two words on how far it is
MOST = 600  # characters of what is said about a case


@cache
def split(name: str, device: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these models are too small
        return load(name, device, threads=1, tensor_parallel=RANKS)


def bits(found: Any) -> str:
    parts = [found.sequences, *found.scores, *found.logits]
    return hashlib.sha256(b"".join(part.cpu().numpy().tobytes() for part in parts)).hexdigest()


def verdict(case: Case, device: str) -> str:
    """ "same" or "tie"; raises AssertionError for anything else."""
    mine = run_ours(case, split(case.model, device))
    whole = run_ours(case, ours(case.model, f"cuda:{RANK}" if device == "cuda" else device))
    found: list[Any] = [None] * RANKS
    dist.all_gather_object(found, bits(mine))
    assert len(set(found)) == 1, f"the ranks have other bits: {mine.sequences.tolist()}"
    if mine.sequences.tolist() == whole.sequences.tolist():
        return "same"
    return compare(case, mine)


def is_over(end: float) -> bool:
    """Whether rank 0's clock has come so far."""
    found = [time.monotonic() >= end]
    dist.broadcast_object_list(found, 0)
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    counts: collections.Counter[str] = collections.Counter()
    end, number = time.monotonic() + args.seconds, args.first
    while number < args.cases and not is_over(end):
        case = Draw(args.seed, number).case()
        try:
            counts[verdict(case, args.device)] += 1
        except (AssertionError, decoding.Error) as error:
            counts["different"] += 1
            said = f"{type(error).__name__}: {str(error)[:MOST]}"
            print(f"rank {RANK}, case {number}: {said}\n{str(case)[:MOST]}", flush=True)
        except Exception:  # before torchrun ends the others, and says no more than that
            traceback.print_exc()
            sys.stderr.flush()
            raise
        number += 1
        if RANK == 0 and (number - args.first) % SAY == 0:
            print(dict(counts), f"before case {number}", flush=True)
    if RANK == 0:
        rest = f", go on with --first {number}" * (number < args.cases)
        print(dict(counts), f"seed {args.seed}, {RANKS} ranks{rest}", flush=True)
    sys.exit(counts["different"] > 0)


if __name__ == "__main__":
    main()
