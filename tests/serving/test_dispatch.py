"""What Python does with the outputs of a compiled engine: with one that says what a test wants."""

from __future__ import annotations

import asyncio
import queue
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

import decoding
from decoding import _C
from decoding._kernels import FakeEngine, end_of
from decoding.serving.dispatch import WAIT, Dispatcher
from decoding.serving.request import Request
from tests.serving.engines import outcome
from tests.support.random_models import ours


class ToldEngine:
    """Has the methods of _C.Engine that a dispatcher calls."""

    def __init__(self) -> None:
        self.outputs: queue.SimpleQueue[list[tuple[int, Any]] | Exception] = queue.SimpleQueue()
        self.called: list[Any] = []
        self.submitted = 0

    def submit(self, options: Any, batch: Any, **how: Any) -> int:
        self.called.append(how)
        self.submitted += 1
        return self.submitted

    def wait(self, timeout: float) -> list[tuple[int, Any]]:
        try:
            outputs = self.outputs.get(timeout=timeout) if timeout else self.outputs.get_nowait()
        except queue.Empty:
            return []
        if isinstance(outputs, Exception):
            raise outputs
        return outputs

    def cancel(self, id: int) -> None:
        self.called.append(("cancel", id))

    def close(self, drain: bool) -> None:
        self.called.append(("close", drain))

    def stats(self) -> dict[str, Any]:
        return {}


def dispatcher_of(engine: ToldEngine) -> Dispatcher:
    return Dispatcher(cast(_C.Engine, engine))


def submitted(dispatcher: Dispatcher, **options: Any) -> Request[Any]:
    call = ours("gpt2").prepare([[5, 6]], max_new_tokens=4, **options)
    [sub] = call.sub_batches
    request: Request[Any] = Request(call.form, sub.prompt, dispatcher)
    dispatcher.submit(request, sub.request.options, sub.request.batch(stream=0))
    return request


def end(id: int, kind: str, *rows: list[int], message: str = "") -> tuple[int, Any]:
    if kind == "end":
        return id, end_of(id, rows)
    return id, SimpleNamespace(id=id, kind=kind, message=message)


def test_a_batch_of_news_wakes_a_loop_once() -> None:
    engine = ToldEngine()
    dispatcher = dispatcher_of(engine)
    woken = 0

    async def main() -> None:
        nonlocal woken
        loop = asyncio.get_running_loop()
        plain = loop.call_soon_threadsafe

        def counted(*args: Any, **options: Any) -> Any:
            nonlocal woken
            woken += 1
            return plain(*args, **options)

        cast(Any, loop).call_soon_threadsafe = counted
        requests = [submitted(dispatcher) for _ in range(20)]
        tasks = [asyncio.ensure_future(streamed(request)) for request in requests]
        for step in range(4):
            await asyncio.sleep(0.01)
            outputs: list[tuple[int, Any]] = [(request.id, [[step]]) for request in requests]
            if step == 3:
                outputs += [end(request.id, "end", [0, 1, 2, 3]) for request in requests]
            engine.outputs.put(outputs)
        assert await asyncio.gather(*tasks) == [[0, 1, 2, 3]] * 20

    async def streamed(request: Request[Any]) -> list[int]:
        return [token async for [new] in request for token in new]

    asyncio.run(main())
    assert woken == 4
    dispatcher.close(drain=True)


def test_rows_of_different_lengths_and_the_rest_at_the_end() -> None:
    engine = ToldEngine()
    dispatcher = dispatcher_of(engine)
    request = submitted(dispatcher, do_sample=True, num_return_sequences=3)
    engine.outputs.put([(1, [[7], [8], []])])
    engine.outputs.put([(1, [[], [9, 9], []])])
    engine.outputs.put([end(1, "end", [7, 4], [8, 9, 9], [5])])
    first = next(iter(request))
    first[0].append(99)  # which is this reader's
    assert list(request) == [[[7], [8], []], [[], [9, 9], []], [[4], [], [5]]]
    assert request.result().tolist() == [[5, 6, 7, 4, 1], [5, 6, 8, 9, 9], [5, 6, 5, 1, 1]]
    dispatcher.close(drain=True)


def test_rows_without_tokens() -> None:
    """As diverse beam search has them where no token is allowed."""
    engine = ToldEngine()
    dispatcher = dispatcher_of(engine)
    options: dict[str, Any] = {"num_beams": 2, "return_dict_in_generate": True}
    request = submitted(dispatcher, **options)
    engine.outputs.put([end(1, "end", [], [])])
    found = request.result(60)
    assert found.sequences.tolist() == [[5, 6]] and found.beam_indices.shape == (1, 0)
    dispatcher.close(drain=True)


def test_all_requests_hear_of_a_failure_of_the_engine() -> None:
    engine = ToldEngine()
    dispatcher = dispatcher_of(engine)
    requests = [submitted(dispatcher, do_sample=True, seed=i) for i in range(3)]
    engine.outputs.put([end(2, "end", [4])])
    engine.outputs.put(_C.Error("the GPU is lost"))
    assert requests[1].result(60).shape == (1, 3)
    for request in (requests[0], requests[2]):
        with pytest.raises(decoding.Error, match="the engine failed: the GPU is lost"):
            request.result(60)
        with pytest.raises(decoding.Error, match="the GPU is lost"):
            list(request)
    with pytest.raises(decoding.Error, match="the GPU is lost"):
        submitted(dispatcher)
    dispatcher.close(drain=True)


class BrokenEngine:
    """A compiled engine without a model, whose scheduler fails in a step."""

    def __init__(self, step: int) -> None:
        self._engine = FakeEngine(rows=2, pages=8, fails_in=step)
        self.wait, self.cancel = self._engine.wait, self._engine.cancel
        self.close = self._engine.close

    def submit(self, options: Any, batch: Any, **how: Any) -> int:
        id: int = self._engine.submit(steps=9, **how)
        return id


@pytest.mark.parametrize("step", [0, 1, 8, 9, 20])
def test_an_exception_in_the_loop_reaches_all(step: int) -> None:
    """Those that run, those that wait and those that read; and who comes afterwards."""
    dispatcher = dispatcher_of(cast(Any, BrokenEngine(step)))
    requests: list[Request[Any]] = []
    with pytest.raises(decoding.Error, match=f"step {step} was to fail"):
        while True:
            requests.append(submitted(dispatcher))
    ends = [outcome(lambda: list(request)) for request in requests]  # noqa: B023
    failed = [end for end in ends if isinstance(end, Exception)]
    assert all(request.done for request in requests)
    assert len(ends) - len(failed) <= 2 * (step // 9), "two rows end in each ninth step"
    assert {type(error) for error in failed} == {decoding.Error}
    assert all(f"step {step} was to fail" in str(error) for error in failed)
    dispatcher.close(drain=True)


def test_an_engine_that_ends_leaves_nobody_waiting() -> None:
    engine = ToldEngine()
    dispatcher = dispatcher_of(engine)
    request = submitted(dispatcher)
    dispatcher.close(drain=False)
    with pytest.raises(decoding.Error, match="ended without an answer"):
        request.result(60)
    assert engine.called[-1] == ("close", False)


def test_what_is_told_after_the_close_is_heard() -> None:
    engine = ToldEngine()
    dispatcher = dispatcher_of(engine)
    requests = [submitted(dispatcher) for _ in range(3)]

    def close(drain: bool) -> None:
        for request in requests:
            engine.outputs.put([end(request.id, "cancelled")])

    cast(Any, engine).close = close
    dispatcher.close(drain=False)
    for request in requests:
        with pytest.raises(decoding.Cancelled):
            request.result(60)


def test_a_second_close_waits_for_the_first() -> None:
    engine, begun, free = ToldEngine(), threading.Event(), threading.Event()
    dispatcher = dispatcher_of(engine)
    request = submitted(dispatcher)

    def close(drain: bool) -> None:
        begun.set()
        assert free.wait(60)
        engine.outputs.put([end(request.id, "cancelled")])

    cast(Any, engine).close = close
    closers = [threading.Thread(target=dispatcher.close, args=(False,)) for _ in range(2)]
    closers[0].start()
    assert begun.wait(60)
    closers[1].start()
    closers[1].join(3 * WAIT)
    assert closers[1].is_alive() and not request.done
    free.set()
    for closer in closers:
        closer.join(60)
    with pytest.raises(decoding.Cancelled):
        request.result(60)


def test_what_is_cancelled_is_asked_for_once_it_is_there() -> None:
    engine = ToldEngine()
    dispatcher = dispatcher_of(engine)
    request = submitted(dispatcher)
    request.cancel()
    assert engine.called[-1] == ("cancel", request.id)
    engine.outputs.put([end(request.id, "end", [3])])  # it was faster
    assert request.result(60).tolist() == [[5, 6, 3]]
    asked = len(engine.called)
    request.cancel()
    assert len(engine.called) == asked
    dispatcher.close(drain=True)


def test_a_fault_has_the_engines_words() -> None:
    engine = ToldEngine()
    dispatcher = dispatcher_of(engine)
    request = submitted(dispatcher)
    engine.outputs.put([end(request.id, "fault", message="the logits are sick")])
    with pytest.raises(decoding.Error, match="^the logits are sick$"):
        request.result(60)
    dispatcher.close(drain=True)


def test_tokens_of_a_while_come_together() -> None:
    """The first at once, the others at the latest after a moment or with the end."""
    engine = ToldEngine()
    dispatcher = dispatcher_of(engine)
    request = submitted(dispatcher, do_sample=True, num_return_sequences=2)

    async def main() -> None:
        pieces = request.every(0.05)
        engine.outputs.put([(1, [[7], []])])
        assert await anext(pieces) == [[7], []]
        for new in ([[8], [3]], [[9], []]):
            engine.outputs.put([(1, new)])
        assert await asyncio.wait_for(anext(pieces), 5) == [[8, 9], [3]]
        engine.outputs.put([(1, [[], [4]])])
        assert await asyncio.wait_for(anext(pieces), 5) == [[], [4]]
        following = asyncio.ensure_future(anext(request.every(3600)))
        assert await following == [[7, 8, 9], [3, 4]], "all that is known, for a new reader"
        rest = [piece async for piece in hurried(pieces)]
        assert rest == [[[5], [6]]]
        assert not request._waiters

    async def hurried(pieces: Any) -> Any:
        engine.outputs.put([end(1, "end", [7, 8, 9, 5], [3, 4, 6])])
        async for piece in pieces:
            yield piece

    asyncio.run(asyncio.wait_for(main(), 30))
    dispatcher.close(drain=True)


def test_the_length_of_a_while_may_change() -> None:
    engine = ToldEngine()
    dispatcher = dispatcher_of(engine)
    request, whiles = submitted(dispatcher), [0.05, 0.0]

    async def main() -> None:
        pieces = request.every(lambda: whiles.pop())
        for token in (7, 8, 9):
            engine.outputs.put([(1, [[token]])])
            assert await asyncio.wait_for(anext(pieces), 5) == [[token]]
        assert not whiles, "it was asked for after each piece"

    asyncio.run(asyncio.wait_for(main(), 30))
    dispatcher.close(drain=False)


def test_the_end_does_not_wait_for_the_moment() -> None:
    engine = ToldEngine()
    dispatcher = dispatcher_of(engine)
    request = submitted(dispatcher)

    async def main() -> list[Any]:
        pieces = request.every(3600)
        engine.outputs.put([(1, [[7]])])
        found = [await anext(pieces)]
        engine.outputs.put([(1, [[8]])])
        asyncio.get_running_loop().call_later(0.01, engine.outputs.put, [end(1, "end", [7, 8, 9])])
        return found + [piece async for piece in pieces]

    assert asyncio.run(asyncio.wait_for(main(), 30)) == [[[7]], [[8, 9]]]
    dispatcher.close(drain=True)


def outputs_of(engine: FakeEngine, count: int) -> list[tuple[int, Any]]:
    """The next so many outputs."""
    outputs: list[tuple[int, Any]] = []
    while len(outputs) < count:
        outputs += engine.wait(60)
    return outputs


def test_requests_that_were_submitted_together_are_told_together() -> None:
    engine = FakeEngine(rows=2, pages=40)
    alone, together = engine.submit(steps=30), engine.submit_together([3, 1, 2])
    outputs = dict(outputs_of(engine, 2))
    batch = outputs[together]
    assert batch.id == together and batch.kind == "end" and batch.message == ""
    tokens, lengths, scores, sums, parents = batch.tables(fill=-7)
    assert tokens.tolist() == [[[0, 1, 2]], [[0, -7, -7]], [[0, 1, -7]]]
    assert lengths.tolist() == [[3], [1], [2]] and scores.shape == sums.shape == (3, 1)
    assert (parents == -1).tolist() == (tokens == -7).tolist()
    assert outputs[alone].tokens.shape == (1, 30)
    engine.close(drain=True)


@pytest.mark.parametrize("closed", [False, True])
def test_one_call_cancels_all_that_were_submitted_together(closed: bool) -> None:
    engine = FakeEngine(rows=2, pages=4000)
    batch = engine.submit_together([9000] * 5)
    if closed:
        engine.close(drain=False)
    else:
        engine.cancel(batch)
    [(id, end)] = outputs_of(engine, 1)
    assert (id, end.kind) == (batch, "cancelled")
    with pytest.raises(decoding.Error, match="has not come to its end"):
        end.tables(fill=0)
    engine.close(drain=True)
    assert engine.wait(0) == []
