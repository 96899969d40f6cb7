"""A long run of everything in one process: memory, files and threads must stay what they were.

    make soak                                                   30 minutes
    python -m tests.faults.soak --minutes 5 --device cuda       on a GPU
    python -m tests.faults.soak --minutes 3 --seed 7            other calls

Threads load, use and close models, and call some that stay: every search, texts, scores, sentence
embeddings, streams that are left, engines whose requests are cancelled or come too late, mistakes.
Each minute they pause, and the process is measured. What it has at the end is held against what it
had after the first minute: 1 MB more of memory fails, and so does one file or thread. Models that
stay do their largest calls first, for which their memory is planned. All of it is written at once
here: else a page of it counts from when the first call comes to use it. All threads share one arena
of malloc: else each that starts takes whichever of many is free, and what is left of others
in between keeps pages from being given back, 1 or 2 MB more or fewer from minute to minute. And
Python's table of interned strings has its largest size from the start.

On a GPU models keep a graph of each size that came again, up to some hundreds, with 65 KB of the
host's memory each: how many there are at a minute is chance. So each pause begins with none. And
four minutes go before the first.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import platform
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

import decoding
from decoding.engine import allocation
from decoding.models.weights.memory import block, trim
from tests.server.models import sentence_model
from tests.serving.engines import assert_idle, tight_engine
from tests.support.demo import DEMO
from tests.support.random_models import ours, reference

GROWTH = 1 << 20  # bytes that noise may be
ACTORS = 3  # threads
ARENA_MAX = -8  # M_ARENA_MAX of glibc's malloc.h
THP_DISABLE = 41  # PR_SET_THP_DISABLE of Linux's prctl.h: no pages of 2 MB
COME_AND_GO = 1 << 19  # strings
WARM = 300  # acts before the first minute, in which a busy machine may do few
# Minutes before it: on a GPU memory grows until all sizes have come from all threads.
WARM_MINUTES = {"cpu": 0, "cuda": 4}
VOCAB, LONGEST, ROWS = 50, 12, 5
# New tokens. What is made of options is kept for 256 sets of them, 1 MB for each model and engine:
# there are fewer here, so that all of it is there after a minute.
LENGTHS = (1, 5, LONGEST)
MISTAKES: list[dict[str, Any]] = [{"num_beams": 0}, {"top_p": 2.0, "do_sample": True}]
TEXTS = ["Guten Morgen!", "Danke, mir geht es gut.", "Wo ist der Bahnhof, bitte?"]
SEARCHES: list[dict[str, Any]] = [
    {},
    {"num_beams": 3, "num_return_sequences": 2, "no_repeat_ngram_size": 2},
    {"do_sample": True, "top_k": 20, "top_p": 0.9, "num_return_sequences": 2},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    {"penalty_alpha": 0.6, "top_k": 4},
    {"repetition_penalty": 1.2, "bad_words_ids": [[7, 8]], "return_dict_in_generate": True},
]


class Measured(NamedTuple):
    """What the process has. memory: resident; gpu: bytes of it that are taken."""

    memory: int
    files: int
    threads: int
    gpu: int = 0

    @classmethod
    def now(cls, device: str) -> Measured:
        """Memory that was freed is given back first: malloc keeps it for its threads."""
        gc.collect()
        trim()
        status = Path("/proc/self/status").read_text().split()
        free, total = torch.cuda.mem_get_info() if device == "cuda" else (0, 0)
        return cls(
            1024 * int(status[status.index("VmRSS:") + 1]),
            len(list(Path("/proc/self/fd").iterdir())),
            int(status[status.index("Threads:") + 1]),
            total - free,
        )

    def __str__(self) -> str:
        gpu = f", {self.gpu / 1e6:.1f} MB of the GPU" if self.gpu else ""
        return f"{self.memory / 1e6:.2f} MB, {self.files} files, {self.threads} threads{gpu}"


class Gate:
    """Lets calls through, but for pauses, in which none runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running, self._shut = 0, False

    @contextmanager
    def call(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._shut)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextmanager
    def pause(self) -> Iterator[None]:
        with self._changed:
            self._shut = True
            self._changed.wait_for(lambda: self._running == 0)
        try:
            yield
        finally:
            with self._changed:
                self._shut = False
                self._changed.notify_all()


def written(size: int) -> npt.NDArray[np.uint8]:
    """A block of which every page takes memory."""
    found = block(size)
    found.fill(0)
    return found


def frees_interned() -> bool:
    """Whether an interned string that nobody uses goes. In the first releases of Python 3.12 it is
    immortal (CPython's issue 113993), as is each name in a Path: there memory grows for ever."""
    immortal = 1 << 30  # references, or more
    return sys.getrefcount(sys.intern(f"{COME_AND_GO} and one")) < immortal


def resize_interned() -> None:
    """Has Python's table of interned strings take the size that it would come to.

    Strings that come and go, as the names in a Path do, use up its places. Then Python makes it
    anew, for three times the strings that are there: once, some 50,000 acts on, it would grow by 4
    MB (torch and transformers alone have 120,000 strings), and never again.
    """
    for i in range(COME_AND_GO):
        sys.intern(f"comes and goes {i}")


class Soak:
    """The models that stay, and what is done with them and with others. counts: acts by name."""

    @mock.patch.object(allocation, "block", written)
    def __init__(self, folder: Path, device: str) -> None:
        self._device = device
        (folder / "encoder").mkdir()
        sentence_model(folder / "encoder")
        ours("gpt2").save(folder / "converted")
        self._sources = [folder / "converted", folder / "encoder", DEMO, reference("marian")]
        self._models = [decoding.load(reference(name), device) for name in ("gpt2", "marian")]
        self._demo = decoding.load(DEMO, device)
        self._encoder = decoding.load(folder / "encoder", device)
        self._engine = tight_engine(self._models[0], rows=8, pages=40)
        self.counts: Counter[str] = Counter()
        self.acts: list[Callable[[random.Random], object]] = [
            self.generate,
            self.stream,
            self.cancel,
            self.many,
            self.score,
            self.translate,
            self.embed,
            self.submit,
            self.live,
            self.engine_live,
            self.mistake,
        ]
        self._largest()

    def _largest(self) -> None:
        """Calls for which the memory of the models that stay is planned from then on."""
        for model in self._models:
            for search in SEARCHES:
                model.generate([[5] * LONGEST] * ROWS, max_new_tokens=LONGEST, **search)
            model.generate([[5] * LONGEST] * 300, max_new_tokens=LONGEST, eos_token_id=None)
            model.score([[5] * LONGEST] * ROWS, labels=[[6] * LONGEST] * ROWS)
        self._demo.translate(TEXTS * 3, num_beams=4)
        self._encoder.embed([10 * "ab "] * 9)
        requests = [
            self._engine.submit([i, 6], max_new_tokens=30, eos_token_id=None) for i in range(40)
        ]
        for request in requests:
            request.result()

    def act(self, rng: random.Random) -> None:
        act = rng.choice(self.acts)
        act(rng)
        self.counts[act.__name__] += 1

    def _ids(self, rng: random.Random, rows: int) -> list[list[int]]:
        return [
            [rng.randrange(4, VOCAB) for _ in range(rng.randint(1, LONGEST))] for _ in range(rows)
        ]

    def _call(self, rng: random.Random) -> tuple[Any, list[list[int]], dict[str, Any]]:
        """A model, ids and options of generate()."""
        options = {"max_new_tokens": rng.choice(LENGTHS), "seed": rng.randrange(2)}
        search = rng.choice(SEARCHES)
        if not search.get("do_sample"):
            del options["seed"]
        return rng.choice(self._models), self._ids(rng, rng.randint(1, ROWS)), options | search

    def generate(self, rng: random.Random) -> None:
        model, ids, options = self._call(rng)
        model.generate(ids, **options)

    def stream(self, rng: random.Random) -> None:
        """Is left before its end, or not."""
        pieces = rng.choice(self._models).stream(self._ids(rng, 1), max_new_tokens=LONGEST)
        for _ in range(rng.randint(1, LONGEST)):
            next(pieces, None)
        pieces.close()

    def cancel(self, rng: random.Random) -> None:
        model, ids, options = self._call(rng)
        event = threading.Event()
        timer = threading.Timer(rng.random() * 0.002, event.set)
        timer.start()
        with suppress(decoding.Cancelled):
            model.generate(ids, cancel=event, **options)
        timer.join()

    def many(self, rng: random.Random) -> None:
        """By the model's own engine."""
        ids = self._ids(rng, rng.randint(130, 300))
        rng.choice(self._models).generate(ids, max_new_tokens=rng.choice(LENGTHS))

    def score(self, rng: random.Random) -> None:
        ids = self._ids(rng, rng.randint(1, ROWS))
        rng.choice(self._models).score(ids, labels=ids)

    def translate(self, rng: random.Random) -> None:
        texts = rng.choices(TEXTS, k=rng.randint(1, 9))
        self._demo.translate(texts, num_beams=rng.randint(1, 4))

    def embed(self, rng: random.Random) -> None:
        self._encoder.embed([rng.randint(1, 10) * "ab "] * rng.randint(1, 9))

    def submit(self, rng: random.Random) -> None:
        self._use(self._engine, rng)

    def live(self, rng: random.Random) -> None:
        """A model from its load to its end."""
        dtype = rng.choice(["float32", "float16" if self._device == "cuda" else "bfloat16"])
        source = rng.choice(self._sources)
        options: dict[str, Any] = {} if source is self._sources[0] else {"dtype": dtype}
        model = decoding.load(source, device="cpu" if not options else self._device, **options)
        if model.is_encoder:
            model.encode([[5, 6]])
        else:
            model.generate(self._ids(rng, 2), max_new_tokens=3)
        if rng.random() < 0.5:
            model.close()

    def engine_live(self, rng: random.Random) -> None:
        with tight_engine(self._models[1], rows=4, pages=20) as engine:
            self._use(engine, rng)

    def _use(self, engine: decoding.Engine, rng: random.Random) -> None:
        requests = []
        for _ in range(rng.randint(1, 6)):
            search = rng.choice(SEARCHES[:3])
            options: dict[str, Any] = {"max_new_tokens": rng.choice(LENGTHS), **search}
            deadline = rng.choice([None, None, 0.001])
            ids, stream = self._ids(rng, 1), "num_beams" not in search and rng.random() < 0.5
            requests.append(engine.submit(ids, stream=stream, deadline=deadline, **options))
            if rng.random() < 0.2:
                requests[-1].cancel()
        for request in requests:
            with suppress(decoding.Cancelled, TimeoutError):
                request.result()

    def mistake(self, rng: random.Random) -> None:
        model, ids, _ = self._call(rng)
        with suppress(ValueError, TypeError):
            model.generate(ids, **rng.choice(MISTAKES))

    def settle(self) -> None:
        """Nothing runs. Captured graphs go as memory is bound anew."""
        assert_idle(self._engine)
        if self._device == "cpu":
            return
        for model in (*self._models, self._demo):
            session, limits = model._session, model._session._bound
            assert limits is not None, "a model that stays has been called"
            with session._own_turn():
                session._bind(limits)
            model._engine.close()
        self._engine.close()
        self._engine = tight_engine(self._models[0], rows=8, pages=40)


@mock.patch.object(allocation, "block", written)
def soak(run: Soak, rounds: int, interval: float, seed: int, device: str) -> list[Measured]:
    """Acts for so many intervals, in seconds; what the process had after each."""
    gate, over, errors = Gate(), threading.Event(), list[BaseException]()

    def work(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        try:
            while not over.is_set():
                with gate.call():
                    run.act(rng)
        except BaseException as error:
            errors.append(error)
            over.set()

    threads = [threading.Thread(target=work, args=[number]) for number in range(ACTORS)]
    for thread in threads:
        thread.start()
    found = list[Measured]()
    while len(found) < rounds and not over.wait(interval):
        with gate.pause():
            run.settle()
            found.append(Measured.now(device))
        print(f"{interval * len(found):.0f} s: {found[-1]}, {run.counts.total()} acts", flush=True)
    over.set()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=int, default=30, help="2 or more")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not frees_interned():
        parser.error(
            f"Python {platform.python_version()} keeps every interned string, so that its memory "
            "grows: take the newest 3.12, or another Python"
        )
    libc = ctypes.CDLL(None)
    libc.mallopt(ARENA_MAX, 1)
    libc.prctl(THP_DISABLE, 1, 0, 0, 0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        run = Soak(Path(name), args.device)
        for number in range(WARM):
            run.act(random.Random(number))
        resize_interned()
        soak(run, WARM_MINUTES[args.device], 60, args.seed + 1, args.device)
        first, *_, last = soak(run, args.minutes, 60, args.seed, args.device)
    growth = last.memory - first.memory
    print(f"{dict(run.counts)}; memory grew by {growth / 1e6:+.2f} MB since the first minute")
    sys.exit(growth > GROWTH or last[1:] != first[1:])


if __name__ == "__main__":
    main()
