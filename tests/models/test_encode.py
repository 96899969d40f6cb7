"""Model.encode against transformers, on every device, and Model.embed against its definition."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import decoding
from decoding.models import load
from decoding.models.files import ModelFileError
from decoding.models.torch.module import module
from decoding.models.weights.converted import INDEX
from tests.server.models import sentence_model
from tests.support.comparison import assert_as_exact
from tests.support.families import ENCODERS, encoder
from tests.support.random_models import load as load_random
from tests.support.sentences import write_letters, write_pooling
from tests.support.vocabularies import ENGLISH, GERMAN

LENGTHS = (9, 3, 12, 1, 6)


@pytest.fixture(scope="module", params=ENCODERS)
def theirs(request: pytest.FixtureRequest) -> Any:
    return encoder(request.param)


@pytest.fixture(scope="module")
def saved(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    theirs.save_pretrained(folder)
    return folder


def given(model: Any) -> dict[str, Tensor]:
    """Rows of LENGTHS, padded on the right; types where the model has several."""
    ids = torch.randint(4, 60, (5, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(12) < torch.tensor(LENGTHS)[:, None]
    inputs = {"input_ids": ids.where(mask, torch.tensor(model.config.pad_token_id))}
    inputs["attention_mask"] = mask.long()
    if getattr(model.config, "type_vocab_size", 1) > 1:
        inputs["token_type_ids"] = (torch.arange(12) > 2).long().expand(5, 12)
    return inputs


@torch.no_grad()
def states_of(model: Any, inputs: dict[str, Tensor]) -> Any:
    """What transformers' model without its head returns."""
    body = getattr(model, model.base_model_prefix, model)
    return body(**{name: tensor.to(model.device) for name, tensor in inputs.items()})


def test_the_states_of_transformers(theirs: Any, saved: Path, device: str) -> None:
    inputs = given(theirs)
    mask, expected = inputs["attention_mask"].bool(), states_of(theirs, inputs)
    model = decoding.load(saved, device, dtype="float32", threads=1 if device == "cpu" else None)
    found = model.encode(**inputs)
    assert found.last_hidden_state.shape == expected.last_hidden_state.shape
    assert expected.last_hidden_state.std() > 0.5
    states, wanted = found.last_hidden_state[mask], expected.last_hidden_state[mask]
    torch.testing.assert_close(states, wanted, rtol=1e-5, atol=1e-5)
    assert not found.last_hidden_state[~mask].any()
    if expected.get("pooler_output") is None:
        assert found.pooler_output is None
    else:
        torch.testing.assert_close(found.pooler_output, expected.pooler_output)
    assert str(model.memory_plan()).startswith("weights ")


def test_half_precision_is_as_exact_as_in_transformers(
    theirs: Any, saved: Path, half_place: tuple[str, torch.dtype]
) -> None:
    device, dtype = half_place
    inputs = given(theirs)
    mask = inputs["attention_mask"].bool()
    exact = states_of(theirs, inputs).last_hidden_state[mask]
    half = states_of(copy.deepcopy(theirs).to(device, dtype), inputs).last_hidden_state.cpu()[mask]
    ours = decoding.load(saved, device, dtype=dtype).encode(**inputs).last_hidden_state
    assert ours.dtype == (torch.float32 if device == "cpu" else dtype)
    assert_as_exact(ours[mask.to(ours.device)].float(), half.float(), exact, dtype)


@pytest.fixture(scope="module")
def bert() -> Any:
    return encoder("bert")


def test_a_row_does_not_depend_on_the_others(bert: Any, device: str) -> None:
    """Alone, in a list, padded on the left, with explicit limits that split the call."""
    inputs = given(bert)
    rows = [row[:length].tolist() for row, length in zip(inputs["input_ids"], LENGTHS, strict=True)]
    together = decoding.load(bert, device, dtype="float32").encode(rows)
    limits = decoding.Limits(batch=2, beams=1, source=12, target=1)
    split = decoding.load(bert, device, dtype="float32", limits=limits)
    for b, row in enumerate(rows):
        alone = split.encode([row])
        torch.testing.assert_close(
            alone.last_hidden_state[0], together.last_hidden_state[b, : len(row)]
        )
        assert alone.pooler_output is not None and together.pooler_output is not None
        torch.testing.assert_close(alone.pooler_output[0], together.pooler_output[b])
    again = split.encode(rows)
    torch.testing.assert_close(again.last_hidden_state, together.last_hidden_state)
    with pytest.raises(ValueError, match="this call needs source=13"):
        split.encode(torch.full((1, 13), 5))


@pytest.mark.parametrize("name", ["roberta", "roberta-masked", "xlm-roberta", "bert"])
def test_padding_anywhere(name: str, device: str) -> None:
    """On the left, within a row, and where nothing masks it."""
    theirs = encoder(name)
    pad, inputs = theirs.config.pad_token_id, given(theirs)
    inputs["input_ids"] = inputs["input_ids"].flip(1)
    inputs["attention_mask"] = inputs["attention_mask"].flip(1)
    inputs["input_ids"][0, 4:6] = pad
    inputs["attention_mask"][1, 0] = 1
    mask, expected = inputs["attention_mask"].bool(), states_of(theirs, inputs).last_hidden_state
    model = decoding.load(theirs, device, dtype="float32")
    found = model.encode(**inputs).last_hidden_state
    torch.testing.assert_close(found[mask], expected[mask], rtol=1e-5, atol=1e-5)
    text = module(load(theirs).spec).eval()
    text.load_state_dict(load(theirs).state)
    types = inputs.get("token_type_ids")
    states = text(inputs["input_ids"], mask, types)[0]
    torch.testing.assert_close(states[mask], expected[mask], rtol=1e-5, atol=1e-5)


def test_a_roberta_reads_as_many_tokens_as_it_has_places_for() -> None:
    theirs = encoder("roberta")  # of 24 positions, the first two of which are not for tokens
    model = decoding.load(theirs, "cpu")
    model.encode([[5] * 22])
    with pytest.raises(ValueError, match="needs 23 positions, the model has 22"):
        model.encode([[5] * 23])
    padded = torch.tensor([[1, 1] + [5] * 22])
    found = model.encode(padded, padded != 1).last_hidden_state
    assert found[:, 2:].equal(model.encode([[5] * 22]).last_hidden_state)


def test_what_is_missing_means_ones_and_zeros(bert: Any) -> None:
    ids = given(bert)["input_ids"]
    model = decoding.load(bert, "cpu", dtype="float32")
    expected = model.encode(ids, torch.ones_like(ids), torch.zeros_like(ids))
    assert model.encode(ids).last_hidden_state.equal(expected.last_hidden_state)
    first = model.encode(ids, torch.arange(12).expand(5, 12) >= 3)
    assert first.pooler_output is not None
    wanted = torch.tanh(
        first.last_hidden_state[:, 3] @ bert.pooler.dense.weight.T + bert.pooler.dense.bias
    )
    torch.testing.assert_close(first.pooler_output, wanted)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_smaller_types_are_close(bert: Any, dtype: str, tmp_path: Path) -> None:
    inputs = given(bert)
    mask = inputs["attention_mask"].bool()
    exact = states_of(bert, inputs).last_hidden_state[mask]
    bert.save_pretrained(tmp_path / "model")
    model = decoding.load(tmp_path / "model", "cpu", dtype=dtype)
    found = model.encode(**inputs)
    assert (found.last_hidden_state[mask] - exact).abs().max() < 0.15 * exact.abs().max()
    model.save(tmp_path / "converted")
    again = decoding.load(tmp_path / "converted").encode(**inputs)
    assert again.last_hidden_state.equal(found.last_hidden_state)


def test_a_converted_pooler_has_a_bias(bert: Any, tmp_path: Path) -> None:
    """Families without biases have none there either, so this one must be asked for."""
    decoding.load(bert, "cpu").save(tmp_path / "converted")
    index = json.loads((tmp_path / "converted" / INDEX).read_text())
    del index["tensors"]["pooler.bias"]
    (tmp_path / "converted" / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match=r"the tensor pooler\.bias is missing"):
        decoding.load(tmp_path / "converted")


def test_refused_calls(bert: Any) -> None:
    model = decoding.load(bert, "cpu")
    for message, arguments in {
        "holds 60, the model's ids are 0 to 59": ([[60]],),
        "every token of row 0 is masked": ([[5]], [[0]]),
        "needs 25 positions, the model has 24": ([[5] * 25],),
        "token_type_ids must have the shape": ([[5, 6]], None, [[0]]),
        "token_type_ids must be 0 to 1": ([[5, 6]], None, [[0, 2]]),
    }.items():
        with pytest.raises(ValueError, match=message):
            model.encode(*arguments)
    with pytest.raises(NotImplementedError, match="an encoder alone"):
        model.generate([[5]])
    with pytest.raises(NotImplementedError, match="an encoder alone"):
        model.score([[5]])
    with pytest.raises(NotImplementedError, match="need an encoder alone, such as BERT"):
        load_random("gpt2").encode([[5]])


# Files.


def test_names_of_old_files_and_heads(tmp_path: Path) -> None:
    theirs = encoder("bert-with-heads")
    theirs.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for name in list(state):
        for new, before in old.items():
            if name.endswith(new):
                state[name.removesuffix(new) + before] = state.pop(name)
    state["bert.embeddings.position_ids"] = torch.arange(24)[None]
    assert any(name.startswith("cls.") for name in state)
    save_file(state, tmp_path / "model.safetensors")
    found, expected = load(tmp_path), load(theirs)
    assert found.spec == expected.spec
    assert all(found.state[name].equal(tensor) for name, tensor in expected.state.items())
    state["bert.encoder.extra.weight"] = torch.zeros(2)
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"unexpected tensors.*: bert\.encoder\.extra\.weight"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("bert", "position_embedding_type", "relative_key"),
        ("bert", "is_decoder", True),
        ("roberta", "hidden_act", "tanh"),
        ("roberta", "pad_token_id", None),
        ("distilbert", "activation", "tanh"),
    ],
)
def test_refused_configurations(name: str, option: str, value: Any, tmp_path: Path) -> None:
    encoder(name).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {option: value}))
    with pytest.raises(ValueError, match=option):
        load(tmp_path)


# Sentence embeddings.


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A BERT of letters."""
    folder = tmp_path_factory.mktemp("sentences")
    tokens = write_letters(folder, ENGLISH + GERMAN)
    theirs = encoder("bert", vocab_size=len(tokens), max_position_embeddings=80)
    theirs.save_pretrained(folder)
    return folder, theirs


@pytest.mark.parametrize(
    ("mode", "normalise", "lower"),
    [
        ("mean_tokens", True, True),
        ("mean_tokens", False, False),
        ("cls_token", True, False),
        ("mean", True, False),
        ("cls", False, False),
    ],
)
def test_sentence_embeddings(
    sentences: tuple[Path, Any],
    mode: str,
    normalise: bool,
    lower: bool,
    device: str,
    tmp_path: Path,
) -> None:
    folder, theirs = sentences
    most = 40 if mode.endswith(("_token", "_tokens")) else 30
    settings = {"max_seq_length": 40, "do_lower_case": lower} if most == 40 else {}
    write_pooling(folder, mode=mode, normalise=normalise, **settings)
    model = decoding.load(folder, device, dtype="float32")
    texts = [*ENGLISH, *GERMAN]
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    inputs = tokenizer(
        [text.lower() if lower else text for text in texts],
        padding=True, truncation=True, max_length=most, return_tensors="pt",
    )  # fmt: skip
    states, mask = states_of(theirs, dict(inputs)).last_hidden_state, inputs["attention_mask"]
    means = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    expected = states[:, 0] if mode.startswith("cls") else means
    if normalise:
        expected = expected / expected.norm(dim=1, keepdim=True)
    torch.testing.assert_close(model.embed(texts, truncate=True), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(
        ValueError, match=f"has 5. tokens, the model reads {most}: .* truncate=True"
    ):
        model.embed(texts)
    assert model.embed([]).shape == (0, 32)
    assert model.embed("so").equal(model.embed(["so"])[0])
    with pytest.raises(TypeError, match=r"texts\[1\] must be a str, got int"):
        model.embed(["so", cast(Any, 3)])
    if device == "cpu":
        model.save(tmp_path)
        assert (
            decoding.load(tmp_path)
            .embed(texts[:2], truncate=True)
            .equal(model.embed(texts[:2], truncate=True))
        )


def test_what_is_wrong_with_a_pooling(
    sentences: tuple[Path, Any], tmp_path: Path, bert: Any
) -> None:
    folder, _ = sentences
    model = decoding.load(folder, "cpu")
    (folder / "modules.json").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError, match=r"modules\.json is missing: it says how"):
        model.embed(["so"])
    for mode, named in (("max_tokens", "pooling_mode_max_tokens"), ("max", "pooling_mode='max'")):
        write_pooling(folder, mode=mode, normalise=False)
        with pytest.raises(ValueError, match=f"sets {named}: supported are the modes"):
            model.embed(["so"])
    dense = [{"path": "", "type": "x.Transformer"}, {"path": "2_Dense", "type": "x.Dense"}]
    (folder / "modules.json").write_text(json.dumps(dense))
    with pytest.raises(ValueError, match="lists .'Transformer', 'Dense'.: supported are"):
        model.embed(["so"])
    with pytest.raises(ValueError, match="loaded from memory"):
        decoding.load(bert, "cpu").embed(["so"])


@pytest.mark.parametrize("detect", [False, True])
def test_what_is_not_finite_is_named(device: str, detect: bool, tmp_path: Path) -> None:
    """The item, and with detect_overflow the tensor; other calls are as before."""
    sentence_model(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][9] = 3e38  # whose norm overflows
    save_file(weights, tmp_path / "model.safetensors")
    model = decoding.load(tmp_path, device=device, detect_overflow=detect)
    known = sorted(set("".join(ENGLISH)))
    letter = next(each for each in known if 9 in model.tokenizer([each])["input_ids"][0])
    sound = model.encode([[5, 6], [7]]).last_hidden_state
    named = r"hidden states are not finite .* for item 1"
    named += ", first in the encoder embeddings" if detect else "$"
    for _ in range(2):
        with pytest.raises(decoding.Error, match=named):
            model.encode([[5, 6], [7, 9, 8], [9]])
        with pytest.raises(decoding.Error, match=named):
            model.embed(["", letter])
    assert torch.equal(model.encode([[5, 6], [7]]).last_hidden_state, sound)
