"""kv_cache_dtype: models that keep their keys and values in bfloat16."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import decoding
from decoding import Limits
from decoding.common.device import Device
from decoding.engine import devices
from tests.support.random_models import load, ours

KEPT = {"k_pages", "v_pages"}
IDS = torch.randint(12, 40, (4, 9), generator=torch.Generator().manual_seed(0))
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"num_beams": 1},
    "beams": {"num_beams": 4, "num_return_sequences": 4},
    "prompt": {"num_beams": 2, "decoder_input_ids": [[1, 20, 21], [1, 30, 33]] * 2},
    "attentions": {"num_beams": 3, "output_attentions": True},
}


def run(model: decoding.Model, ids: torch.Tensor = IDS, **options: Any) -> Any:
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=12,
        min_new_tokens=12,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_the_plan_halves(name: str) -> None:
    limits = Limits(batch=2, beams=64, source=32 * (name == "marian"), prompt=16, target=32)
    exact, narrow = (
        {b.name: b for b in load(name, threads=1, kv_cache_dtype=dtype).memory_plan(limits).buffers}
        for dtype in ("float32", "bfloat16")
    )
    assert exact.keys() == narrow.keys()
    for buffer in exact:
        kept = buffer in KEPT
        assert narrow[buffer].bytes * (1 + kept) == exact[buffer].bytes, buffer
        assert (narrow[buffer].type == "bfloat16") == kept, buffer
    assert sum(narrow[buffer].bytes for buffer in KEPT) > 0


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, options) for name in ("marian", "gpt2") for options in ("greedy", "beams")]
    + [("marian", "prompt"), ("marian", "attentions")],
)
def test_scores_are_near_those_of_float32(name: str, options: str) -> None:
    """The first step is compared: behind another token everything differs. It reads a stored
    source or prompt, so that rounding shows."""
    model = load(name, threads=2, kv_cache_dtype="bfloat16")
    assert model.kv_cache_dtype == torch.bfloat16 and model.dtype == torch.float32
    narrow, exact = (run(m, **OPTIONS[options]) for m in (model, ours(name)))
    a, b = narrow.scores[0], exact.scores[0]
    finite = b.isfinite()
    assert torch.equal(a.isfinite(), finite)
    difference = (a[finite] - b[finite]).abs().max()
    assert 0 < difference < 0.01 * b[finite].abs().max()


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_a_sentence_does_not_depend_on_batch_or_threads(name: str) -> None:
    models = [load(name, threads=n, kv_cache_dtype="bfloat16") for n in (1, 3)]
    together = run(models[1], num_beams=3)
    for i in range(len(IDS)):
        alone = run(models[0], IDS[i : i + 1], num_beams=3)
        assert torch.equal(alone.sequences[0], together.sequences[i])
        assert torch.equal(alone.sequences_scores[0], together.sequences_scores[i])


def test_score_reads_the_same_source() -> None:
    labels = IDS[:, :5]
    narrow, exact = (
        load("marian", threads=1, kv_cache_dtype=dtype).score(IDS, labels).token_logprobs
        for dtype in ("bfloat16", "float32")
    )
    difference = (narrow - exact).abs().max()
    assert 0 < difference < 0.01 * exact.abs().max()


@pytest.mark.parametrize("given", ["auto", "float32", torch.float32])
def test_float32_is_what_there_is_without_asking(given: Any) -> None:
    model = load("gpt2", threads=1, kv_cache_dtype=given)
    assert model.kv_cache_dtype == torch.float32
    assert torch.equal(run(model).sequences, run(ours("gpt2")).sequences)


def test_types_that_there_are_not() -> None:
    with pytest.raises(ValueError, match="one of float32, bfloat16 on the CPU, got 'int8'"):
        load("gpt2", kv_cache_dtype="int8")
    gpu = Device("cuda", 0)
    for name in ("auto", "float16", torch.float16):
        assert devices.choose_kv_cache_dtype(name, gpu, "float16", "float32") == "float16"
    with pytest.raises(ValueError, match="one of float16, fp8 for this model on a GPU, got"):
        devices.choose_kv_cache_dtype("bfloat16", gpu, "float16", "bfloat16")
