"""Tokens as they come: to transformers' streamers, and out of Model.stream()."""

from __future__ import annotations

import threading
import time
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from decoding.generation.call import prepare
from decoding.generation.inputs import GenerateInputs
from decoding.generation.streaming import QueuedTokenStream, stream
from tests.support.random_models import ours, reference

IDS = torch.tensor([[12, 13, 14, 15], [16, 17, 18, 19], [20, 12, 22, 23]])
names = pytest.mark.parametrize("name", ["marian", "gpt2-pad"])
SEARCHES: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 5, "num_return_sequences": 2},
    {"num_beams": 4},
    {"num_beams": 3, "early_stopping": True, "length_penalty": 2.0},
    {"num_beams": 3, "do_sample": True, "seed": 3, "temperature": 0.3},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    {"penalty_alpha": 0.6, "top_k": 4},
]


class Recorder:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def put(self, value: Tensor) -> None:
        assert isinstance(value, Tensor) and value.dtype == torch.int64
        self.values.append(value.tolist())

    def end(self) -> None:
        self.values.append("end")


@names
@pytest.mark.parametrize("options", [{}, {"min_new_tokens": 4, "repetition_penalty": 1.5}])
def test_streamers_are_told_what_transformers_tells(
    name: str, options: dict[str, Any], device: str
) -> None:
    theirs, mine = Recorder(), Recorder()
    options = {"max_new_tokens": 9, "attention_mask": torch.ones_like(IDS)} | options
    expected = reference(name).generate(IDS, streamer=theirs, **options)
    assert torch.equal(ours(name, device).generate(IDS, streamer=mine, **options), expected)
    assert mine.values == theirs.values and len(mine.values) > 4


@names
def test_streamers_with_beams(name: str, device: str) -> None:
    early = 0
    for search in SEARCHES[2:5]:
        for row in IDS:
            recorder = Recorder()
            options = {"max_new_tokens": 20, "min_new_tokens": 12, "streamer": recorder}
            found = ours(name, device).generate(row[None], **options, **search)
            prompt, *queued, end = recorder.values
            start = [[59]] if name == "marian" else [row.tolist()]
            assert (prompt, end) == (start, "end")
            tokens = [token for new in queued for token in new]
            assert tokens == found[0, len(start[0]) :].tolist()
            early += len(queued) > 1
    assert early > 2, "no token was told before the end"


def tokens_of(name: str, device: str, **options: Any) -> list[list[int]]:
    """What generate() finds, without prompts and fill."""
    found = ours(name, device).generate(IDS, return_dict_in_generate=True, **options)
    width = found.sequences.shape[1] - int(found.lengths.max())
    rows = zip(found.sequences.tolist(), found.lengths.tolist(), strict=True)
    return [row[width : width + n] for row, n in rows]


@names
@pytest.mark.parametrize("search", SEARCHES)
def test_streams_add_up(name: str, search: dict[str, Any], device: str) -> None:
    options = {"max_new_tokens": 12, "attention_mask": torch.ones_like(IDS), **search}
    expected = tokens_of(name, device, **options)
    told: list[list[int]] = [[] for _ in expected]
    steps = 0
    for new in ours(name, device).stream(IDS, **options):
        steps += 1
        assert len(new) == len(expected) and any(new)
        for row, tokens in zip(told, new, strict=True):
            row += tokens
    assert told == expected
    assert steps > 3 or "num_beams" in search or "top_k" in search, "all came at once"


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_stream_can_be_left(taken: int, device: str) -> None:
    model = ours("gpt2", device)
    options = {"max_new_tokens": 40, "eos_token_id": None}
    expected = model.generate(IDS, **options)
    before = threading.active_count()
    tokens = model.stream(IDS, **options)
    for _ in range(taken):
        next(tokens)
    tokens.close()  # as the end of a loop that is left does
    assert threading.active_count() == before
    assert torch.equal(model.generate(IDS, **options), expected)
    kept = model.stream(IDS, **options)
    assert next(kept)
    assert torch.equal(model.generate(IDS, **options), expected)  # while one is half read
    assert len(list(kept)) == 39


def test_who_leaves_ends_the_thread() -> None:
    """It stops behind its present step, however much there would be to come."""
    steps = 0

    class Slow(QueuedTokenStream):
        def accepted(self, *args: Any) -> None:
            nonlocal steps
            steps += 1
            while steps == 3 and not self.cancelled:
                time.sleep(0.001)
            super().accepted(*args)

    model, queued = ours("gpt2"), Slow()
    options = {"max_new_tokens": 40, "eos_token_id": None}
    call = prepare(model._session, {}, GenerateInputs(IDS), options, queued)
    tokens = stream(call.run, queued, model.place)
    assert len(next(tokens)) == 3
    tokens.close()
    assert steps in (1, 2, 3)


@pytest.mark.parametrize(
    "method, options, error, words",
    [
        ("stream", {"num_beams": 2, "num_return_sequences": 2}, ValueError, "best row alone"),
        ("stream", {"num_beam": 2}, TypeError, "num_beams"),
        ("stream", {"max_new_tokens": 99}, ValueError, "positions"),
        ("generate", {"streamer": 3}, TypeError, "put and end"),
        ("generate", {"streamer": Recorder(), "num_beams": 2}, ValueError, "not of 3"),
    ],
)
def test_refused(method: str, options: dict[str, Any], error: type[Exception], words: str) -> None:
    """At once, not when the first token is asked for."""
    with pytest.raises(error, match=words), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        getattr(ours("gpt2"), method)(IDS, **options)


def test_what_a_streamer_raises_passes_through(device: str) -> None:
    class Broken(Recorder):
        def put(self, value: Tensor) -> None:
            super().put(value)
            if len(self.values) == 3:
                raise KeyboardInterrupt

    model = ours("gpt2", device)
    expected = model.generate(IDS, max_new_tokens=5)
    with pytest.raises(KeyboardInterrupt):
        model.generate(IDS, max_new_tokens=5, streamer=Broken())
    assert torch.equal(model.generate(IDS, max_new_tokens=5), expected)


def test_the_threads_errors_are_the_iterators(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ours("gpt2")

    def fail(_: Any) -> None:
        raise MemoryError("none")

    with monkeypatch.context() as patched:
        patched.setattr(model._session, "_reserve", fail)
        with pytest.raises(MemoryError, match="none"):
            next(model.stream(IDS))
