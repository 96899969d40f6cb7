"""Marian's checkpoints: what its options and a decoder.yml say, and its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decoding.models import load
from tests.support import toolkits
from tests.support.checkpoints import is_one
from tests.support.random_models import spec_of
from tests.support.toolkits import PRE_NORM, marian_arrays


@pytest.fixture(scope="module")
def marian() -> Any:
    return toolkits.marian_model(PRE_NORM)


def test_marians_search_is_that_of_decoder_yml(marian: Any, tmp_path: Path) -> None:
    toolkits.write_marian(tmp_path / "model.npz", marian)
    np.savez(tmp_path / "model.npz.optimizer.npz", adam=np.zeros(2))
    plain = load(tmp_path).generation_config
    assert plain["num_beams"] == 12 and plain["length_penalty"] == 0.0
    assert plain["bad_words_ids"] == [[1]] and plain["eos_token_id"] == 0
    assert plain["decoder_start_token_id"] == plain["pad_token_id"] == toolkits.START
    decoder = tmp_path / "decoder.yml"
    decoder.write_text(
        "relative-paths: true\nmodels:\n  - /trained/there/model.npz\nvocabs: [a.spm, b.spm]\n"
        "beam-size: 6\nnormalize: 0.6\nword-penalty: 0\nallow-unk: true\n"
    )
    for source in (tmp_path, decoder):
        loaded = load(source)
        found = loaded.generation_config
        assert (found["num_beams"], found["length_penalty"]) == (6, 0.6)
        assert found["bad_words_ids"] is None and loaded.config["vocabs"] == ["a.spm", "b.spm"]
    for text, message in [
        ("models: [a.npz, b.npz]", "must name one model"),
        ("models: [model.npz]\nword-penalty: 0.2", "word-penalty=0.2 is not supported, only 0"),
        ("models: [", "is not valid YAML"),
        ("one line", "must hold options, got str"),
    ]:
        decoder.write_text(text)
        with pytest.raises(ValueError, match=message):
            load(tmp_path)
    decoder.write_text("models: [other.npz]")
    with pytest.raises(FileNotFoundError, match="other.npz is missing: decoder.yml names it"):
        load(tmp_path)


def test_marians_tables(marian: Any, tmp_path: Path) -> None:
    """Whatever is tied to what, and with an output of before version 1.8, or without a bias."""
    expected = dict(load(toolkits.write_marian(tmp_path / "model.npz", marian)).state)
    arrays = marian_arrays(marian)
    last = toolkits.START
    assert not expected["decoder.embed.tokens"][last].any()
    assert expected["output.bias"][last] == -1e4 and len(expected["encoder.embed.tokens"]) == last

    old = dict(arrays)
    old["decoder_ff_logit_out_W"] = old.pop("decoder_ff_logit_out_Wt").T
    found = load(toolkits.write_marian(tmp_path / "model.npz", marian, old)).state
    assert torch.equal(found["output.weight"], expected["output.weight"])

    shared = dict(arrays)
    shared["Wemb"] = shared.pop("decoder_Wemb")
    del shared["encoder_Wemb"], shared["decoder_ff_logit_out_b"]
    options = {"tied-embeddings-src": True, "output-omit-bias": True}
    loaded = load(toolkits.write_marian(tmp_path / "model.npz", marian, shared, **options))
    assert is_one(loaded, "encoder.embed.tokens", "decoder.embed.tokens")
    found = loaded.state
    assert torch.equal(found["output.weight"], expected["output.weight"])
    assert not found["output.bias"][:last].any()

    tied = dict(arrays)
    del tied["decoder_ff_logit_out_Wt"]
    options = {"tied-embeddings": True}
    loaded = load(toolkits.write_marian(tmp_path / "model.npz", marian, tied, **options))
    assert is_one(loaded, "output.weight", "decoder.embed.tokens")


def test_marians_norm_behind_the_embedding(marian: Any, tmp_path: Path) -> None:
    arrays = marian_arrays(marian)
    for side in ("encoder", "decoder"):
        for kind in ("scale", "bias"):
            arrays[f"{side}_emb_ln_{kind}_pre"] = np.full((1, 32), len(kind), np.float32)
    options = {"transformer-postprocess-emb": "nd"}
    loaded = load(toolkits.write_marian(tmp_path / "model.npz", marian, arrays, **options))
    assert spec_of(loaded).decoder.embed_norm
    assert loaded.state["encoder.embed.norm.weight"].eq(5).all()
    assert loaded.state["decoder.embed.norm.bias"].eq(4).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"type": "s2s"}, "type='s2s'"),
        ({"transformer-ffn-activation": "gelu"}, "transformer-ffn-activation='gelu'"),
        ({"transformer-decoder-autoreg": "rnn"}, "transformer-decoder-autoreg='rnn'"),
        ({"transformer-tied-layers": [1, 1]}, "transformer-tied-layers="),
        ({"transformer-no-projection": True}, "transformer-no-projection=True"),
        ({"transformer-ffn-depth": 3}, "transformer-ffn-depth=3"),
        ({"transformer-postprocess": "dan"}, "transformer-postprocess='dan' is not supported"),
        ({"transformer-preprocess": "r"}, "transformer-preprocess='r' is not supported"),
        ({"transformer-postprocess-top": "an"}, "transformer-postprocess-top='an'"),
        ({"dec-depth": 3}, "lacks the tensor decoder_l3_"),
        ({"enc-depth": 1}, "unexpected tensors.*encoder_l2_"),
        ({"tied-embeddings-all": True}, "lacks the tensor Wemb"),
        ({"transformer-decoder-dim-ffn": 20}, "decoder_l1_ffn_W1.*must have the shape"),
    ],
)
def test_refused_marian_options(
    marian: Any, changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        load(toolkits.write_marian(tmp_path / "model.npz", marian, **changed))
