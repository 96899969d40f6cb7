"""What models are made of, each alone: the engine computes what the torch modules compute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import decoding
from decoding.common.device import Device
from decoding.models import Loaded
from decoding.models.spec import ConvolutionSpec, EncoderSpec, ModelSpec, RotarySpec, StackSpec
from decoding.models.torch.module import module
from decoding.models.weights.shapes import all_but_output, shapes

STACK = StackSpec(
    layers=2,
    hidden=24,
    heads=4,
    head_dim=8,
    ffn=40,
    vocab=50,
    positions=32,
    activation="gelu",
    embed_scale=1.0,
    embed_norm=False,
    pre_norm=True,
    final_norm=True,
    eps=1e-5,
    attention_scale=(0.4, 0.3),
)
ROTARY = {"position_table": False, "rotary": RotarySpec(8)}
DECODERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "post-norm": {"pre_norm": False, "final_norm": False},
    "no-positions": {"position_table": False},
    "shared-heads": {"kv_heads": 2},
    "one-head-of-keys": {"kv_heads": 1},
    "rms": {"rms": True, "embed_norm": True},
    "rms-post-norm": {"rms": True, "pre_norm": False},
    "gated": {"gated": True, "activation": "silu"},
    "parallel": {"parallel": True},
    "parallel-shared-norm": {"parallel": True, "shared_norm": True, "gated": True},
    "norms-behind-blocks": {"post_norm": True, "rms": True},
    "rotary": ROTARY,
    "rotary-pairs": {"position_table": False, "rotary": RotarySpec(4, True, 1.3)},
    "rotary-shared-heads": {**ROTARY, "kv_heads": 2},
    "head-norm": {**ROTARY, "head_norm": True, "kv_heads": 2},
    "head-norm-alone": {"head_norm": True},
    "alibi": {"position_table": False, "position_bias": "alibi"},
    "relative": {"position_table": False, "position_bias": "relative", "reach": 4},
    "attention-cap": {"attention_cap": 0.7},
    "window": {**ROTARY, "window": (3, 0)},
    "sizes-by-layer": {"heads": (2, 6), "kv_heads": (1, 3), "ffn": (40, 17)},
    "sizes-by-layer-narrowing": {
        **ROTARY,
        "heads": (4, 2),
        "kv_heads": (4, 1),
        "ffn": (16, 8),
        "gated": True,
        "head_norm": True,
        "window": (3, 0),
    },
    "relative-by-layer": {
        "position_table": False,
        "position_bias": "relative",
        "bias_by_layer": True,
        "reach": 4,
    },
    "all": {
        **ROTARY,
        "rms": True,
        "gated": True,
        "kv_heads": 2,
        "head_norm": True,
        "post_norm": True,
        "attention_cap": 0.7,
        "window": (0, 5),
        "position_bias": "relative",
        "reach": 6,
    },
}
ENCODERS: dict[str, dict[str, Any]] = {
    "rms-gated-relative": {
        "position_table": False,
        "rms": True,
        "gated": True,
        "position_bias": "relative",
        "bias_by_layer": True,
        "reach": 3,
    },
    "rotary-capped": {**ROTARY, "attention_cap": 0.7, "post_norm": True, "head_norm": True},
    "parallel": {"parallel": True, "kv_heads": 2, "position_bias": "alibi"},
    "window": {"window": (2, 3), "parallel": True, "shared_norm": True},
    "sizes-by-layer": {"heads": (2, 5), "ffn": (30, 17)},
    "convolution": {"convolution": ConvolutionSpec((3, 4), gated=False), "pre_norm": False},
    "dynamic-convolution": {
        "convolution": ConvolutionSpec((31, 5), dynamic=True),
        "heads": (4, 3),
        "parallel": True,
    },
}


def made_up(spec: ModelSpec | EncoderSpec, device: str, biases: Any) -> tuple[Any, decoding.Model]:
    """A model of random weights: the torch module, and ours. No weight is left at zero or one."""
    torch.manual_seed(0)
    oracle = module(spec, biases).eval()
    with torch.no_grad():
        for name, tensor in oracle.named_parameters():
            if name.endswith(".rotary"):
                tensor.div_(torch.arange(1, 1 + len(tensor))[:, None])
            else:
                is_gain = name.endswith("norm.weight")
                tensor.copy_(torch.randn(tensor.shape) * (0.3 if tensor.ndim == 1 else 0.5))
                tensor.add_(float(is_gain))
    state = oracle.state_dict()
    loaded = Loaded("MadeUp", spec, state, "float32", {}, {}, None)
    if device == "cpu":
        return oracle, decoding.Model(loaded, threads=1)
    return oracle, decoding.Model(loaded, device=Device(device, 0))


@pytest.mark.parametrize("biases", [all_but_output, lambda name: name.endswith("qkv")])
@pytest.mark.parametrize("case", [*DECODERS, *ENCODERS])
def test_canonical_names_are_those_of_the_modules(case: str, biases: Any) -> None:
    """With their shapes, and in the same order."""
    stack = replace(STACK, **{**DECODERS, **ENCODERS}[case])
    specs: list[ModelSpec | EncoderSpec] = [
        ModelSpec(stack, replace(STACK, hidden=32, convolution=stack.convolution)),
        EncoderSpec(replace(stack, types=2), pooler=True),
    ]
    if stack.convolution is None:
        specs.append(ModelSpec(None, stack))
    for spec in specs:
        state = module(spec, biases).state_dict()
        expected = [(name, tuple(tensor.shape)) for name, tensor in state.items()]
        assert list(shapes(spec, biases).items()) == expected


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.cpu(), theirs, rtol=2e-4, atol=2e-4)


OPTIONS: dict[str, Any] = {
    "max_new_tokens": 8,
    "eos_token_id": None,
    "pad_token_id": 0,
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
}
PROMPTS = [[7, 3, 9, 11, 5, 2, 8], [4, 6, 1], [10]]


@pytest.mark.parametrize("case", DECODERS)
@torch.no_grad()
def test_a_decoder_computes_what_torch_computes(case: str, device: str) -> None:
    """Logits of each step behind ragged prompts; scores of beams; log-probabilities of labels."""
    cap = 3.0 if case in ("attention-cap", "all") else 0.0
    spec = ModelSpec(None, replace(STACK, **DECODERS[case]), logits_cap=cap)
    oracle, model = made_up(spec, device, lambda name: case == "plain" or name.endswith("qkv"))
    found = model.generate(PROMPTS, **OPTIONS)
    rows = unpadded(found.sequences)
    for i, row in enumerate(rows):
        logits = oracle(torch.tensor([row]))[0, len(PROMPTS[i]) - 1 : -1]
        assert logits.std() > 0.5, "too flat to tell models apart"
        assert_close(torch.stack([step[i] for step in found.logits]), logits)

    best = model.generate(PROMPTS, **OPTIONS, num_beams=3, num_return_sequences=3)
    rows = unpadded(best.sequences, 3)
    expected = [logprobs(oracle, row)[len(PROMPTS[i // 3]) - 1 :] for i, row in enumerate(rows)]
    assert_close(best.sequences_scores, torch.stack(expected).mean(1))

    labelled = model.score(rows)
    for row, numbers in zip(rows, labelled.token_logprobs, strict=True):
        assert_close(numbers[1 : len(row)], logprobs(oracle, row))


@torch.no_grad()
def test_longer_rows_turn_by_other_tables(device: str) -> None:
    """A prompt as long as it is, and labels with the row that they end."""
    rotary = RotarySpec(8, tables=3, original=4)
    spec = ModelSpec(None, replace(STACK, position_table=False, rotary=rotary))
    oracle, model = made_up(spec, device, lambda name: name.endswith("qkv"))
    row = [7, 3, 9, 11, 5, 2, 8, 1]
    for length in range(1, 9):
        found = model.generate([row[:length]], **OPTIONS | {"max_new_tokens": 1})
        assert_close(found.logits[0], oracle(torch.tensor([row[:length]]))[:, -1])
    rows = [row[:length] for length in (8, 3, 5, 4, 6)]
    scored = model.score(rows)
    for given, numbers in zip(rows, scored.token_logprobs, strict=True):
        assert_close(numbers[1 : len(given)], logprobs(oracle, given))


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["rotary-shared-heads", "rotary-pairs", "head-norm", "gated"])
def test_a_step_has_no_kernels_more(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries and keys turn in attention, and products of few rows take the gate along."""
    monkeypatch.setenv("DECODING_TUNE", "0")  # else the gate stands apart where that was faster

    def nodes(case: str) -> int:
        spec = ModelSpec(None, replace(STACK, **DECODERS[case]))
        _, model = made_up(spec, "cuda", lambda name: False)
        model.generate(PROMPTS, max_new_tokens=8, eos_token_id=None, pad_token_id=0)
        return model.graph_nodes

    assert nodes(case) == nodes("plain") > 0


def unpadded(sequences: Tensor, copies: int = 1) -> list[list[int]]:
    """Each prompt and what was generated behind it."""
    width = max(map(len, PROMPTS))
    return [PROMPTS[i // copies] + row[width:] for i, row in enumerate(sequences.tolist())]


def logprobs(oracle: Any, row: list[int]) -> Tensor:
    """[len(row) - 1], of each token behind those before it."""
    found = oracle(torch.tensor([row]))[0, :-1].log_softmax(-1)
    picked: Tensor = found.gather(1, torch.tensor(row)[1:, None])[:, 0]
    return picked


@pytest.mark.parametrize("case", ENCODERS)
@torch.no_grad()
def test_an_encoder_decoder_computes_what_torch_computes(case: str, device: str) -> None:
    """Log-probabilities of labels behind ragged sources, and the scores of beams."""
    encoder = replace(STACK, **ENCODERS[case])
    decoder = replace(encoder, kv_heads=0, parallel=False, shared_norm=False)
    spec = ModelSpec(encoder, decoder, logits_cap=3.0)
    oracle, model = made_up(spec, device, lambda name: name.endswith("qkv"))
    start: dict[str, Any] = {"decoder_start_token_id": 1}
    best = model.generate(PROMPTS, **OPTIONS, **start, num_beams=3)
    expected = []
    for source, row in zip(PROMPTS, best.sequences, strict=True):
        ids, target = torch.tensor([source]), row[None].cpu()
        logits = oracle(ids, torch.ones_like(ids).bool(), target[:, :-1])
        picked = logits.log_softmax(-1).gather(2, target[:, 1:, None])
        expected.append(picked[0, :, 0])
    assert_close(best.sequences_scores, torch.stack(expected).mean(1))


ALONE: dict[str, dict[str, Any]] = {
    "post-norm-types": {"pre_norm": False, "embed_norm": True, "final_norm": False, "types": 2},
    "rotary-window": {**ROTARY, "window": (3, 0), "gated": True, "kv_heads": 2},
    "convolution": {"convolution": ConvolutionSpec((2, 7)), "post_norm": True, "rms": True},
}


@pytest.mark.parametrize("case", ALONE)
@torch.no_grad()
def test_an_encoder_alone_computes_what_torch_computes(case: str, device: str) -> None:
    spec = EncoderSpec(replace(STACK, **ALONE[case]), pooler=case == "post-norm-types")
    oracle, model = made_up(spec, device, lambda name: name == "pooler" or name.endswith("qkv"))
    given = torch.arange(7).expand(3, 7) < torch.tensor([[7], [3], [1]])
    types = torch.randint(spec.encoder.types, given.shape)
    found = model.encode(PROMPTS, token_type_ids=types)
    ids = torch.tensor([row + [49] * (7 - len(row)) for row in PROMPTS])
    states, pooled = oracle(ids, given, types if spec.encoder.types > 1 else None)
    assert_close(found.last_hidden_state, states * given[..., None])
    if pooled is None:
        assert found.pooler_output is None
    else:
        assert found.pooler_output is not None
        assert_close(found.pooler_output, pooled)


def test_distances_in_a_source_have_no_gaps() -> None:
    """Keys are found by their place among a row's tokens; without gaps that is their distance."""
    stack = replace(STACK, position_table=False, position_bias="alibi")
    _, model = made_up(EncoderSpec(stack), "cpu", lambda name: False)
    with pytest.raises(decoding.Error, match="only its ends may be masked"):
        model.encode([[1, 2, 3]], [[1, 0, 1]])
    padded = model.encode([[9, 2, 3]], [[0, 1, 1]]).last_hidden_state
    assert torch.equal(padded[:, 1:], model.encode([[2, 3]]).last_hidden_state)
