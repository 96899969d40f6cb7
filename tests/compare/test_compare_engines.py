"""The engines that are compared give the same answers, whatever form they take them in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, BlenderbotConfig, BlenderbotForConditionalGeneration

from decoding.compare.engines import ENGINES, Answer, Engine, Settings, installed
from decoding.compare.engines.tensors import padded
from decoding.compare.task import Search, Task
from tests.support import random_models
from tests.support.demo import DEMO

# On some lines CTranslate2's beam search, which stops earlier, finds less; not on these.
LINES = (DEMO / "sentences.de.txt").read_text(encoding="utf-8").splitlines()[:4]
NAMES = ["huggingface", "ctranslate2", "ours"]


def engines(task: Task, folder: Path) -> dict[str, Engine]:
    """Each of NAMES, loaded in this process."""
    pytest.importorskip("ctranslate2")
    found = {}
    for name in NAMES:
        kind, converted = ENGINES[name], folder / f"{name}-model"
        if kind.converts:
            kind.convert(task, "float32", converted)
        found[name] = kind(task, Settings("cpu", "float32", 1, converted))
    return found


def answer(engine: Engine, ids: list[list[int]], search: Search) -> Answer:
    engine.prepare(ids, search)
    return engine.generate()


def assert_equal(found: dict[str, Engine], ids: list[list[int]], search: Search) -> None:
    """In tokens up to the end, and in scores where they are asked for."""
    answers = {name: answer(engine, ids, search) for name, engine in found.items()}
    expected = answers["huggingface"]
    for name, given in answers.items():
        for i, row in enumerate(given.tokens):
            assert row == expected.tokens[i][: len(row)], (name, i)
        if search.scores:
            assert given.scores == pytest.approx(expected.scores, abs=1e-4)


def assert_as_long_as_told(found: dict[str, Engine], ids: list[list[int]]) -> None:
    for beams in (1, 3):
        search = Search(beams, most=9, least=9)
        for name, engine in found.items():
            rows = answer(engine, ids, search).tokens
            assert {len(row) for row in rows} == {9}, (name, beams)


@pytest.mark.parametrize("search", [Search(1, 30), Search(4, 30, scores=True)])
def test_translation(search: Search, demo: dict[str, Engine]) -> None:
    ids = demo["ours"].encode(LINES)
    assert_equal(demo, ids, search)
    assert_as_long_as_told(demo, ids)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    return engines(Task.read(DEMO), tmp_path_factory.mktemp("demo"))


def test_text_to_ids_and_back(demo: dict[str, Engine]) -> None:
    ids = demo["ours"].encode(LINES)
    for engine in demo.values():
        assert engine.encode(LINES) == ids
        assert engine.decode([[*row, 0] for row in ids[:1]]) == demo["ours"].decode(ids[:1])


def test_prompts_of_different_lengths(tmp_path: Path) -> None:
    random_models.reference("gpt2-wide").save_pretrained(tmp_path)
    task = Task.read(tmp_path)
    found = engines(task, tmp_path)
    ids = [[5, 6, 7], [9, 8], [20, 21, 22, 23, 24]]
    assert_equal(found, ids, Search(1, 8))
    assert_as_long_as_told(found, ids)


def test_what_the_converter_does_not_know(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    config = BlenderbotConfig(
        vocab_size=40,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=16,
    )
    BlenderbotForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="BlenderbotConfig"):
        ENGINES["ctranslate2"].convert(Task.read(tmp_path), "float32", tmp_path / "converted")


def test_padding() -> None:
    ids, mask = padded([[1, 2, 3], [4]], 9, left=True)
    assert ids.tolist() == [[1, 2, 3], [9, 9, 4]] and mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    ids, mask = padded([[1, 2, 3], [4]], 9, left=False)
    assert ids.tolist() == [[1, 2, 3], [4, 9, 9]] and mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert ids.dtype == mask.dtype == torch.int64


def test_who_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "decoding.compare.engines.find_spec", lambda name: None if name == "ctranslate2" else 1
    )
    with pytest.warns(UserWarning, match=r"ctranslate2 is left out: .* pip install"):
        assert [engine.name for engine in installed(["ctranslate2", "ours"])] == ["ours"]


def test_an_encoder_alone_is_refused(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=40,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="encoder alone"):
        Task.read(tmp_path)
