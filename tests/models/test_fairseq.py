"""fairseq's checkpoints: options as its versions have stored them, names of other times."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from decoding.models import load
from tests.support import toolkits
from tests.support.random_models import spec_of
from tests.support.toolkits import FAIRSEQ, assert_same


@pytest.fixture(scope="module")
def fairseq(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A model, and what its file of options as `args` is loaded as."""
    model = toolkits.fairseq_model(FAIRSEQ["pre-norm"])
    path = toolkits.write_fairseq(tmp_path_factory.mktemp("fairseq") / "model.pt", model)
    return model, load(path)


def test_fairseq_options_in_groups(fairseq: tuple[Any, Any], tmp_path: Path) -> None:
    """`cfg` as fairseq-train writes it from version 0.10 on, and as fairseq-hydra-train does."""
    model, expected = fairseq
    options = toolkits.fairseq_options(model)
    task = {"_name": options["task"], "source_lang": "de", "target_lang": "en"}
    groups: dict[str, Any] = {"_name": "transformer"}
    for name, value in options.items():
        side, _, rest = name.partition("_")
        if side in ("encoder", "decoder"):
            groups.setdefault(side, {})[rest] = value
        else:
            groups[name] = value
    del groups["arch"]
    bpe = {"_name": "sentencepiece", "sentencepiece_model": "/data/spm.model"}
    for group in (Namespace(**options), groups):
        state = toolkits.fairseq_state(model)
        cfg = {"model": group, "task": task, "bpe": bpe, "tokenizer": None}
        content: dict[str, Any] = {"args": None, "cfg": cfg, "model": state}
        content["optimizer_history"] = []
        torch.save(content, tmp_path / "model.pt")
        loaded = load(tmp_path)
        assert_same(loaded, expected)
        assert loaded.config["bpe"] == "sentencepiece" and loaded.config["tokenizer"] is None
        assert loaded.config["sentencepiece_model"] == "/data/spm.model"
        assert loaded.config["source_lang"] == "de" and loaded.config["task"] == "translation"


def test_fairseq_names_of_2018(fairseq: tuple[Any, Any], tmp_path: Path) -> None:
    """Fused projections, numbered norms, no output where it is tied, versions and no last norm."""
    model, expected = fairseq
    norms = {"encoder": ["self_attn", "final"], "decoder": ["self_attn", "encoder_attn", "final"]}
    old = {}
    for name, tensor in toolkits.fairseq_state(model).items():
        for side, kinds in norms.items():
            for number, kind in enumerate(kinds):
                if name.startswith(side):
                    name = name.replace(f".{kind}_layer_norm.", f".layer_norms.{number}.")
        old[name] = tensor
    for name in [name for name in old if ".q_proj." in name]:
        attention, _, kind = name.partition(".q_proj.")
        parts = [old.pop(f"{attention}.{part}_proj.{kind}") for part in "qkv"]
        old[f"{attention}.in_proj_{kind}"] = torch.cat(parts)
    del old["decoder.output_projection.weight"]
    loaded = load(toolkits.write_fairseq(tmp_path / "model.pt", model, old))
    assert_same(loaded, expected)
    for side in norms:
        for kind in ("weight", "bias"):
            del old[f"{side}.layer_norm.{kind}"]
    spec = spec_of(load(toolkits.write_fairseq(tmp_path / "model.pt", model, old)))
    assert not spec.decoder.final_norm and spec.encoder and not spec.encoder.final_norm
    old["decoder.embed_out"] = torch.ones_like(old["decoder.embed_tokens.weight"])
    untied = load(
        toolkits.write_fairseq(tmp_path / "model.pt", model, old, share_all_embeddings=False)
    )
    assert torch.equal(untied.state["output.weight"], old["decoder.embed_out"])


def test_fairseq_copies_of_version_0_12_are_ignored(
    fairseq: tuple[Any, Any], tmp_path: Path
) -> None:
    model, expected = fairseq
    state = toolkits.fairseq_state(model)
    for part in ("in_proj", "out_proj", "fc1", "fc2"):
        state[f"encoder.layers.0.{part}_weight"] = torch.zeros(2, 2)
    assert_same(load(toolkits.write_fairseq(tmp_path / "model.pt", model, state)), expected)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"arch": "bart_large"}, "arch='bart_large' is not supported"),
        ({"arch": "transformer_lm_gpt"}, "arch='transformer_lm_gpt' is not supported"),
        ({"arch": None}, "arch='None' is not supported"),
        ({"task": "multilingual_translation"}, "task='multilingual_translation'"),
        ({"cross_self_attention": True}, "cross_self_attention=True"),
        ({"no_token_positional_embeddings": True}, "no_token_positional_embeddings=True"),
        ({"activation_fn": "linear"}, "activation_fn='linear' is not supported, only relu"),
        ({"decoder_layers": 3}, "lacks the tensor decoder.layers.2."),
        ({"encoder_layers": 1}, "unexpected tensors.*encoder.layers.1."),
        ({"encoder_learned_pos": True}, "lacks the tensor encoder.embed_positions.weight"),
        ({"decoder_attention_heads": 3}, "decoder_attention_heads=3 does not divide"),
        ({"decoder_embed_dim": 32000}, "decoder_embed_dim=32000 makes heads of 8000 numbers"),
        ({"encoder_normalize_before": False}, "unexpected tensors.*encoder.layer_norm"),
    ],
)
def test_refused_fairseq_options(
    fairseq: tuple[Any, Any], changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        load(toolkits.write_fairseq(tmp_path / "model.pt", fairseq[0], **changed))
