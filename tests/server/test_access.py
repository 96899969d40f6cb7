"""Who may ask a server, by which paths, and what it says of itself."""

from __future__ import annotations

import http.client
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import deepl
import openai
import pytest
from libretranslatepy import LibreTranslateAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import decoding
from tests.server.live import Live
from tests.server.models import STORIES, engine
from tests.support.demo import DEMO

KEYS = ("one", "two", "schlüssel")
PARTS = ("prefill", "decode")  # of a stream's time
VLLM_NAMES = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "num_preemptions_total",
    "request_success_total",
    "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_bucket",
    "e2e_request_latency_seconds_bucket",
    "request_queue_time_seconds_bucket",
    "request_prefill_time_seconds_bucket",
    "request_decode_time_seconds_bucket",
    "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket",
    "iteration_tokens_total_bucket",
)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Live]:
    with Live({"demo": engine(DEMO), "stories": engine(STORIES)}, api_keys=KEYS) as live:
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


@pytest.mark.parametrize(
    "path, header",
    [
        ("/version", b"bearer two"),
        ("/version", b"DEEPL-AUTH-KEY  two"),
        ("/version", b"two"),
        ("/version", "Bearer schlüssel".encode()),
        ("/version", "Bearer schlüssel".encode("latin-1")),
        ("/version?api_key=two", b"Basic dXNlcjpwYXNz"),
        ("/languages", b"Basic dXNlcjpwYXNz"),
    ],
)
def test_keys_are_found_where_they_are(path: str, header: bytes, guarded: Live) -> None:
    """In any case of the scheme, in any encoding, and beside what a proxy reads."""
    connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=60)
    body = b'{"api_key": "two"}' if path == "/languages" else None
    connection.request("GET", path, body, {"Authorization": header})
    assert connection.getresponse().status == 200
    connection.close()


def test_pages_of_others_may_ask_where_they_are_named() -> None:
    with Live({"m": engine(STORIES)}, cors_origins=("https://one.example",)) as live:
        for origin, allowed in (("https://one.example", True), ("https://two.example", False)):
            said = live.ask("/version", Origin=origin)
            assert ("access-control-allow-origin" in said.headers) == allowed
    with Live({"m": engine(STORIES)}) as live:
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
    # Of both requests: the prompt but for its last token, which the first of 7 steps reads.
    assert grown[f"decoding:iteration_tokens_total_sum{label}"] == 2 * (3 + 7)
    assert grown[f"decoding:iteration_tokens_total_count{label}"] == 2 * 7
    at_most = [f'{{le="{limit}",model_name="stories"}}' for limit in ("1.0", "2.0", "4.0", "+Inf")]
    counts = [grown[f"decoding:iteration_tokens_total_bucket{each}"] for each in at_most]
    assert counts == [12, 12, 14, 14], "the first step of each, with what is read before it"
    reasons = '{finished_reason="length",model_name="stories"}'
    assert grown[f"decoding:request_success_total{reasons}"] == 2
    assert after[f"decoding:num_requests_running{label}"] == 0
    assert f"decoding:kv_cache_usage_perc{label}" in after
    assert "nobody-has-this" not in str(after), "clients make no series"


def test_names_that_dashboards_of_vllm_know(live: Live) -> None:
    """Of vLLM's docs/design/metrics.md."""
    live.ask("/v1/completions", {"model": "stories", "prompt": "The dog", "max_tokens": 2})
    body = {"model": "stories", "prompt": "The dog", "max_tokens": 2, "stream": True}
    list(live.ask("/v1/completions", body).events)
    found = metrics(live)
    for name in VLLM_NAMES:
        series = [each for each in found if each.startswith(f"decoding:{name}{{")]
        assert any('model_name="stories"' in each for each in series), name


def answered(caplog: pytest.LogCaptureFixture, path: str = "/v1/completions") -> list[Any]:
    """The lines of log about a path."""
    text = "\n".join(record.message for record in caplog.records)
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if line["path"] == path]


def metrics(live: Live) -> dict[str, float]:
    lines = live.ask("/metrics").body.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}
