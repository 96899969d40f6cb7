"""T5: buckets of distances, what its files say, texts of any length, and float16."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.t5.modeling_t5 import T5Attention

import decoding
from decoding.models import load
from decoding.models.families.t5 import bucket_numbers
from tests.models.test_models import oracle
from tests.support.families import FAMILIES, ragged


@pytest.fixture(scope="module", params=["t5", "t5-1.1"])
def theirs(request: pytest.FixtureRequest) -> Any:
    return FAMILIES[request.param].model(end=1)


@pytest.mark.parametrize(("count", "reach"), [(32, 128), (12, 20), (8, 7), (33, 100)])
@pytest.mark.parametrize("both", [True, False])
def test_buckets(count: int, reach: int, both: bool) -> None:
    found = bucket_numbers(count, reach, both=both)
    distance = torch.arange(-2 * reach, 2 * reach + 1)
    expected = T5Attention._relative_position_bucket(-distance, both, count, reach)
    clamped = found[distance.clamp(-reach, reach) + reach]
    seen = distance >= 0 if not both else distance == distance
    assert clamped[seen].tolist() == expected[seen].tolist()


def test_a_text_longer_than_those_of_training(theirs: Any) -> None:
    ids = torch.randint(3, 60, (1, 700), generator=torch.Generator().manual_seed(3))
    options: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4}
    found = decoding.load(theirs, "cpu", dtype="float32").generate(ids, **options)
    assert found.tolist() == theirs.generate(ids, **options).tolist()


def save(model: Any, folder: Path, **config: Any) -> Any:
    """Writes it with another configuration; None: an option is left out."""
    model.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    written = {name: value for name, value in (written | config).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(written))
    return load(folder)


def test_files_of_before_transformers_5(theirs: Any, tmp_path: Path) -> None:
    """They tell T5 from T5 1.1 by what is tied, and leave out what the first ones had."""
    expected = load(theirs)
    silent = {"scale_decoder_outputs": None, "num_decoder_layers": None}
    with pytest.raises(ValueError, match=r"lacks the tensor decoder\.block\.2"):
        save(theirs, tmp_path / "deeper", **silent)  # as many as the encoder has
    silent.pop("num_decoder_layers")
    tied = bool(theirs.config.scale_decoder_outputs)
    found = save(theirs, tmp_path / "old", **silent, tie_word_embeddings=tied)
    assert found.spec == expected.spec
    assert all(found.state[name].equal(tensor) for name, tensor in expected.state.items())
    assert found.state["output.weight"].equal(found.state["decoder.embed.tokens"]) == tied


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"feed_forward_proj": "mish"}, "feed_forward_proj='mish' is not supported, only relu, "),
        ({"dense_act_fn": "mish"}, "dense_act_fn='mish' is not supported, only relu, "),
        ({"relative_attention_num_buckets": 3}, "=3 and relative_attention_max_distance=7 leave"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder=False is not supported"),
    ],
)
def test_refused_configurations(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = FAMILIES["t5"].model(end=1)
    if "relative_attention_num_buckets" in config:
        for stack in (model.encoder, model.decoder):
            bias = stack.block[0].layer[0].SelfAttention.relative_attention_bias
            bias.weight = torch.nn.Parameter(bias.weight[:3])
    with pytest.raises(ValueError, match=message):
        save(model, tmp_path, **config)


# Float16.


@pytest.fixture(scope="module")
def large(theirs: Any) -> Any:
    """Its residual connections carry more than float16 holds, as those of published models do."""
    model = copy.deepcopy(theirs)
    with torch.no_grad():
        for stack in (model.encoder, model.decoder):
            stack.block[0].layer[-1].DenseReluDense.wo.weight *= 3e4
    states = model.encoder(**ragged(model), output_hidden_states=True).hidden_states
    assert max(state.abs().max() for state in states[:-1]) > 1.5 * torch.finfo(torch.float16).max
    return model


@torch.no_grad()
def test_float16_holds_what_residual_connections_carry(large: Any) -> None:
    """In torch: a tenth of the error of transformers, which clamps."""
    given = ragged(large)
    target = torch.randint(3, 60, (5, 6), generator=torch.Generator().manual_seed(2))

    def ours(model: torch.nn.Module) -> Tensor:
        found: Tensor = model(given["input_ids"], given["attention_mask"].bool(), target)
        return found.float()

    def error(logits: Tensor) -> float:
        return float((logits.float() - exact).abs().max())

    exact = large(**given, decoder_input_ids=target).logits
    half = copy.deepcopy(large).half()(**given, decoder_input_ids=target).logits
    assert error(ours(oracle(load(large)))) < 1e-4 * exact.abs().max()
    assert error(ours(oracle(load(large)).half())) < 0.1 * error(half)


@pytest.mark.gpu
@torch.no_grad()
def test_float16_on_a_gpu(large: Any) -> None:
    given = ragged(large)
    labels = torch.randint(3, 60, (5, 6), generator=torch.Generator().manual_seed(2))
    exact = decoding.load(large, "cpu", dtype="float32").score(**given, labels=labels)
    half = decoding.load(large, "cuda", dtype="float16").score(**given, labels=labels)
    torch.testing.assert_close(half.token_logprobs, exact.token_logprobs, rtol=1e-2, atol=2e-2)
