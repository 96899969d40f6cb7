"""Requests in event loops."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import torch

import decoding
from tests.serving.engines import assert_idle, assert_same, engine
from tests.support.random_models import ours

LONG: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 400, "eos_token_id": None}


@pytest.fixture(scope="module")
def demo() -> decoding.Model:
    """A model whose requests last."""
    return decoding.load("demo", device="cpu", dtype="float32", threads=1)


async def streamed(request: decoding.Request[Any]) -> list[int]:
    return [token async for [new] in request for token in new]


def test_many_requests_in_two_loops(device: str) -> None:
    model, failed = ours("gpt2", device), list[BaseException]()
    rows = [[5 + i % 50, 6 + i % 7] for i in range(60)]
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": True}
    expected = [model.generate([row], **options, seed=i) for i, row in enumerate(rows)]

    async def check(i: int) -> None:
        stream = bool(i % 2)
        request = engine("gpt2", device).submit(rows[i], **options, seed=i, stream=stream)
        if stream:
            assert await streamed(request) == expected[i][0, 2:].tolist()
        assert await request.tokens() == [expected[i][0, 2:].tolist()]
        assert_same(await request, expected[i], device)

    async def main() -> None:
        await asyncio.wait_for(asyncio.gather(*map(check, range(len(rows)))), 120)

    def work() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert_idle(engine("gpt2", device))


def test_a_loop_goes_on_while_requests_run(demo: decoding.Model) -> None:
    async def main() -> int:
        turns = 0
        async with decoding.Engine(demo) as engine:
            request = engine.submit([5, 6, 0], **LONG)
            while not request.done:
                await asyncio.sleep(0.001)
                turns += 1
            assert (await request).shape == (1, 401)
        assert engine.closed
        return turns

    assert asyncio.run(main()) > 5


def test_errors() -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="positions"):
            engine("gpt2").submit([5], max_new_tokens=99)
        request = engine("gpt2").submit([5], deadline=1e-6, stream=True, max_new_tokens=40)
        with pytest.raises(TimeoutError, match="deadline"):
            await request
        with pytest.raises(TimeoutError, match="deadline"):
            await streamed(request)

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_cancelling_a_task_cancels_its_request(stream: bool, demo: decoding.Model) -> None:
    async def main() -> None:
        async with decoding.Engine(demo) as engine:
            request = engine.submit([5, 6, 0], stream=stream, **LONG)
            waiting: Any = streamed(request) if stream else request
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(waiting, 0.02)
            with pytest.raises(decoding.Cancelled):
                await request
            assert_idle(engine)

    asyncio.run(main())


def test_without_stream_all_tokens_come_at_the_end(demo: decoding.Model) -> None:
    async def main() -> None:
        request = engine("gpt2").submit([5], max_new_tokens=9, eos_token_id=None)
        pieces = [piece async for piece in request]
        assert pieces == [(await request)[:, 1:].tolist()] and len(pieces[0][0]) == 9
        async with decoding.Engine(demo) as long:
            request = long.submit([5, 6, 0], **LONG)
            request.cancel()
            with pytest.raises(decoding.Cancelled, match="the request was cancelled"):
                await streamed(request)

    asyncio.run(main())


def test_several_tasks_wait_for_one_request() -> None:
    async def main() -> None:
        request = engine("gpt2").submit([5], max_new_tokens=9, eos_token_id=None, stream=True)

        async def wait() -> torch.Tensor:
            return await request

        *streams, first, second = await asyncio.gather(
            streamed(request), streamed(request), wait(), wait()
        )
        assert first is second and streams[0] == streams[1] == first[0, 1:].tolist()
        assert await request is first

    asyncio.run(main())


def test_a_loop_that_has_gone_harms_nobody(demo: decoding.Model) -> None:
    with decoding.Engine(demo) as engine:
        request = engine.submit([5, 6, 0], **LONG)

        async def leave() -> None:
            waiting = asyncio.ensure_future(request)
            await asyncio.sleep(0)
            assert not waiting.done()
            waiting.get_loop().stop()

        loop = asyncio.new_event_loop()
        task = loop.create_task(leave())
        loop.run_forever()
        loop.close()
        del task
        assert request.result(60).shape == (1, 401)
        assert engine.submit([5, 6, 0], max_new_tokens=3).result(60).shape[0] == 1
