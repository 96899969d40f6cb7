"""Ending a call from another thread, and hearing how far it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import decoding
from tests.support.random_models import ours

IDS = [[3, 4, 5]]
LONG: dict[str, Any] = {"max_new_tokens": 30, "eos_token_id": None}


@pytest.fixture(scope="module")
def demo() -> decoding.Model:
    return decoding.load("demo", device="cpu", dtype="float32")


def is_set() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


class After:
    """An event that is set when it has been asked so many times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def is_set(self) -> bool:
        self.times -= 1
        return self.times < 0


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"max_time": 60.0}])
def test_generate_ends_after_the_step_under_way(options: dict[str, Any]) -> None:
    model, event = ours("gpt2"), After(8)
    expected = model.generate(IDS, **LONG, **options)
    with pytest.raises(decoding.Cancelled, match="the event given as `cancel` is set"):
        model.generate(IDS, cancel=event, **LONG, **options)
    assert event.times == -1  # nobody asked it afterwards
    assert model.generate(IDS, **LONG, **options).tolist() == expected.tolist()
    unset = model.generate(IDS, cancel=threading.Event(), **LONG, **options)
    assert unset.tolist() == expected.tolist()


def test_a_call_that_waits_for_its_turn_is_cancelled() -> None:
    model, inside, leave = ours("gpt2"), threading.Event(), threading.Event()

    def wait(ids: object, scores: Any) -> Any:
        inside.set()
        leave.wait(60)
        return scores

    first = threading.Thread(
        target=lambda: model.generate(IDS, max_new_tokens=1, logits_processor=[wait])
    )
    first.start()
    inside.wait(60)
    event = threading.Event()
    threading.Timer(0.1, event.set).start()
    started = time.monotonic()
    with pytest.raises(decoding.Cancelled):
        model.generate(IDS, cancel=event, max_new_tokens=1)
    assert 0.1 <= time.monotonic() - started < 30
    leave.set()
    first.join()


def test_a_stream_ends(demo: decoding.Model) -> None:
    event = After(5)
    tokens = [new for [new] in ours("gpt2").stream(IDS, cancel=event, **LONG)]
    assert 0 < len(tokens) < 30
    assert list(ours("gpt2").stream(IDS, cancel=is_set(), **LONG)) == []


def test_texts_are_cancelled(demo: decoding.Model) -> None:
    with pytest.raises(decoding.Cancelled):
        demo.translate(["Guten Morgen!"], cancel=is_set())
    assert list(demo.stream_text("Guten Morgen!", cancel=is_set())) == []
    stories = decoding.load("tests/data/stories260K", device="cpu")
    with pytest.raises(decoding.Cancelled):
        stories.complete("Once", cancel=After(5), max_new_tokens=30)
    assert 0 < len("".join(stories.stream_text("Once", cancel=After(9), max_new_tokens=90))) < 99
    told: list[tuple[int, int]] = []
    stories.complete("Once", progress=lambda *each: told.append(each), max_new_tokens=30)
    assert told[-1] == (30, 30)
    with pytest.raises(decoding.Cancelled):
        stories.chat("Hi", chat_template="{{ messages[0].content }}", cancel=is_set())


@pytest.mark.parametrize("options", [{}, {"cancel": threading.Event()}, {"max_time": 60.0}])
def test_steps_are_reported(options: dict[str, Any]) -> None:
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total))

    ours("gpt2").generate(IDS, progress=progress, **LONG, **options)
    assert {total for _, total in told} == {30} and told[-1][0] == 30 and len(told) > 1
    assert [done for done, _ in told] == sorted({done for done, _ in told})


def test_steps_of_sub_batches_add_up() -> None:
    told: list[tuple[int, int]] = []
    ids = [[3] * (1 + i % 7) for i in range(200)]
    options: dict[str, Any] = {"num_beams": 4, "max_new_tokens": 2}
    model = decoding.load("demo", limits=decoding.Limits(batch=50, beams=4, source=9, target=9))
    model.generate(ids, progress=lambda *each: told.append(each), **options)
    assert told[-1] == (8, 8) and len(told) >= 4


def test_texts_are_reported(demo: decoding.Model) -> None:
    told: list[tuple[int, int]] = []
    texts = ["Ja.", "", "Guten Morgen!"]
    demo.translate(texts, progress=lambda *each: told.append(each))
    assert told == sorted(set(told)) and told[-1] == (3, 3)


def test_a_bar(demo: decoding.Model, capsys: pytest.CaptureFixture[str]) -> None:
    demo.translate(["Ja.", "Nein."], progress=True)
    assert "/2" in capsys.readouterr().err
    demo.translate(["Ja.", "Nein."], progress=False)
    assert capsys.readouterr().err == ""


def test_what_is_neither(demo: decoding.Model) -> None:
    calls: list[Callable[..., Any]] = [
        lambda **given: ours("gpt2").generate(IDS, **given),
        lambda **given: ours("gpt2").stream(IDS, **given),
        lambda **given: demo.translate(["Ja."], **given),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="progress must be True, False or a function.*got int"):
            call(progress=3)
        with pytest.raises(TypeError, match="cancel must be a threading.Event, got bool"):
            call(cancel=True)


def test_an_error_of_the_function_is_the_callers() -> None:
    def broken(done: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ours("gpt2").generate(IDS, progress=broken, **LONG)
    ours("gpt2").generate(IDS, **LONG)
