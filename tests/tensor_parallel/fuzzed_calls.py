"""The tokens of one process, from models that several share out, in hundreds of calls.

    torchrun --nproc-per-node 2 -m tests.tensor_parallel.fuzzed_calls --device cuda
    torchrun --nproc-per-node 4 -m tests.tensor_parallel.fuzzed_calls --device cuda

The calls are those of tests/serving/lives.py: a sentence, and options of all kinds that share
steps. All are submitted at once to engines whose models the ranks share out, and then to engines of
whole models, on rank 0 alone. Steps of an engine serve whatever is there, so nearly none is
captured for one call, as steps of generate() are, of which tests/fuzz/tensor_parallel.py makes as
many. Where tokens differ, it is a tie if one process of a CPU, with noise of 1e-5 on its scores,
finds those of the split model, too.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import decoding
from tests.fuzz.tensor_parallel import RANK, RANKS, split
from tests.serving.engines import outcome, said, tight_engine
from tests.serving.lives import ENGINES, DrawnLife
from tests.support.comparison import is_tie, rows_of
from tests.support.random_models import ours

WAIT = 120.0  # seconds, for a result

Call = tuple[str, dict[str, Any]]  # a model, and the arguments of generate()
Engines = dict[str, decoding.Engine]


def random_calls(seed: int) -> Iterator[Call]:
    for number in count():
        draw = DrawnLife(seed, number, cancelled=0.0)
        yield draw.model, draw.given()


def submitted(engines: Engines, call: Call) -> Any:
    """A request, or why it is refused."""
    model, given = call
    return outcome(lambda: engines[model].submit(**given))


def result(request: Any) -> Any:
    return request if isinstance(request, Exception) else outcome(lambda: request.result(WAIT))


def verdict(call: Call, found: Any, expected: Any) -> str:
    """ "same", "refused", "tie" or "different"."""
    errors = [said(each) for each in (found, expected) if isinstance(each, Exception)]
    if errors:
        return "refused" if len(errors) == 2 and errors[0] == errors[1] else "different"
    if rows_of(found) == rows_of(expected):
        return "same"
    return "tie" if may_be_either(call, found) else "different"


def may_be_either(call: Call, found: Any) -> bool:
    """Whether noise gives each row of what was found."""
    model, given = call
    return is_tie(lambda **more: ours(model).generate(**given, **more), found)


def compared(
    split_engines: Engines, device: str, seed: int, calls: int
) -> tuple[Counter[str], list[str]]:
    """How many calls came to which verdict, of which so many have tokens, and the different ones in
    words. Of rank 0."""
    begun = list[tuple[Call, Any]]()
    for call in random_calls(seed):
        request = submitted(split_engines, call)
        if isinstance(request, NotImplementedError):  # it would step alone
            continue
        begun.append((call, request))
        calls -= not isinstance(request, Exception)
        if calls == 0:
            break
    found = [result(request) for _, request in begun]
    whole = {name: tight_engine(ours(name, device), *sizes) for name, sizes in ENGINES.items()}
    others = [submitted(whole, call) for call, _ in begun]
    counts, different = Counter[str](), list[str]()
    for (call, _), mine, other in zip(begun, found, others, strict=True):
        counts[verdict(call, mine, expected := result(other))] += 1
        if counts["different"] > len(different):
            shown = [getattr(each, "sequences", each) for each in (mine, expected)]
            different.append(f"{call}: {shown[0]}, not {shown[1]}")
    for engine in whole.values():
        engine.close()
    return counts, different


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    start = time.perf_counter()
    engines = {name: tight_engine(split(name, args.device), *ENGINES[name]) for name in ENGINES}
    counts, different = Counter[str](), list[str]()
    if RANK == 0:
        device = "cuda:0" if args.device == "cuda" else args.device
        counts, different = compared(engines, device, args.seed, args.calls)
    for engine in engines.values():
        engine.close()
    if RANK == 0:
        print("".join(f"{each}\n" for each in different), end="")
        seconds = time.perf_counter() - start
        calls = counts.total() - counts["refused"]
        print(
            f"{calls} calls compared on {RANKS} ranks, {counts['different']} differ, "
            f"{counts['tie']} tie; {counts['refused']} were refused by both; "
            f"{seconds:.0f} s on {args.device}, seed {args.seed}"
        )
    sys.exit(counts["different"] > 0)


if __name__ == "__main__":
    main()
