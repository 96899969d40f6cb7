"""activation_dtype="int8": encoders and prompts of many rows in int8 on both sides, on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import sacrebleu
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

import decoding
from decoding.common.device import CPU, Device
from decoding.engine.devices import quantizes_activations
from tests.kernels.linear.test_w8a8 import is_hopper
from tests.models.test_demo_model import SENTENCES
from tests.support.demo import DEMO

GPU = Device("cuda", 0)
BATCH, LENGTH = 16, 96
ON_HOPPER = [
    pytest.mark.gpu,
    pytest.mark.skipif(not is_hopper(), reason="needs a GPU of compute capability 9.0"),
]
HALVES = pytest.mark.parametrize(
    "half", [pytest.param(half, marks=ON_HOPPER) for half in ("float16", "bfloat16")]
)


def test_what_it_goes_with() -> None:
    assert not quantizes_activations("auto", GPU, "float16", {})
    assert quantizes_activations("int8", GPU, "int8", {"deterministic=True": False})
    assert quantizes_activations(torch.int8, GPU, "int8", {})
    assert not quantizes_activations("int8", CPU, "int8", {"deterministic=True": True})
    with pytest.raises(ValueError, match='"auto" or "int8", got \'float16\''):
        quantizes_activations("float16", GPU, "int8", {})
    with pytest.raises(ValueError, match='these are float16: pass dtype="int8", too'):
        quantizes_activations("int8", GPU, "float16", {})
    with pytest.raises(ValueError, match="does not go with tensor_parallel: leave one of the two"):
        quantizes_activations("int8", GPU, "int8", {"tensor_parallel": True})
    with pytest.raises(ValueError, match='these are .*float.*: pass dtype="int8", too'):
        decoding.load(DEMO, "cpu", activation_dtype="int8")
    assert decoding.load(DEMO, "cpu", "int8", activation_dtype="int8").translate("Guten Morgen!")


def tokens(vocab: int) -> Tensor:
    return torch.randint(5, vocab, (BATCH, LENGTH), generator=torch.Generator().manual_seed(7))


def both(source: Any, half: str) -> list[decoding.Model]:
    """With int8 weights alone, and W8A8."""
    given: dict[str, Any] = {"dtype": "int8", "kv_cache_dtype": half}
    return [
        decoding.load(source, "cuda", activation_dtype=activations, **given)
        for activations in ("auto", "int8")
    ]


@HALVES
def test_states_of_an_encoder(half: str) -> None:
    """Near transformers', and of a few rows those of weights alone."""
    torch.manual_seed(1)
    config = BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, vocab_size=500)
    bert = BertModel(config, add_pooling_layer=False).eval()
    plain, rounded = both(bert, half)
    plan = rounded.memory_plan(decoding.Limits(batch=BATCH, beams=1, source=LENGTH, target=1))
    assert "encoder.quantized" in {buffer.name for buffer in plan.buffers}
    ids = tokens(config.vocab_size)
    ids[3, 40:] = 0
    mask = ids > 0
    ours, theirs = (model.encode(ids, mask).last_hidden_state for model in (rounded, plain))
    assert not torch.equal(ours, theirs)
    exact = bert(ids, mask.long()).last_hidden_state
    assert F.cosine_similarity(ours.float().cpu()[mask], exact[mask]).min() > 0.995
    few, alike = (model.encode(ids[:2], mask[:2]).last_hidden_state for model in (rounded, plain))
    assert F.cosine_similarity(few.float(), alike.float(), 2).min() > 0.9999


@HALVES
def test_prompts_of_a_gated_model(half: str) -> None:
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
    )
    plain, rounded = both(LlamaForCausalLM(config).eval(), half)
    options: dict[str, Any] = {"max_new_tokens": 2, "output_logits": True}
    ours, theirs = (
        model.generate(tokens(512), return_dict_in_generate=True, **options).logits[0].float()
        for model in (rounded, plain)
    )
    assert not torch.equal(ours, theirs)
    assert F.cosine_similarity(ours, theirs).min() > 0.995


@HALVES
def test_translations_are_as_good(half: str) -> None:
    plain, rounded = both(DEMO, half)
    expected, found = (model.translate(SENTENCES) for model in (plain, rounded))
    assert sacrebleu.corpus_bleu(found, [expected]).score > 95
    decoding.Engine(rounded, 1 << 28).close()
