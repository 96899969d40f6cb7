"""Providers of the benchmarks of serving, on tiny models."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import urllib.request
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import pytest
import torch

import decoding
from benchmarks.online import PROVIDERS, process
from benchmarks.online.base import Job, Reply
from benchmarks.online.client import measure, settle
from benchmarks.online.http import PORT
from benchmarks.online.libretranslate import BEAMS
from benchmarks.online.ours import Ours
from decoding.compare.engines import Settings
from decoding.compare.engines.conversion import convert
from tests.support import checkpoints
from tests.support.demo import DEMO
from tests.support.step_provider import plan

JOBS = [Job([3, 4, 5], 4), Job([6, 7], 2), Job([8, 9, 3, 4], 3)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    found = {}
    for family, make in checkpoints.FAMILIES.items():
        make(max_position_embeddings=32, n_positions=32).save_pretrained(folder / family)
        found[family] = folder / family
    return found


@pytest.mark.parametrize(
    ("name", "family", "beams"),
    [
        ("ours-static", "marian", 2),
        ("ours-static", "gpt2", 1),
        ("ctranslate2", "marian", 1),
        ("ctranslate2", "marian", 2),
        ("ctranslate2", "gpt2", 1),
        ("huggingface", "gpt2", 1),
    ],
)
def test_providers_give_each_request_its_tokens(
    models: dict[str, Path], name: str, family: str, beams: int
) -> None:
    process.load(name, models[family], Settings("cpu", "float32", 1), None)
    lengths = [3, 3, 3] if beams > 1 and name == "ctranslate2" else [4, 1, 3]
    jobs = [Job(job.ids, new, beams) for job, new in zip(JOBS, lengths, strict=True)]
    assert PROVIDERS[name].serves(jobs[0], has_encoder=family == "marian")
    try:
        found = process.call(measure, (jobs, plan(math.inf, patience=20)))
        assert (found.requests, found.unanswered) == (3, 0)
        assert found.tokens == pytest.approx(found.served * sum(lengths) / 3)
        found = process.call(measure, (jobs, plan(30, patience=20)))
        assert found.requests > 0 and found.unanswered == 0
        assert math.isfinite(found.itl_p50) == (name != "ours-static" and beams == 1)
    finally:
        process.close()


class FakeRequest:
    """As decoding.Engine.submit() returns: [tokens] as they come, or the whole result."""

    def __init__(self, given: list[int], options: dict[str, Any]) -> None:
        self.given, self.options, self.cancelled = given, options, False

    async def __aiter__(self) -> AsyncIterator[list[list[int]]]:
        for token in range(self.options["max_new_tokens"]):
            await asyncio.sleep(0.001)
            if self.cancelled:
                raise RuntimeError("cancelled")
            yield [[token]]

    def __await__(self) -> Generator[Any, None, torch.Tensor]:
        yield from asyncio.sleep(0.001).__await__()
        new = self.options["max_new_tokens"]
        return torch.tensor([[*self.given, *[2] * new, *[0] * 5]])

    def cancel(self) -> None:
        self.cancelled = True


class FakeEngine:
    def __init__(self, model: Any, max_requests: int | None, prefix_caching: bool) -> None:
        self.calls: list[dict[str, Any]] = []

    def submit(self, ids: list[int], **options: Any) -> FakeRequest:
        self.calls.append(options)
        return FakeRequest(ids, options)

    def close(self, drain: bool = True) -> None:
        assert not drain


def test_ours_reads_streams_and_results(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "Engine", FakeEngine, raising=False)
    process.load("ours", models["gpt2"], Settings("cpu", "float32", 1), None)
    provider = process._provider
    assert isinstance(provider, Ours)
    jobs = [*JOBS, Job([3], 4, sample=True)]
    found = process.call(measure, (jobs, plan(math.inf)))
    assert (found.requests, found.unanswered) == (4, 0)
    assert found.tokens == pytest.approx(found.served * 13 / 4)
    found = process.call(measure, (jobs, plan(100)))
    assert found.unanswered == 0 and found.itl_p50 > 0
    endless = Reply(Job([3], 10**6))
    provider.submit(endless, stream=True)
    settle(provider, JOBS[0])
    assert endless.done.wait(5) and "cancelled" in endless.error
    assert not provider.requests
    process.close()
    server: Any = provider.server
    calls: list[dict[str, Any]] = server.calls
    assert {call["eos_token_id"] for call in calls} == {-1}
    assert any(call.get("do_sample") for call in calls)


@pytest.mark.parametrize("name", ["ours-http", "ctranslate2-http"])
def test_servers(name: str) -> None:
    """Texts in, texts out; the tokens are those of our model's own translation."""
    model = decoding.load(DEMO, device="cpu", dtype="float32", threads=1)
    texts = ["Guten Morgen!", "Danke!"]
    jobs = [Job(model.tokenizer.encode(text), 64, 2, ends=True) for text in texts]
    process.load(name, DEMO, Settings("cpu", "float32", 1), None)
    try:
        provider: Any = process._provider
        assert provider.serves(jobs[0], True) and not provider.serves(jobs[0], False)
        replies = [Reply(job) for job in jobs]
        for reply in replies:
            provider.submit(reply, stream=False)
        for reply, text in zip(replies, texts, strict=True):
            assert reply.done.wait(60) and not reply.error
            ids = model.tokenizer.encode_target(model.translate(text, num_beams=2))
            assert reply.tokens == len(ids)
    finally:
        process.close()
    assert provider.server.returncode is not None


@pytest.mark.skipif(shutil.which("libretranslate") is None, reason="libretranslate is not in PATH")
def test_libretranslate_translates_as_ctranslate2(tmp_path: Path) -> None:
    """With Argos Translate's options."""
    import ctranslate2
    import sentencepiece

    convert(DEMO, tmp_path / "model", "float32", numbered=False)
    translator = ctranslate2.Translator(str(tmp_path / "model"))
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(DEMO / "source.spm"))
    process.load("libretranslate-http", DEMO, Settings("cpu", "float32", 1), None)
    try:
        for line in (DEMO / "sentences.de.txt").read_text().splitlines():
            body = json.dumps({"q": line, "source": "de", "target": "en"}).encode()
            head = {"Content-Type": "application/json"}
            asked = urllib.request.Request(f"http://127.0.0.1:{PORT}/translate", body, head)
            with urllib.request.urlopen(asked) as found:
                said = json.load(found)["translatedText"]
            row = [*pieces.encode(line, out_type=str), "</s>"]
            [best] = translator.translate_batch([row], beam_size=BEAMS, length_penalty=0.2)
            assert said == pieces.decode(best.hypotheses[0])
    finally:
        process.close()
