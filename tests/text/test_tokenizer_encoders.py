"""The text of encoders against transformers' tokenizers of the same vocabulary, trained here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from decoding.text.tokenizers import load_tokenizer
from tests.support.vocabularies import ENGLISH, GERMAN, train_sentencepiece
from tests.text.batches import check_batches

LINES = [*GERMAN, *ENGLISH, "", "two  spaces", "привет, мир! 👋🏽", "naïve 中文 [MASK] so</s>"]
PARTS = st.one_of(st.text(max_size=12), st.sampled_from([*GERMAN, "[MASK]", "[SEP]", "\n", " "]))
texts = st.lists(PARTS, max_size=8).map("".join)


def check(ours: Any, theirs: Any, text: str) -> None:
    ids = theirs(text)["input_ids"]
    assert ours.encode(text) == ids
    for skip in (True, False):
        expected = theirs.decode(ids, skip_special_tokens=skip)
        assert ours.decode(ids, skip_special_tokens=skip) == expected
    check_batches(ours, [text])


@pytest.fixture(scope="module", params=[{}, {"do_lower_case": False}, {"strip_accents": False}])
def wordpiece(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Any, Any]:
    """Ours of a vocab.txt, ours of a tokenizer.json of transformers', and its own."""
    folder = tmp_path_factory.mktemp("bert")
    trained = tokenizers.BertWordPieceTokenizer(lowercase=False)
    trained.train_from_iterator(ENGLISH + GERMAN, vocab_size=200, show_progress=False)
    trained.save_model(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps(request.param))
    vocab = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    numbers = {token: number for number, token in enumerate(vocab[:-1])}
    theirs = transformers.BertTokenizer(vocab=numbers, **request.param)
    theirs.save_pretrained(folder / "saved")
    config = {"model_type": "bert"}
    return load_tokenizer(folder, config), load_tokenizer(folder / "saved", config), theirs


@given(text=texts)
def test_wordpiece(wordpiece: tuple[Any, Any, Any], text: str) -> None:
    of_file, saved, theirs = wordpiece
    check(of_file, theirs, text)
    check(saved, theirs, text)
    for ours in (of_file, saved):
        assert dict(ours(text, "so")) == dict(theirs(text, "so"))


def test_wordpiece_cuts_what_it_knows(wordpiece: tuple[Any, Any, Any]) -> None:
    of_file, _, _ = wordpiece
    ids = of_file.encode("Where is my key?")
    assert ids[0] == of_file.backend.token_to_id("[CLS]")
    assert len(ids) > 6 and of_file.backend.token_to_id("[UNK]") not in ids[3:]


def test_a_vocabulary_without_its_marks(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[PAD]\n[MASK]\nso\n")
    with pytest.raises(ValueError, match=r"vocab.txt has no '\[SEP\]', the sep_token"):
        load_tokenizer(tmp_path, {"model_type": "distilbert"})


def test_xlm_roberta(tmp_path: Path) -> None:
    path = tmp_path / "sentencepiece.bpe.model"
    train_sentencepiece(GERMAN + ENGLISH, path, bos_id=1, eos_id=2)
    model = SentencePieceProcessor(model_file=str(path))
    pieces = [(model.id_to_piece(i), model.get_score(i)) for i in range(3, len(model))]
    special = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    theirs = transformers.XLMRobertaTokenizer(vocab=[*special, *pieces, ("<mask>", 0.0)])
    theirs.save_pretrained(tmp_path / "saved")
    of_file = load_tokenizer(tmp_path, {"model_type": "xlm-roberta"})
    saved = load_tokenizer(tmp_path / "saved", {"model_type": "xlm-roberta"})
    for line in LINES:
        check(saved, theirs, line)
        assert of_file.encode(line) == saved.encode(line)
        assert (
            of_file.decode(of_file.encode(line), skip_special_tokens=True)
            == saved.decode(saved.encode(line), skip_special_tokens=True).strip()
        )
    assert of_file.encode("<mask>") == [0, len(model) + 1, 2]
