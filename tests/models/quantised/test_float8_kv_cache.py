"""kv_cache_dtype="fp8": models on a GPU that keep their keys and values in e4m3."""

from __future__ import annotations

from typing import Any

import pytest
import sacrebleu
import torch

import decoding
from decoding.common.device import CPU, Device
from decoding.engine import devices
from decoding.engine.devices import FP8
from tests.engine.test_kv_cache import IDS, KEPT, OPTIONS, run
from tests.models.test_demo_model import SENTENCES
from tests.serving.engines import FULL, assert_same, tight_engine
from tests.serving.test_deterministic import SEARCHES, texts
from tests.support.calls import ragged
from tests.support.demo import DEMO
from tests.support.families import FAMILIES
from tests.support.random_models import load

GPU = Device("cuda", 0)
SCALES = {"k_scales", "v_scales"}
HALVES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


def test_types_beside_it() -> None:
    def chosen(given: Any, dtype: str, device: Device = GPU) -> str:
        return devices.choose_kv_cache_dtype(given, device, dtype, "float32")

    for dtype in ("float16", "bfloat16", "int8"):
        for name in ("fp8", "fp8_e4m3", torch.float8_e4m3fn):
            assert chosen(name, dtype) == FP8
    with pytest.raises(ValueError, match='these are float32: pass dtype="bfloat16"'):
        chosen("fp8", "float32")
    with pytest.raises(NotImplementedError, match='is for GPUs: on the CPU pass "bfloat16"'):
        chosen("fp8", "float32", CPU)
    with pytest.raises(ValueError, match="one of float16, fp8 for this model on a GPU"):
        chosen("fp16x", "float16")


def test_the_half_beside_int8() -> None:
    found = [devices.choose_half(FP8, stored) for stored in ("float32", "bfloat16", "int8")]
    assert found == ["float16", "bfloat16", "bfloat16"]
    assert devices.choose_half("bfloat16", "float32") == "bfloat16"


def test_a_cpu_says_what_to_do() -> None:
    with pytest.raises(NotImplementedError, match='pass "bfloat16"'):
        load("gpt2", kv_cache_dtype="fp8")


def narrow(name: str, **options: Any) -> Any:
    return load(name, "cuda", **{"dtype": "float16", "kv_cache_dtype": "fp8", **options})


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_the_plan_halves(name: str) -> None:
    limits = decoding.Limits(
        batch=2, beams=64, source=32 * (name == "marian"), prompt=16, target=32
    )
    model = narrow(name)
    assert model.kv_cache_dtype == torch.float8_e4m3fn and model.dtype == torch.float16
    wide, ours = load(name, "cuda", dtype="float16").memory_plan(limits), model.memory_plan(limits)
    exact, buffers = ({b.name: b for b in plan.buffers} for plan in (wide, ours))
    assert buffers.keys() == exact.keys() | SCALES
    for buffer in exact:
        kept = buffer in KEPT
        assert buffers[buffer].bytes * (1 + kept) == exact[buffer].bytes, buffer
        assert (buffers[buffer].type == FP8) == kept, buffer
    dim = buffers["k_pages"].shape[3]
    for buffer in SCALES:
        assert buffers[buffer].bytes * dim == 4 * buffers["k_pages"].bytes
    assert ours.page_bytes * 2 * dim == wide.page_bytes * (dim + 4)
    assert ours.parts()["keys and values"] < wide.parts()["keys and values"]


@pytest.mark.gpu
def test_an_engine_has_more_pages() -> None:
    engines = [decoding.Engine(load("gpt2-large", "cuda", dtype="float16"), memory=1 << 28)]
    engines.append(decoding.Engine(narrow("gpt2-large"), memory=1 << 28))
    pages = [engine.stats()["pages_total"] for engine in engines]
    for engine in engines:
        engine.close()
    assert pages[1] > 1.3 * pages[0]


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize(
    ("name", "options"),
    [(name, options) for name in ("marian", "gpt2") for options in ("greedy", "beams")]
    + [("marian", "prompt"), ("marian", "attentions")],
)
def test_scores_are_near_those_of_16_bits(name: str, options: str, dtype: str) -> None:
    """The first step is compared, which reads a stored source or prompt: behind another token
    everything differs."""
    models = narrow(name, dtype=dtype), load(name, "cuda", dtype=dtype)
    ours, exact = (run(model, **OPTIONS[options]) for model in models)
    a, b = ours.scores[0].float(), exact.scores[0].float()
    finite = b.isfinite()
    assert torch.equal(a.isfinite(), finite)
    difference = (a[finite] - b[finite]).abs().max()
    assert 0 < difference < 0.2 * b[finite].abs().max()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "bloom", "gptj", "bart"])
def test_families(name: str) -> None:
    """Shared heads, biases, windows, rotary positions: the log-probabilities of a text's tokens one
    after the other are near those of 16 bits."""
    theirs = FAMILIES[name].model()
    given: dict[str, Any] = {"max_new_tokens": 12, "min_new_tokens": 12, "num_beams": 2, **FULL}
    ids = [[7, 9, 11, 6, 8, 5] * 5, [5, 6]]
    models = [
        decoding.load(theirs, "cuda", "float16", kv_cache_dtype=kept) for kept in ("fp8", "auto")
    ]
    ours, exact = (model.generate(ids, **given).sequences_scores for model in models)
    assert (ours - exact).abs().max() < 0.2 * exact.abs().max() + 0.1


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize("name", ["marian-large", "gpt2-large"])
def test_a_request_does_not_depend_on_its_neighbours(name: str, dtype: str) -> None:
    """generate(), alone and in a batch, and an engine give the same bits."""
    model = narrow(name, dtype=dtype, deterministic=True)
    asked = [(ids, SEARCHES[i % len(SEARCHES)]) for i, ids in enumerate(texts(10, seed=1))]
    with decoding.Engine(model, memory=1 << 30) as engine:
        requests = [
            engine.submit(ids, max_new_tokens=20, **FULL, **options) for ids, options in asked
        ]
        among = [request.result() for request in requests]
    for (ids, options), found in zip(asked, among, strict=True):
        assert_same(found, model.generate([ids], max_new_tokens=20, **FULL, **options))
    together = model.generate([ids for ids, _ in asked], num_beams=3, max_new_tokens=20, **FULL)
    longest = 0 if model.spec.encoder else max(len(ids) for ids, _ in asked)
    for i, (ids, _) in enumerate(asked):
        alone = model.generate([ids], num_beams=3, max_new_tokens=20, **FULL)
        new = alone.sequences[0, len(ids) if longest else 0 :]
        assert torch.equal(together.sequences[i, longest:][: len(new)], new)
        assert torch.equal(alone.sequences_scores[0], together.sequences_scores[i])


@pytest.mark.gpu
def test_parts_of_a_prompt_are_as_the_whole() -> None:
    """An engine reads a long one in parts, and finds it in its prefix cache."""
    model = narrow("gpt2-large", deterministic=True)
    prompt = [5 + i % 1000 for i in range(60)]
    expected = model.generate([prompt], max_new_tokens=20, **FULL)
    with decoding.Engine(model, memory=1 << 30) as engine:
        for _ in range(2):
            found = engine.submit(prompt, max_new_tokens=20, **FULL).result()
            assert_same(found, expected)
        assert engine.stats()["prefix_hits"] > 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["marian-long", "gpt2-long"])
def test_requests_are_swapped_out_and_back(name: str) -> None:
    model = narrow(name, deterministic=True)
    long: dict[str, Any] = {"eos_token_id": None, "max_new_tokens": 100, **FULL}
    asked = [[12 + (7 * i + j) % 40 for j in range(3 + i % 5)] for i in range(12)]
    expected = [model.generate([ids], num_beams=3, **long) for ids in asked]
    with tight_engine(model, 48, 40, overcommit=True) as engine:
        requests = [engine.submit(ids, num_beams=3, **long) for ids in asked]
        for request, alone in zip(requests, expected, strict=True):
            assert_same(request.result(120), alone)
        stats = engine.stats()
        assert stats["swaps"] > 0 and stats["swapped_bytes"] > 0


@pytest.mark.gpu
def test_beside_int8() -> None:
    model = narrow("gpt2", dtype="int8")
    assert model.dtype == torch.int8 and model.kv_cache_dtype == torch.float8_e4m3fn
    assert model.generate(IDS, max_new_tokens=5).shape == (len(IDS), IDS.shape[1] + 5)
    assert model.generate(**ragged("gpt2", 5), max_new_tokens=5, num_beams=3).shape[0] == 5


@pytest.mark.gpu
@HALVES
def test_translations_are_as_good(dtype: str) -> None:
    """BLEU with the translations of 16 bits as references."""
    exact = decoding.load(DEMO, "cuda", dtype).translate(SENTENCES)
    ours = decoding.load(DEMO, "cuda", dtype, kv_cache_dtype="fp8").translate(SENTENCES)
    assert sacrebleu.corpus_bleu(ours, [exact]).score > 90


@pytest.mark.gpu
def test_models_that_it_does_not_suit() -> None:
    with pytest.raises(decoding.Error, match="a multiple of 8, this model's have 12"):
        decoding.load(FAMILIES["t5-1.1"].model(), "cuda", "float16", kv_cache_dtype="fp8")
