"""Checkpoints of other toolkits: the same tokens as the transformers model that they hold."""

from __future__ import annotations

import pickle
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import decoding
import decoding.text.translate
from decoding.models import load
from tests.support import toolkits
from tests.support.comparison import assert_close_scores, is_tie, rows_of
from tests.support.families import TOKENS, ragged
from tests.support.toolkits import FAIRSEQ, POST_NORM, PRE_NORM

SEARCHES: list[dict[str, Any]] = [
    {"num_beams": 1},
    {"num_beams": 4, "num_return_sequences": 3, "early_stopping": False, "length_penalty": 1.0},
]
# What each toolkit does by default, and transformers does not.
PLAIN = {"bad_words_ids": None, "min_new_tokens": None}


MODELS: dict[str, tuple[Callable[[], Any], Callable[[Path, Any], Path], str]] = {
    "fairseq-post-norm": (
        lambda: toolkits.fairseq_model(FAIRSEQ["post-norm"]),
        toolkits.write_fairseq,
        "checkpoint_best.pt",
    ),
    "fairseq-pre-norm": (
        lambda: toolkits.fairseq_model(FAIRSEQ["pre-norm"]),
        toolkits.write_fairseq,
        "checkpoint_best.pt",
    ),
    "marian-post-norm": (
        lambda: toolkits.marian_model(POST_NORM),
        toolkits.write_marian,
        "model.npz",
    ),
    "marian-pre-norm": (
        lambda: toolkits.marian_model(PRE_NORM),
        toolkits.write_marian,
        "model.npz",
    ),
    "opennmt": (toolkits.opennmt_model, toolkits.write_opennmt, "model_step_60.pt"),
}


@pytest.fixture(scope="module", params=MODELS)
def theirs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A transformers model, and the file that holds it."""
    make, write, name = MODELS[request.param]
    model = make()
    return model, write(tmp_path_factory.mktemp("model") / name, model)


@pytest.mark.parametrize("options", SEARCHES, ids=["greedy", "beams"])
def test_the_tokens_of_transformers(theirs: Any, options: dict[str, Any], device: str) -> None:
    model, path = theirs
    start = model.config.decoder_start_token_id
    options = options | {
        "max_new_tokens": TOKENS,
        "eos_token_id": model.config.eos_token_id,
        "pad_token_id": model.config.pad_token_id,
        "decoder_start_token_id": start,
        "return_dict_in_generate": True,
        "output_scores": True,
    }

    def reference(**more: Any) -> Any:
        return model.generate(**ragged(model), **options, **more)

    given = ragged(model)
    ours = decoding.load(path, device, dtype="float32", threads=1 if device == "cpu" else None)
    found, expected = ours.generate(**given, **options, **PLAIN), reference()
    if rows_of(found) != rows_of(expected):
        assert is_tie(reference, found), f"{rows_of(expected)}\n{rows_of(found)}"
    elif options["num_beams"] > 1:
        assert_close_scores(found.sequences_scores, expected.sequences_scores)
    assert str(ours.memory_plan()).startswith("weights ")


def test_there_is_something_to_tell_apart(theirs: Any) -> None:
    """Rows differ and end at different lengths, or the parity above would show little."""
    model, _ = theirs
    options = {"max_new_tokens": TOKENS, "num_beams": 4, "num_return_sequences": 4}
    found = model.generate(**ragged(model), **options)[:, -TOKENS:].tolist()
    eos = model.config.eos_token_id
    assert len({tuple(row) for row in found}) >= 8
    assert len({row.index(eos) if eos in row else None for row in found}) >= 2


def test_texts_are_translated(tmp_path: Path) -> None:
    """From a directory as published, by its own dictionaries."""
    model = toolkits.fairseq_model(FAIRSEQ["pre-norm"])
    toolkits.write_fairseq(tmp_path / "model.pt", model)
    lines = [f"word{number} 1" for number in range(4, model.config.vocab_size)]
    for language in ("de", "en"):
        (tmp_path / f"dict.{language}.txt").write_text("\n".join(lines) + "\n")
    ours = decoding.load(tmp_path, "cpu")
    texts = ["word7 word5 nobody", "word20", ""]
    options: dict[str, Any] = {"num_beams": 2, "max_new_tokens": TOKENS}
    rows = ours.generate([[7, 5, 3, 2], [20, 2]], **options)[:, 1:].tolist()
    expected = [
        " ".join(f"word{token}" if token > 3 else "<unk>" for token in row if token > 2)
        for row in rows
    ]
    assert ours.translate(texts, **options) == [*expected, ""]
    found = decoding.text.translate.Translator(ours, alignments=True, n_best=2, **options)
    [[best, _], *_] = found.stream(texts)
    assert sorted(word for _, word in best.alignment) == list(range(len(best.text.split())))


def test_a_converted_checkpoint_has_its_text(tmp_path: Path) -> None:
    """Model.save: options that are objects are left out, the dictionaries come along."""
    model = toolkits.fairseq_model(FAIRSEQ["pre-norm"])
    (tmp_path / "there").mkdir()
    for language in ("de", "en"):
        (tmp_path / f"there/dict.{language}.txt").write_text("one 1\ntwo 1\n")
    changed: dict[str, Any] = {"criterion": Path("an object"), "adam_betas": (0.9, 0.98)}
    path = toolkits.write_fairseq(tmp_path / "there/model.pt", model, **changed)
    ours = decoding.load(path, "cpu", dtype="float32")
    assert "criterion" not in ours.config and ours.config["adam_betas"] == (0.9, 0.98)
    ours.save(tmp_path / "here")
    converted = decoding.load(tmp_path / "here", "cpu")
    assert converted.tokenizer.encode("two one") == [5, 4, 2]
    rows: dict[str, Any] = {"input_ids": [[5, 4, 2]], "max_new_tokens": TOKENS}
    assert torch.equal(converted.generate(**rows), ours.generate(**rows))


class Code:
    """Runs when an ordinary unpickler meets it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.path, "it ran"))


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_checkpoint_is_not_run(zipped: bool, tmp_path: Path) -> None:
    model = toolkits.fairseq_model(FAIRSEQ["pre-norm"])
    expected = load(toolkits.write_fairseq(tmp_path / "expected.pt", model))
    trace = tmp_path / "trace"
    content = {
        "args": Namespace(**toolkits.fairseq_options(model)),
        "model": toolkits.fairseq_state(model),
        "optimizer_history": [Code(trace)],
    }
    path = tmp_path / "model.pt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    toolkits.assert_same(load(path), expected)
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists()  # the file would have


def test_a_directory_of_several_checkpoints(tmp_path: Path) -> None:
    for name in ("checkpoint_best.pt", "checkpoint_last.pt"):
        (tmp_path / name).touch()
    message = "several checkpoints, pass one of them: checkpoint_best.pt, checkpoint_last.pt"
    with pytest.raises(ValueError, match=message):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="expected one of model.safetensors"):
        load(tmp_path)  # Hugging Face's, whatever else is there


def test_refused_files(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    for content, message in [
        (
            {"weights": 1},
            "OpenNMT-py or llama2.c, it holds .*weights",
        ),
        ({"model": {}, "args": None}, "holds no options: its args and its cfg are empty"),
        ([], "must hold a dictionary, got list"),
        (
            {"model": {}, "generator": {}, "opt": Namespace(), "vocab": {"src": 3}},
            "vocab is of no known layout",
        ),
        (
            {"model": {}, "generator": {}, "opt": Namespace(), "vocab": {"src": [], "tgt": []}},
            "the target's vocabulary has no '<s>'",
        ),
    ]:
        torch.save(content, path)
        with pytest.raises(ValueError, match=message):
            load(path)
    for damaged in (b"", b"no torch file", pickle.dumps({"model": 1})):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="model.pt cannot be read as a checkpoint"):
            load(path)
    path = tmp_path / "model.npz"
    for damaged in (b"", b"no archive"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="model.npz cannot be read as an .npz archive"):
            load(path)
    np.savez(path, Wemb=np.zeros(2))
    with pytest.raises(ValueError, match="is no Marian model: it lacks special:model.yml"):
        load(path)
