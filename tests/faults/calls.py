"""What allocations fail in: loads, a plan, and calls of all kinds. Each always gives the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import decoding
from decoding.serving import planning
from tests.models.quantised.checkpoints import LAYOUTS, theirs, write_quantised
from tests.server.models import sentence_model
from tests.support.demo import DEMO
from tests.support.grammar import tokenizer
from tests.support.random_models import load as load_random
from tests.support.random_models import ours, reference

TEXTS = ["Guten Morgen!", "Danke, mir geht es gut."]
IDS = [[5, 6, 7], [8, 9, 10, 11, 12]]
LONG = [(7 * i) % 40 + 5 for i in range(40)]
PART = 16  # tokens of a prompt that are read between two steps
MANY = 140  # sentences, more than rows that run at once: the model's own engine computes them
SHORT: dict[str, Any] = {"max_new_tokens": 6}

Call = Callable[[], Any]


def load(source: Any, device: str, dtype: str = "float32") -> Call:
    """source: as load() takes it. Two threads and a first call, with all that it makes."""

    def call() -> Any:
        with decoding.load(source, device=device, dtype=dtype, threads=2) as model:
            return model.generate(IDS[:1], max_new_tokens=2).tolist()

    return call


def load_packed(folder: Path, device: str) -> Call:
    reference("gpt2").save_pretrained(folder)
    return load(folder, device)


def load_converted(folder: Path, device: str) -> Call:
    ours("gpt2").save(folder / "converted")
    return load(folder / "converted", "cpu")


def load_int8(folder: Path, device: str) -> Call:
    """The engine makes them."""
    reference("gpt2").save_pretrained(folder)
    return load(folder, device, "int8")


def load_quantised(layout: str, dtype: str) -> Callable[[Path, str], Call]:
    """Weights in 8 bits, as published."""

    def prepare(folder: Path, device: str) -> Call:
        write_quantised(folder, theirs("llama"), LAYOUTS[layout])
        return load(folder, device, dtype)

    return prepare


def load_encoder(folder: Path, device: str) -> Call:
    sentence_model(folder)

    def call() -> Any:
        with decoding.load(folder, device=device, threads=2) as model:
            return model.embed(["ab"]).tolist()

    return call


def plan(folder: Path, device: str) -> Call:
    model = ours("marian", device)
    limits = decoding.Limits(batch=3, beams=2, source=20, target=20)
    return lambda: model.memory_plan(limits).table()


def generate(**options: Any) -> Callable[[Path, str], Call]:
    def prepare(folder: Path, device: str) -> Call:
        model = ours("gpt2", device)
        return lambda: model.generate(IDS, **SHORT, **options).tolist()

    return prepare


def generate_with(model: Callable[[str], Any]) -> Callable[[Path, str], Call]:
    """model: loads that of a device."""

    def prepare(folder: Path, device: str) -> Call:
        loaded = model(device)
        return lambda: loaded.generate(IDS, **SHORT, num_beams=2).tolist()

    return prepare


def small_cache(device: str) -> Any:
    """Keys and values in fewer bits than the weights."""
    dtypes = ("float32", "bfloat16") if device == "cpu" else ("float16", "fp8")
    return load_random("gpt2", device, threads=1, dtype=dtypes[0], kv_cache_dtype=dtypes[1])


def generate_streamed(folder: Path, device: str) -> Call:
    model = ours("gpt2", device)
    return lambda: [list(new) for [new] in model.stream(IDS[:1], **SHORT)]


def generate_shortlisted(folder: Path, device: str) -> Call:
    """For the CPU alone."""
    model = ours("marian")
    likely = np.tile(np.arange(4, 24, dtype=np.int32), (60, 1))
    shortlist = decoding.Shortlist(likely, np.array([2, 3], np.int32), 60)
    return lambda: model.generate(IDS, **SHORT, shortlist=shortlist).tolist()


def generate_many(folder: Path, device: str) -> Call:
    """By the model's own engine."""
    ids = [[5 + i % 40, 6] for i in range(MANY)]
    model = decoding.load(reference("gpt2"), device=device, threads=1)
    return lambda: model.generate(ids, max_new_tokens=2).tolist()


def translate(folder: Path, device: str) -> Call:
    model = decoding.load(DEMO, device=device, dtype="float32", threads=2)
    return lambda: model.translate(TEXTS, num_beams=2, max_new_tokens=8)


def score(folder: Path, device: str) -> Call:
    model = ours("marian", device)
    return lambda: model.score(IDS, labels=IDS).token_logprobs.tolist()


def encode(folder: Path, device: str) -> Call:
    model = sentence_model(folder)
    return lambda: model.encode(IDS).last_hidden_state.tolist()


def submit(**how: Any) -> Callable[[Path, str], Call]:
    """how: of the engine."""

    def prepare(folder: Path, device: str) -> Call:
        model = ours("gpt2", device)

        def call() -> Any:
            with decoding.Engine(model, **how) as engine:
                searches: list[dict[str, Any]] = [
                    {"num_beams": 2},
                    {"do_sample": True, "seed": 1, "top_k": 5},
                    {"repetition_penalty": 1.2},
                    {"frequency_penalty": 0.5, "presence_penalty": -0.5},
                    {"stop_strings": ["ab"], "tokenizer": tokenizer()},
                ]
                requests = [engine.submit([5, 6, 7], **SHORT, **own) for own in searches]
                streamed = engine.submit([5, 6, 7, 8], stream=True, **SHORT)
                cancelled = engine.submit([5, 6], max_new_tokens=40, eos_token_id=None)
                cancelled.cancel()
                tokens = [token for [new] in streamed for token in new]
                return tokens, [request.result(60).tolist() for request in requests]

        return call

    return prepare


def read_in_parts(folder: Path, device: str) -> Call:
    """Prompts, between steps of others; the last is known by then."""
    model = ours("gpt2", device)

    def call() -> Any:
        with (
            mock.patch.dict(planning.READ, {device: PART}),
            decoding.Engine(model) as engine,
        ):
            requests = [engine.submit(LONG[i:], **SHORT) for i in range(3)]
            found = [request.result(60).tolist() for request in requests]
            return found, engine.submit(LONG, **SHORT, num_beams=2).result(60).tolist()

    return call


def several(folder: Path, device: str) -> Call:
    """One of each kind, for a short run."""
    kinds = ("load-converted", "load-quantised", "beams", "score", "engine")
    calls = [CALLS[name](folder, device) for name in kinds]
    return lambda: [call() for call in calls]


# Of a name, what prepares the call on a device; it may write to the folder.
CALLS: dict[str, Callable[[Path, str], Call]] = {
    "load": load_packed,
    "load-converted": load_converted,
    "load-int8": load_int8,
    "load-quantised": load_quantised("int-channel", "int8"),
    "load-fp8": load_quantised("fp8-blocks", "float32"),
    "load-encoder": load_encoder,
    "plan": plan,
    "greedy": generate(),
    "beams": generate(num_beams=3, no_repeat_ngram_size=2, bad_words_ids=[[7, 8]]),
    "sampling": generate(do_sample=True, seed=1, top_k=20, top_p=0.9),
    "contrastive": generate(penalty_alpha=0.5, top_k=4),
    "kept-scores": generate(repetition_penalty=1.3, num_beams=2, num_return_sequences=2),
    "counts": generate(frequency_penalty=0.5, presence_penalty=-0.5, num_beams=2),
    "groups": generate(num_beams=4, num_beam_groups=2, diversity_penalty=0.5),
    "constrained": generate(force_words_ids=[[7, 8], [[9], [10]]], num_beams=3),
    "guided": generate(guidance_scale=1.5, sequence_bias=[[[7, 8], 2.0]]),
    "small-cache": generate_with(small_cache),
    "overflow": generate_with(lambda device: load_random("gpt2", device, detect_overflow=True)),
    "int8": generate_with(lambda device: load_random("gpt2", device, dtype="int8", threads=1)),
    "streamed": generate_streamed,
    "shortlisted": generate_shortlisted,
    "many": generate_many,
    "translate": translate,
    "score": score,
    "encode": encode,
    "engine": submit(),
    "parts": read_in_parts,
    "several": several,
    "engine-overcommit": submit(overcommit=True, max_requests=4),
}
