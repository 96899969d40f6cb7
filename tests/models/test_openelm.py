"""OpenELM, whose layers have sizes of their own. Its code is not part of transformers: what it
computes is written down here once more, from the paper and the names in its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

import decoding
from decoding.models import load
from tests.support.random_models import spec_of

CONFIG: dict[str, Any] = {
    "architectures": ["OpenELMForCausalLM"],
    "model_type": "openelm",
    "vocab_size": 60,
    "model_dim": 32,
    "head_dim": 8,
    "num_transformer_layers": 3,
    "num_query_heads": [2, 4, 6],
    "num_kv_heads": [1, 2, 2],
    "ffn_multipliers": [0.35, 1.15, 1.9],
    "ffn_dim_divisor": 8,
    "max_context_length": 48,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WIDTHS = [16, 40, 64]  # of 11.2, which 8 is too far below, 36.8 and 60.8
State = dict[str, Tensor]


def weights() -> State:
    """As in a file, for CONFIG; large enough that rows differ."""
    generator = torch.Generator().manual_seed(0)

    def made(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.4

    def gain(size: int) -> Tensor:
        return 1 + made(size)

    state = {
        "transformer.token_embeddings.weight": made(60, 32),
        "transformer.norm.weight": gain(32),
    }
    sizes = zip(CONFIG["num_query_heads"], CONFIG["num_kv_heads"], WIDTHS, strict=True)
    for i, (heads, kv_heads, ffn) in enumerate(sizes):
        layer = f"transformer.layers.{i}."
        state |= {
            layer + "attn_norm.weight": gain(32),
            layer + "attn.qkv_proj.weight": made((heads + 2 * kv_heads) * 8, 32),
            layer + "attn.q_norm.weight": gain(8),
            layer + "attn.k_norm.weight": gain(8),
            layer + "attn.out_proj.weight": made(32, heads * 8),
            layer + "ffn_norm.weight": gain(32),
            layer + "ffn.proj_1.weight": made(2 * ffn, 32),
            layer + "ffn.proj_2.weight": made(32, ffn),
        }
    return state


def write(folder: Path, state: State, **changes: Any) -> Path:
    config = {name: value for name, value in (CONFIG | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(state, folder / "model.safetensors")
    return folder


def normed(x: Tensor, gain: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * gain


def rotated(x: Tensor) -> Tensor:
    """x: [T, heads, 8]; number i of a head turns with number i + 4."""
    angle = torch.arange(len(x))[:, None, None] * 10000.0 ** (-torch.arange(4) / 4)
    turn = torch.polar(torch.ones_like(angle), angle)
    y = torch.complex(x[..., :4], x[..., 4:]) * turn
    return torch.cat([y.real, y.imag], -1)


def logits_of(state: State, ids: list[int]) -> Tensor:
    """[T, V]"""
    table = state["transformer.token_embeddings.weight"]
    x = table[ids]
    for i in range(3):
        heads, kv_heads = CONFIG["num_query_heads"][i], CONFIG["num_kv_heads"][i]
        layer = {
            name.removeprefix(f"transformer.layers.{i}."): weight for name, weight in state.items()
        }
        y = normed(x, layer["attn_norm.weight"]) @ layer["attn.qkv_proj.weight"].T
        q, k, v = y.view(len(ids), -1, 8).split([heads, kv_heads, kv_heads], 1)
        q = rotated(normed(q, layer["attn.q_norm.weight"]))
        k = rotated(normed(k, layer["attn.k_norm.weight"]))
        mixed = []
        for head in range(heads):
            shared = head * kv_heads // heads
            scores = q[:, head] @ k[:, shared].T / 8**0.5
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
            mixed.append(scores.softmax(-1) @ v[:, shared])
        x = x + torch.cat(mixed, -1) @ layer["attn.out_proj.weight"].T
        gate, up = (normed(x, layer["ffn_norm.weight"]) @ layer["ffn.proj_1.weight"].T).chunk(2, -1)
        x = x + (F.silu(gate) * up) @ layer["ffn.proj_2.weight"].T
    return normed(x, state["transformer.norm.weight"]) @ table.T


PROMPTS = [[7, 3, 9, 11, 5, 2, 8], [4, 6, 1], [10]]


def test_tokens_and_scores(tmp_path: Path, device: str) -> None:
    state = weights()
    model = decoding.load(write(tmp_path, state), device, dtype="float32")
    options: dict[str, Any] = {"max_new_tokens": 12, "eos_token_id": None, "pad_token_id": 0}
    found = model.generate(PROMPTS, **options)
    for prompt, new in zip(PROMPTS, found[:, 7:].tolist(), strict=True):
        best = logits_of(state, prompt + new).argmax(-1)
        assert best[len(prompt) - 1 : -1].tolist() == new

    options |= {"num_beams": 4, "return_dict_in_generate": True, "output_scores": True}
    beams = model.generate(PROMPTS, **options)
    for i, (prompt, new) in enumerate(zip(PROMPTS, beams.sequences[:, 7:].tolist(), strict=True)):
        logprobs = logits_of(state, prompt + new).log_softmax(-1)[len(prompt) - 1 : -1]
        mean = logprobs.gather(1, torch.tensor(new)[:, None]).mean()
        assert float(beams.sequences_scores[i]) == pytest.approx(float(mean), abs=1e-4)
    assert model.score([PROMPTS[0]]).token_logprobs.isfinite().any()


def test_the_torch_text_computes_the_same(tmp_path: Path) -> None:
    from tests.models.test_models import oracle

    state = weights()
    ours = oracle(load(write(tmp_path, state)))
    with torch.no_grad():
        logits = ours(torch.tensor([PROMPTS[0]]))[0]
    torch.testing.assert_close(logits, logits_of(state, PROMPTS[0]), rtol=1e-4, atol=1e-4)


def test_numbers_of_the_specification(tmp_path: Path) -> None:
    decoder = spec_of(load(write(tmp_path, weights()))).decoder
    assert (decoder.heads, decoder.kv_heads) == ((2, 4, 6), (1, 2, 2))
    assert decoder.ffn == tuple(WIDTHS) and decoder.positions == 48


def test_memory_is_planned_for_each_layers_own_heads(tmp_path: Path) -> None:
    """Keys of 5 heads in all, not of three times the most."""
    model = decoding.load(write(tmp_path, weights()), "cpu")
    limits = decoding.Limits(batch=2, beams=3, prompt=4, target=5)
    shapes = {buffer.name: buffer.shape for buffer in model.memory_plan(limits).buffers}
    assert shapes["k_pages"] == [5, 4, 16, 8]  # a page of each prompt, and one of its own


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_query_heads": None}, "set num_query_heads to 3 numbers, got None"),
        ({"num_kv_heads": [1, 2]}, r"set num_kv_heads to 3 numbers, got \[1, 2\]"),
        ({"num_kv_heads": [1, 3, 2]}, r"qkv_proj.weight must have the shape \[80, 32\]"),
        ({"ffn_multipliers": 2.0}, "set ffn_multipliers to 3 numbers, got 2.0"),
        ({"ffn_multipliers": [0.35, 1.15, 2.5]}, r"proj_1.weight must have the shape \[160, 32\]"),
        ({"normalization_layer_name": "layer_norm"}, "normalization_layer_name='layer_norm'"),
        ({"activation_fn_name": "mish"}, "activation_fn_name='mish'"),
        ({"share_input_output_layers": False}, "lacks the tensor lm_head.weight"),
        ({"normalize_qk_projections": False}, "unexpected tensors.*q_norm.weight"),
        ({"ffn_with_glu": False}, r"proj_1.weight must have the shape \[16, 32\]"),
    ],
)
def test_refused_configurations(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load(write(tmp_path, weights(), **changes))
