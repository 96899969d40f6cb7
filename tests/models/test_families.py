"""Every family: saved by transformers, loaded by us, the same tokens, on every device."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import decoding
from decoding.models import load
from decoding.models.registry import FAMILIES as REGISTRY
from tests.models.test_models import assert_close, oracle
from tests.support.comparison import assert_as_exact, assert_close_scores, is_tie, rows_of
from tests.support.families import ENCODERS, FAMILIES, TOKENS, ragged

ROWS = 400  # whose tokens are scored in half precision
SEARCHES: list[dict[str, Any]] = [
    {"num_beams": 1},
    {"num_beams": 4, "num_return_sequences": 3},
    {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.3, "early_stopping": True},
]


@pytest.fixture(scope="module", params=FAMILIES)
def theirs(request: pytest.FixtureRequest) -> Any:
    return FAMILIES[request.param].model()


@pytest.fixture(scope="module")
def saved(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    theirs.save_pretrained(folder)
    return folder


@torch.no_grad()
def test_the_oracle_has_the_logits_of_transformers(theirs: Any, saved: Path) -> None:
    given = ragged(theirs)
    ids, mask = given["input_ids"], given["attention_mask"].bool()
    ours = oracle(load(saved))
    if theirs.config.is_encoder_decoder:
        target = torch.randint(4, 60, (5, 6), generator=torch.Generator().manual_seed(2))
        assert_close(ours(ids, mask, target), theirs(**given, decoder_input_ids=target).logits)
    else:
        position = (mask.long().cumsum(1) - 1).clamp(min=0)
        assert_close(ours(ids, mask)[mask], theirs(**given, position_ids=position).logits[mask])


@pytest.mark.parametrize("options", SEARCHES, ids=["greedy", "beams", "early"])
def test_the_tokens_of_transformers(
    theirs: Any, saved: Path, options: dict[str, Any], device: str
) -> None:
    # A pad token may have no position in the reference, and is never wanted.
    pad = theirs.config.pad_token_id
    options = options | {
        "max_new_tokens": TOKENS,
        "suppress_tokens": [pad],
        "return_dict_in_generate": True,
        "output_scores": True,
    }

    def reference(**more: Any) -> Any:
        return theirs.generate(**ragged(theirs), **options, **more)

    ours = decoding.load(saved, device, dtype="float32", threads=1 if device == "cpu" else None)
    found, expected = ours.generate(**ragged(theirs), **options), reference()
    if rows_of(found) != rows_of(expected):
        assert is_tie(reference, found), f"{rows_of(expected)}\n{rows_of(found)}"
    elif options["num_beams"] > 1:
        assert_close_scores(found.sequences_scores, expected.sequences_scores)
    assert str(ours.memory_plan()).startswith("weights ")


@torch.no_grad()
def test_half_precision_is_as_exact_as_in_transformers(
    theirs: Any, saved: Path, half_place: tuple[str, torch.dtype]
) -> None:
    """Log-probabilities of thousands of given tokens."""
    device, dtype = half_place
    given = ragged(theirs, ROWS, 12)
    encoder = theirs.config.is_encoder_decoder
    labels = torch.randint(4, 60, (ROWS, 12), generator=torch.Generator().manual_seed(2))
    rows = labels if encoder else given["input_ids"]

    def logprobs(model: Any) -> Tensor:
        """float64 [ROWS, tokens] of a transformers model, wherever and in whatever type it is."""
        ids = {name: tensor.to(model.device) for name, tensor in given.items()}
        if encoder:
            start = torch.full((ROWS, 1), theirs.config.decoder_start_token_id)
            ids["decoder_input_ids"] = torch.cat([start, labels[:, :-1]], 1).to(model.device)
            logits = model(**ids).logits
        else:
            logits = model(ids["input_ids"]).logits[:, :-1]
        found = logits.double().log_softmax(-1).cpu()
        return found.gather(2, rows[:, -found.shape[1] :, None])[..., 0]

    exact = logprobs(theirs)
    half = logprobs(copy.deepcopy(theirs).to(device, dtype))
    model = decoding.load(saved, device, dtype=dtype)
    if encoder:
        found = model.score(**given, labels=labels)
    else:
        found = model.score(given["input_ids"])
    assert_as_exact(found.token_logprobs[:, -exact.shape[1] :], half, exact, dtype)


def test_references_apply_their_soft_caps() -> None:
    """transformers' own attention of torch leaves them out."""
    model = FAMILIES["gemma2"].model()
    ids = ragged(model)["input_ids"]
    capped = model(ids).logits
    model.config.attn_logit_softcapping = None
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert (model(ids).logits - capped).abs().max() > 0.1


def test_there_is_something_to_tell_apart(theirs: Any) -> None:
    """Rows differ and end at different lengths, or the parity above would show little."""
    options = {"max_new_tokens": TOKENS, "num_beams": 4, "num_return_sequences": 4}
    found = theirs.generate(**ragged(theirs), **options)[:, -TOKENS:].tolist()
    eos = theirs.config.eos_token_id
    assert len({tuple(row) for row in found}) >= 10
    assert len({row.index(eos) if eos in row else None for row in found}) >= 3


def test_the_table_of_models_has_every_architecture_of_transformers() -> None:
    table = (Path(decoding.__file__).parent.parent / "docs/models.md").read_text(encoding="utf-8")
    known = {name for name, _, _ in REGISTRY if hasattr(transformers, name)}
    assert known <= set(re.findall(r"`(\w+)`", table))
    tested = {family.architecture for family in FAMILIES.values()}
    tested |= {architecture for architecture, _ in ENCODERS.values()}
    assert known - tested == {"MarianMTModel", "GPT2LMHeadModel"}  # tests/fuzz/generate.py


@pytest.mark.parametrize("name", ["mistral", "gemma2", "llama"])
def test_windows_count_no_masked_tokens(name: str) -> None:
    """transformers' count them; masked ends change nothing, nor holes where there is no window."""
    theirs = FAMILIES[name].model()
    model = decoding.load(theirs, "cpu", dtype="float32", threads=1)
    ids, ends, hole = torch.tensor([[10, 11, 12, 13, 14, 9, 9, 17]]), [0] * 3 + [1] * 5, [1] * 8
    hole[5] = hole[6] = 0
    for mask in (ends, hole):
        options: dict[str, Any] = {"attention_mask": torch.tensor([mask]), "max_new_tokens": 6}
        if mask is hole and name != "llama":
            with pytest.raises(ValueError, match="row 0 has masked tokens between others"):
                model.generate(ids, **options)
            with pytest.raises(ValueError, match="row 0 has masked tokens between others"):
                model.score(ids, attention_mask=options["attention_mask"])
        else:
            assert torch.equal(model.generate(ids, **options), theirs.generate(ids, **options))
