"""What a server refuses: who asks, how much, and for how long."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepl
import openai
import pytest
from libretranslatepy import LibreTranslateAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import decoding
from decoding.server.errors import ApiError
from decoding.server.fields import KEPT, LONGEST, Fields, Kept
from decoding.server.gate import Gate
from tests.server.live import Live, raw
from tests.server.models import STORIES, engine, sentence_model
from tests.support.demo import DEMO

PARTS = ("prefill", "decode")  # of a stream's time
LONG = {"prompt": "Once", "max_tokens": 480, "ignore_eos": True, "n": 4, "temperature": 1.0}


@pytest.fixture(scope="module")
def model() -> decoding.Model:
    return decoding.load(STORIES, device="cpu", threads=1)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Live]:
    with Live({"demo": engine(DEMO), "stories": engine(STORIES)}, api_keys=("one", "two")) as live:
        yield live


def test_a_key_guards_everything(guarded: Live) -> None:
    paths = {route.path for route in guarded.app.routes if hasattr(route, "path")}
    assert len(paths) > 12
    for path in paths:
        name = path.replace("{name:path}", "demo")
        bodies: list[Any] = [None, {}]
        for body in bodies:
            assert guarded.ask(name, body).status in (401, 403, 405), path
        allowed = guarded.ask(name, Authorization="Bearer two").status
        assert allowed not in (401, 403), path
        assert guarded.ask(name, Authorization="Bearer on").status in (401, 403, 405)
    assert guarded.ask("/version?api_key=one").status == 200
    error = guarded.ask("/v1/models").json["error"]
    assert error["type"] == "authentication_error" and error["code"] == "api_key"


def test_clients_show_their_keys(guarded: Live) -> None:
    good = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="two", max_retries=0)
    assert good.completions.create(model="stories", prompt="a", max_tokens=1).choices
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="x", max_retries=0).models.list()
    assert LibreTranslateAPI(guarded.url, "one").translate("Danke!", "de", "en") == "Thank you."
    assert LibreTranslateAPI(guarded.url, "one").languages()
    with pytest.raises(Exception, match="403"):
        LibreTranslateAPI(guarded.url, "three").translate("Danke!", "de", "en")
    found: Any = deepl.Translator("two", server_url=guarded.url).translate_text(
        "Danke!", target_lang="EN-GB"
    )
    assert found.text == "Thank you."
    with pytest.raises(deepl.AuthorizationException):
        deepl.Translator("three", server_url=guarded.url).get_source_languages()


def test_sizes(model: decoding.Model) -> None:
    settings: dict[str, Any] = {"body_bytes": 1000, "max_new_tokens": 20, "max_texts": 2}
    with Live({"m": decoding.Engine(model)}, **settings) as live:
        said = live.ask("/v1/completions", {"prompt": "a" * 1000})
        assert said.status == 413 and "takes 1000" in said.json["error"]["message"]
        said = live.ask("/v1/completions", {"prompt": "a", "max_tokens": 21})
        assert said.status == 400 and "this server allows 20" in said.json["error"]["message"]
        assert said.json["error"]["param"] == "max_new_tokens"
        assert live.ask("/v1/completions", {"prompt": ["a"] * 3}).status == 400
        assert live.ask("/v1/completions", {"prompt": "a", "max_tokens": 20}).status == 200


def test_chunks_of_a_body_are_counted(model: decoding.Model) -> None:
    import http.client

    with Live({"m": decoding.Engine(model)}, body_bytes=1000) as live:
        connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=30)
        parts = iter([b"a" * 600, b"b" * 600])
        connection.request("POST", "/v1/completions", parts, encode_chunked=True)
        assert connection.getresponse().status == 413


def test_a_deadline(model: decoding.Model) -> None:
    with Live({"m": decoding.Engine(model)}, deadline=0.02) as live:
        said = live.ask("/v1/completions", LONG)
        assert said.status == 504 and "deadline" in said.json["error"]["message"]
        streamed = live.ask("/v1/completions", {**LONG, "stream": True})
        assert streamed.status in (200, 504), "before its first token, or behind it"
        assert "deadline" in streamed.body
        live.assert_idle()


def test_a_deadline_of_what_no_engine_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decoding.server.connection.LATER", 0.0)
    model, go_on = sentence_model(tmp_path), threading.Event()
    monkeypatch.setattr(model, "embed", lambda texts: go_on.wait(60))
    with Live({"m": model}, deadline=0.1) as live:
        said = live.ask("/v1/embeddings", {"input": "a"})
        go_on.set()
    assert (said.status, said.json["error"]["code"]) == (504, "deadline")


def test_a_full_queue(model: decoding.Model) -> None:
    engine = decoding.Engine(model, max_requests=1)
    with Live({"m": engine}, max_queue=1, max_queue_seconds=60) as live:
        found = list[Any]()
        body = {**LONG, "n": 1}
        threads = [
            threading.Thread(target=lambda: found.append(live.ask("/v1/completions", body)))
            for _ in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        by_status = {said.status: said for said in found}
        assert set(by_status) == {200, 429}
        refused = by_status[429]
        assert refused.headers["retry-after"] == "1"
        assert refused.json["error"]["code"] == "queue_full"
        assert sum(said.status == 200 for said in found) >= 3, "two run and one waits"
        live.assert_idle()


def test_a_queue_of_those_that_step_alone(model: decoding.Model) -> None:
    """Is full by itself, while others that share steps are answered."""
    with Live({"m": decoding.Engine(model)}, max_queue=1, max_queue_seconds=60) as live:
        statuses = list[int]()
        body = {"prompt": "The", "penalty_alpha": 0.6, "top_k": 8, "max_tokens": 300}

        def ask() -> None:
            statuses.append(live.ask("/v1/completions", body).status)

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        while 429 not in statuses and len(statuses) < len(threads):
            time.sleep(0.001)
        assert live.ask("/v1/completions", {"prompt": "The", "max_tokens": 4}).status == 200
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 429} and statuses.count(200) >= 3
        live.assert_idle()


def test_a_queue_of_encoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two compute, also where their clients have gone, one waits, and others are sent away."""
    model, go_on, computing = sentence_model(tmp_path), threading.Event(), list[Any]()
    embed = model.embed

    def slow(texts: Any) -> Any:
        computing.append(texts)
        go_on.wait(60)
        return embed(texts)

    monkeypatch.setattr(model, "embed", slow)
    body = {"input": ["a"]}
    with Live({"m": model}, max_queue=1, max_queue_seconds=60) as live:
        gone = [raw(live, "/v1/embeddings", body) for _ in range(2)]
        while len(computing) < 2:
            time.sleep(0.001)
        for connection in gone:
            connection.close()
        found = list[Any]()
        thread = threading.Thread(target=lambda: found.append(live.ask("/v1/embeddings", body)))
        thread.start()
        while not live.served("m").waiting:
            time.sleep(0.001)
        said = live.ask("/v1/embeddings", body)
        assert (said.status, said.json["error"]["code"]) == (429, "queue_full")
        go_on.set()
        thread.join()
        assert found[0].status == 200 and len(computing) == 3
        live.assert_idle()


def test_the_gate() -> None:
    """Admits in order, those of a higher priority first, and lets nobody wait for ever."""

    async def main() -> None:
        gate, order = Gate(4, 3, 0.5), list[str]()

        async def enter(name: str, rows: int, priority: int = 0) -> None:
            rows = await gate.enter(rows, priority)
            order.append(name)
            await asyncio.sleep(0.05)
            gate.leave(rows)

        tasks = [asyncio.create_task(enter(*given)) for given in (("a", 3), ("b", 2), ("c", 1))]
        await asyncio.sleep(0)
        assert (order, gate.waiting) == (["a"], 2), "c does not overtake b"
        tasks.append(asyncio.create_task(enter("d", 99, 1)))
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as full:
            gate.check()
        assert (full.value.status, full.value.retry_after) == (429, 1)
        await asyncio.gather(*tasks)
        assert order == ["a", "d", "b", "c"] and gate._free == 4
        rows = await gate.enter(4, 0)
        waiting = asyncio.create_task(enter("gone", 1))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(ApiError, match="has waited 0.5 seconds") as late:
            await enter("late", 1)
        assert (late.value.status, late.value.code) == (503, "queue_age")
        gate.leave(rows)
        assert (gate._free, gate.waiting) == (4, 0)
        await enter("last", 1)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_waiter_that_is_let_in_and_cancelled_at_once_leaves() -> None:
    async def main() -> None:
        gate = Gate(1, 9, 60)
        rows = await gate.enter(1, 0)
        waiting = asyncio.create_task(gate.enter(1, 0))
        await asyncio.sleep(0)
        gate.leave(rows)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert gate._free == 1

    asyncio.run(asyncio.wait_for(main(), 30))


def test_pages_of_others_may_ask_where_they_are_named(model: decoding.Model) -> None:
    engine = decoding.Engine(model)
    with Live({"m": engine}, cors_origins=("https://one.example",)) as live:
        for origin, allowed in (("https://one.example", True), ("https://two.example", False)):
            said = live.ask("/version", Origin=origin)
            assert ("access-control-allow-origin" in said.headers) == allowed
    with Live({"m": decoding.Engine(model)}) as live:
        said = live.ask("/version", Origin="https://one.example")
        assert "access-control-allow-origin" not in said.headers


def test_it_can_be_mounted(live: Live) -> None:
    with TestClient(Starlette(routes=[Mount("/models", live.app)])) as client:
        assert client.get("/models/version").json() == {"version": decoding.__version__}
        assert client.get("/version").status_code == 404
        assert client.get("/models/translate").status_code == 405
    assert live.ask("/translate").status == 405


def test_other_paths(live: Live, guarded: Live, caplog: pytest.LogCaptureFixture) -> None:
    """Are errors of OpenAI's form, lines of the log, and for who has a key alone."""
    with caplog.at_level(logging.INFO, "decoding.server.access"):
        said = live.ask("/v1/chat/complete", {"messages": []})
        while not (lines := answered(caplog, "/v1/chat/complete")):
            time.sleep(0.001)
    assert [line["status"] for line in lines] == [404]
    error = said.json["error"]
    assert (said.status, error["code"]) == (404, "unknown_path")
    assert error["message"] == (
        "there is no path '/v1/chat/complete'; did you mean '/v1/chat/completions'?"
    )
    said = live.ask("/v1/completions")
    assert (said.status, said.headers["allow"]) == (405, "POST")
    assert said.json["error"]["message"] == "/v1/completions takes POST, not GET"
    assert guarded.ask("/nowhere").status == 401


def test_what_a_server_says_of_itself(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    assert live.ask("/health").json == {"status": "ok"}
    assert live.ask("/ready").status == 200
    assert live.ask("/version").json == {"version": decoding.__version__}
    listed = {model["id"]: model for model in live.ask("/v1/models").json["data"]}
    assert listed["demo"]["capabilities"] == ["translate"]
    assert listed["sentences"]["capabilities"] == ["embed"]
    before = metrics(live)
    with caplog.at_level(logging.INFO, "decoding.server.access"):
        body = {"model": "stories", "prompt": "The dog", "max_tokens": 7}
        live.ask("/v1/completions", body)
        list(live.ask("/v1/completions", body | {"stream": True}).events)
        live.ask("/v1/completions", {"promt": 1})
        live.ask("/v1/models/nobody-has-this")
        live.ask("/nobody-has-this")
        until = time.monotonic() + 10  # a line is written once its answer is sent
        while len(lines := answered(caplog)) < 3 and time.monotonic() < until:
            time.sleep(0.001)
    assert [line["status"] for line in lines] == [200, 200, 400]
    assert 0 < lines[0]["seconds"] < 60
    assert (lines[0]["prompt_tokens"], lines[0]["completion_tokens"]) == (4, 7)
    assert lines[1]["finish"] == "length" and "promt" in lines[2]["error"]
    after = metrics(live)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    label = '{model_name="stories"}'
    assert grown[f"decoding:generation_tokens_total{label}"] == 14
    assert grown[f"decoding:prompt_tokens_total{label}"] == 8
    assert grown[f"decoding:prefix_cache_queries_total{label}"] == 6, "the last one is always read"
    assert grown[f"decoding:prefix_cache_hits_total{label}"] == 0, "no page is full"
    assert grown[f"decoding:time_to_first_token_seconds_count{label}"] == 1
    assert grown[f"decoding:request_queue_time_seconds_count{label}"] == 2
    parts = [grown[f"decoding:request_{part}_time_seconds_sum{label}"] for part in PARTS]
    whole = grown[f"decoding:time_to_first_token_seconds_sum{label}"]
    assert 0 < parts[0] < whole and parts[1] >= 0
    assert grown[f"decoding:request_decode_time_seconds_count{label}"] == 1
    assert grown[f"decoding:e2e_request_latency_seconds_count{label}"] == 2
    reasons = '{finished_reason="length",model_name="stories"}'
    assert grown[f"decoding:request_success_total{reasons}"] == 2
    assert after[f"decoding:num_requests_running{label}"] == 0
    assert f"decoding:kv_cache_usage_perc{label}" in after
    assert "nobody-has-this" not in str(after), "clients make no series"


def answered(caplog: pytest.LogCaptureFixture, path: str = "/v1/completions") -> list[Any]:
    """The lines of log about a path."""
    text = "\n".join(record.message for record in caplog.records)
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if line["path"] == path]


def test_what_bodies_ask_for_is_kept() -> None:
    """Not for ever, not for long bodies, and no error of one."""
    kept, made = Kept(), list[Any]()

    def make(fields: Fields) -> int:
        made.append(dict(fields))
        if fields.pop("wrong", None):
            raise ValueError("wrong")
        return len(made)

    assert [kept.once({"a": value}, make) for value in (1, 1, 1.0, True, "1", 1)] == [
        1,
        1,
        2,
        3,
        4,
        1,
    ]
    for _ in range(2):
        with pytest.raises(ApiError, match="wrong"):
            kept.once({"wrong": True}, make)
    assert [kept.once({"a": "b" * LONGEST}, make) for _ in range(2)] == [7, 8]
    for value in range(KEPT):
        kept.once({"b": value}, make)
    assert kept.once({"a": 1}, make) == len(made)


def metrics(live: Live) -> dict[str, float]:
    lines = live.ask("/metrics").body.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}
