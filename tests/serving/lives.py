"""Random lives of requests: whatever happens around one, it gives what generate() gives for it.

    python -m tests.serving.lives --seed 1 --requests 20000          the long run
    python -m tests.serving.lives --seed 1 --only 1234 1300          a part of its schedule again
    python -m tests.serving.lives --seed 1 --requests 100000 --cancelled 0.3     what leaks
    python -m tests.serving.lives --seed 1 --overcommit              engines that swap requests
    torchrun --nproc-per-node 2 -m tests.serving.lives --seed 1      of models that are split

Each life is a function of the seed and its number: a sentence, options of all kinds (searches,
beams, samples, processors, filters, several EOS, stop strings, no time, some that make it step
alone), a priority, and what happens to it: it is read as a stream or not, cancelled at once or
later, given a deadline, or sick, so that its logits are not finite. It is submitted once few enough
others run. Engines of several models, with so few rows and pages that requests wait and take over
each other's pages, run side by side. With --overcommit they are engines of other models, whose
requests are longer and swapped out and back.

What a request gives is compared with generate() of its sentence alone: tokens, scores and errors to
the bit on a CPU, tokens on a GPU, and where several processes share out the engines' models: rank 0
submits, and compares with engines of its own, which on a GPU capture no steps for one request, as
generate() does. A stream must add up to the result. At the end nothing may run, and every page must
be free.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
import warnings
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import decoding
from decoding.reference.beams import FILL_IN
from tests.serving.engines import (
    FULL,
    SICK,
    assert_idle,
    differences,
    outcome,
    sick,
    tight_engine,
)
from tests.support.grammar import Draw, tokenizer
from tests.support.random_models import load, ours, reference

# Rows and pages of each model's engine.
ENGINES = {
    "marian": (16, 40),
    "marian-two-tables": (12, 64),
    "gpt2": (24, 60),
    "gpt2-pad": (8, 24),
    "gpt2-wide": (16, 50),
}
OVERCOMMITTED = {"marian-long": (48, 44), "gpt2-long": (48, 44)}
SICK_MODEL = "gpt2-wide"  # whose vocabulary is large, so that others seldom generate the token SICK
CROWD = 40  # requests that run or wait at once, at most
BURST = 100  # with overcommit
RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


@dataclass(frozen=True)
class Life:
    """A request and what happens to it."""

    number: int
    model: str
    given: dict[str, Any]  # arguments of generate()
    crowd: int  # it is submitted once so few others run or wait
    how: dict[str, Any] = field(default_factory=dict)  # arguments of submit() alone
    # It is cancelled after so many pieces of its stream, or else after so many others that are
    # submitted; None: not at all.
    cancelled_after: int | None = None

    def __str__(self) -> str:
        cancelled = "" if self.cancelled_after is None else f", cancelled {self.cancelled_after}"
        given = {name: value for name, value in self.given.items() if name != "tokenizer"}
        return f"{self.number}: {self.model} {given} {self.how}, crowd {self.crowd}{cancelled}"


class DrawnLife(Draw):
    """Draws a life."""

    def __init__(self, seed: int, number: int, cancelled: float, overcommit: bool = False) -> None:
        super().__init__(seed, number)
        self.number, self.cancelled, self.overcommit = number, cancelled, overcommit
        while self.model not in ENGINES:
            super().__init__(seed, self.rng.getrandbits(32))
        if overcommit:
            self.model = "marian-long" if self.encoder else "gpt2-long"
            self.config = reference(self.model).config
            self.vocab = self.config.vocab_size

    def life(self) -> Life:
        rng = self.rng
        after = rng.choice([0, 0, 1, 2, 3, 6]) if rng.random() < self.cancelled else None
        how: dict[str, Any] = {"stream": self.chance(2), "priority": rng.choice([0, 0, 0, 1, 5])}
        if self.chance(20):
            how["deadline"] = rng.choice([1e-4, 1e-3, 1e-2])
        given = self.given()
        if given.get("num_beams", 1) > 1 and given["num_return_sequences"] > 1:
            how["stream"] = False
        crowd = rng.choice([0, 10, *[CROWD] * 8])
        if self.overcommit:  # all at once, so that pages run out
            crowd = 0 if self.number % BURST == 0 else BURST
        if self.chance(20):
            given["max_time"] = 0.0
        return Life(self.number, self.model, given, crowd, how, after)

    def given(self) -> dict[str, Any]:
        rng = self.rng
        ids = [rng.randrange(self.config.vocab_size) for _ in range(rng.randint(1, 20))]
        if self.model == SICK_MODEL and self.chance(4):
            ids.append(SICK)
        prompt = [self.tokens(5)] if self.encoder and self.chance(4) else None
        width = len(ids) if not self.encoder else 1 if prompt is None else len(prompt[0]) + 1
        options = self.lengths(width) | self.named_tokens() | self.processors([ids]) | self.search()
        if self.vocab < self.config.vocab_size:  # the source's ids are none of the decoder's
            options.pop("encoder_repetition_penalty", None)
            options.pop("encoder_no_repeat_ngram_size", None)
        if "num_beam_groups" in options:
            options.pop("renormalize_logits", None)
        if self.chance(8):
            letters = [rng.choices("abc", k=rng.randint(1, 4)) for _ in range(2)]
            options |= {"stop_strings": ["".join(word) for word in letters]}
            options |= {"tokenizer": tokenizer()}
        inputs = {"input_ids": [ids], "attention_mask": [[1] * len(ids)]}
        return {**inputs, "decoder_input_ids": prompt, **options, **FULL}

    def lengths(self, width: int) -> dict[str, Any]:
        """Mostly long enough for requests to meet."""
        if self.overcommit:
            return {"max_new_tokens": self.rng.randint(20, 80)}
        if self.chance(3):
            return super().lengths(width)
        return {"max_new_tokens": self.rng.randint(8, 24)}

    def search(self) -> dict[str, Any]:
        rng = self.rng
        kind = rng.choice([*["greedy", "sample", "beams"] * 4, *["both", "groups"] * 3, "alone"])
        if kind == "greedy":
            return {}
        if kind == "alone":
            return {"penalty_alpha": 0.6, "top_k": rng.randint(2, 4)}
        if kind == "sample":
            options = self.filters()
            return options | {"num_return_sequences": rng.choice([1, 1, 1, 2, 3, 5])}
        if kind == "groups":
            groups = rng.choice([2, 3])
            beams = groups * rng.choice([1, 2])
            options = {"num_beams": beams, "num_beam_groups": groups, "diversity_penalty": 0.7}
            return options | {"num_return_sequences": rng.randint(1, beams)}
        options = self.beams() | {"num_beams": (beams := rng.randint(2, 8))}
        options["num_return_sequences"] = rng.randint(1, beams)
        return options | self.filters() if kind == "both" else options


class World:
    """The engines, and the requests that have not been compared."""

    def __init__(self, device: str, overcommit: bool) -> None:
        self.device, self.overcommit = device, overcommit
        sizes = OVERCOMMITTED if overcommit else ENGINES
        self.models = {name: (sick if name == SICK_MODEL else ours)(name, device) for name in sizes}
        served = self.models if RANKS == 1 else {name: split(name, device) for name in sizes}
        self.engines = {
            name: tight_engine(served[name], *sizes[name], overcommit=overcommit) for name in sizes
        }
        self.whole = {
            name: tight_engine(self.models[name], *sizes[name])
            for name in sizes
            if RANKS > 1 and RANK == 0
        }
        self.rounds_as = device if RANKS == 1 else "split"
        self.running: deque[tuple[Life, Any]] = deque()
        self.cancelling: list[tuple[int, Any]] = []
        self.counts: Counter[str] = Counter()

    def live(self, life: Life) -> None:
        """Submits a life, once there is room for it."""
        self.settle(life.crowd)
        request = outcome(lambda: self.engines[life.model].submit(**life.given, **life.how))
        self.running.append((life, request))
        if life.cancelled_after is not None and not isinstance(request, Exception):
            if life.how["stream"]:
                outcome(lambda: next(itertools.islice(request, life.cancelled_after, None), None))
                request.cancel()
            self.cancelling.append((life.number + life.cancelled_after, request))
        for at, other in self.cancelling:
            if at <= life.number:
                other.cancel()
        self.cancelling = [each for each in self.cancelling if each[0] > life.number]

    def settle(self, most: int) -> None:
        """Compares requests, the oldest first, until so many are left. Raises AssertionError, with
        the schedule."""
        while len(self.running) > most:
            life, request = self.running[0]
            if problem := self.problem(life, request):
                lives = "\n".join(str(other) for other, _ in self.running)
                raise AssertionError(f"{problem}\nin life {life.number}, among\n{lives}")
            self.running.popleft()

    def problem(self, life: Life, request: Any) -> str:
        """What is wrong with what a request gave; empty where nothing is."""
        if isinstance(request, NotImplementedError) and RANKS > 1:  # it would step alone
            self.counts["refused"] += 1
            return ""
        alone = outcome(lambda: self.alone(life))
        if isinstance(request, Exception):
            self.counts["refused"] += 1
            return "; ".join(differences(request, alone, self.rounds_as))
        found = outcome(lambda: request.result(120))
        if isinstance(found, decoding.Cancelled) and life.cancelled_after is not None:
            self.counts["cancelled"] += 1
            return ""
        if isinstance(found, TimeoutError) and "deadline" in life.how:
            self.counts["expired"] += 1
            return "" if "deadline" in str(found) else str(found)
        self.counts["failed" if isinstance(found, Exception) else "ended"] += 1
        problems = differences(found, alone, self.rounds_as)
        if life.how["stream"] and not isinstance(found, Exception):
            problems += stream_problems(request, found)
        return "; ".join(problems)

    def alone(self, life: Life) -> Any:
        """What one process gives."""
        if RANKS == 1:
            return self.models[life.model].generate(**life.given)
        return self.whole[life.model].submit(**life.given).result(120)

    def close(self) -> None:
        self.settle(0)
        for engine in self.whole.values():
            engine.close()
        for engine in self.engines.values():
            assert_idle(engine)
            if self.overcommit:
                self.counts["swaps"] += engine.stats()["swaps"]
            engine.close()

    def follow(self) -> None:
        """All of it, of a rank that is not the first."""
        for engine in self.engines.values():
            engine.close()


def split(name: str, device: str) -> Any:
    """A model that all ranks share out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these models are too small
        if name == SICK_MODEL:
            return sick(name, device, tensor_parallel=RANKS)
        return load(name, device, threads=1, tensor_parallel=RANKS)


def stream_problems(request: Any, found: Any) -> list[str]:
    rows: list[list[int]] = [[] for _ in found.lengths]
    told = outcome(lambda: list(request))
    if isinstance(told, decoding.Error) and found.sequences_scores.min() <= FILL_IN:
        return []  # tokens of beams that became worse than no beam
    for new in told:
        for row, tokens in zip(rows, new, strict=True):
            row += tokens
    first = found.sequences.shape[1] - int(found.lengths.max())
    expected = [
        row[first : first + n].tolist()
        for row, n in zip(found.sequences, found.lengths.tolist(), strict=True)
    ]
    return [] if rows == expected else [f"the stream told {rows}, not {expected}"]


def run(
    seed: int,
    numbers: range,
    cancelled: float = 0.1,
    device: str = "cpu",
    overcommit: bool = False,
) -> Counter[str]:
    """How many requests came to which end. Raises AssertionError, with how to see it again."""
    world = World(device, overcommit)
    if RANK > 0:
        world.follow()
        return world.counts
    start = "python" if RANKS == 1 else f"torchrun --nproc-per-node {RANKS}"
    again = f"{start} -m tests.serving.lives --seed {seed} --cancelled {cancelled}"
    again += f" --device {device}"
    again += " --overcommit" if overcommit else ""
    number = numbers.start
    try:
        for number in numbers:
            world.live(DrawnLife(seed, number, cancelled, overcommit).life())
        world.close()
    except Exception as error:
        first = max(numbers.start, number - 2 * (BURST if overcommit else CROWD))
        raise AssertionError(f"{error}\n{again} --only {first} {number + 1}") from error
    return world.counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--only", type=int, nargs=2, metavar=("FIRST", "END"))
    parser.add_argument("--cancelled", type=float, default=0.1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--overcommit", action="store_true")
    args = parser.parse_args()
    numbers = range(*args.only) if args.only else range(args.requests)
    start = time.perf_counter()
    try:
        counts = run(args.seed, numbers, args.cancelled, args.device, args.overcommit)
    except AssertionError as error:
        print(error)
        sys.exit(1)
    seconds = time.perf_counter() - start
    if RANK == 0:
        print(dict(counts), f"{seconds:.0f} s on {args.device}, seed {args.seed}")


if __name__ == "__main__":
    main()
