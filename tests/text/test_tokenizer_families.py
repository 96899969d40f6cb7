"""Each family's text against transformers' tokenizer of the same vocabulary, trained here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from decoding.text.token_texts import token_texts
from decoding.text.tokenizers import MultilingualTokenizer, load_tokenizer
from decoding.text.tokenizers.blenderbot_small import words
from tests.support.vocabularies import (
    ENGLISH,
    GERMAN,
    train_bpe,
    train_sentencepiece,
    train_word_bpe,
)
from tests.text.batches import check_batches

LINES = [*GERMAN, *ENGLISH, "", "two  spaces", "привет, мир! 👋🏽", "Ende</s><pad>so<mask> ja"]
UNKNOWN = "so\u2603ja \u2603 so"  # what follows it begins a word, or does not
SPECIAL = ["<s>", "</s>", "<unk>", "<pad>", "<mask>", "__start__", "__end__", "__de__", "de_DE"]
PARTS = st.one_of(st.text(max_size=12), st.sampled_from([*SPECIAL, *GERMAN, "'", ".", "\n", " "]))
texts = st.lists(PARTS, max_size=8).map("".join)
NLLB = ["deu_Latn", "eng_Latn", "fra_Latn"]


def check(ours: Any, theirs: Any, text: str) -> None:
    ids = theirs(text)["input_ids"]
    assert ours.encode(text) == ids
    for skip in (True, False):
        expected = theirs.decode(ids, skip_special_tokens=skip)
        assert ours.decode(ids, skip_special_tokens=skip) == expected
    if not isinstance(ours, MultilingualTokenizer) or ours.target is not None:
        check_batches(ours, [text])


# Byte-level BPE.

BYTE_LEVEL: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("BartTokenizer", {}),
    "blenderbot": ("BlenderbotTokenizer", {}),
    "roberta": ("RobertaTokenizer", {}),
    "opt": ("GPT2Tokenizer", {name: "</s>" for name in ("bos_token", "eos_token", "unk_token")}),
}


@pytest.fixture(scope="module", params=BYTE_LEVEL)
def byte_level(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Any]:
    """A family, its directory as it is published, and transformers' tokenizer of it."""
    family = request.param
    folder = tmp_path_factory.mktemp(family)
    train_bpe(folder)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    vocab |= {token: len(vocab) + i for i, token in enumerate([*special, "<mask>"])}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    name, settings = BYTE_LEVEL[family]
    if family == "opt":
        settings = settings | {"pad_token": "<pad>", "add_bos_token": True}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return family, folder, getattr(transformers, name).from_pretrained(folder)


def test_byte_level_families(byte_level: tuple[str, Path, Any], tmp_path: Path) -> None:
    family, folder, theirs = byte_level
    of_files = load_tokenizer(folder, {"model_type": family})
    theirs.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").is_file()
    saved = load_tokenizer(tmp_path, {"model_type": family})
    for line in LINES:
        ids = theirs(line)["input_ids"]
        if family == "blenderbot":  # transformers 5 leaves out the end that its models were given
            assert of_files.encode(line) == [*ids, theirs.eos_token_id]
            assert saved.encode(line) == ids
        else:
            check(of_files, theirs, line)
            check(saved, theirs, line)
            for ours in (of_files, saved):
                assert ours.encode(line, "so") == theirs(line, "so")["input_ids"]
        if "<" not in line:
            assert (
                of_files.decode(of_files.encode(line), skip_special_tokens=True).removeprefix(" ")
                == line
            )


# SentencePiece with fairseq's numbers.


@pytest.fixture(scope="module")
def fairseq(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SentencePieceProcessor]:
    """A directory with sentencepiece.bpe.model, whose pieces 0 to 2 are <unk>, <s> and </s>."""
    folder = tmp_path_factory.mktemp("fairseq")
    path = folder / "sentencepiece.bpe.model"
    pieces = train_sentencepiece(GERMAN + ENGLISH, path, bos_id=1, eos_id=2)
    assert pieces[:3] == ["<unk>", "<s>", "</s>"]
    return folder, SentencePieceProcessor(model_file=str(path))


def scored(model: SentencePieceProcessor, first: int) -> list[tuple[str, float]]:
    """The pieces from `first` on, as the `tokenizers` library takes them."""
    return [(model.id_to_piece(i), model.get_score(i)) for i in range(first, len(model))]


@pytest.mark.parametrize("fifty", [False, True])
def test_mbart(fairseq: tuple[Path, SentencePieceProcessor], fifty: bool, tmp_path: Path) -> None:
    folder, model = fairseq
    kind = transformers.MBart50Tokenizer if fifty else transformers.MBartTokenizer
    config = {"model_type": "mbart", "tokenizer_class": kind.__name__}
    ours = load_tokenizer(folder, config)
    assert isinstance(ours, MultilingualTokenizer)
    special = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    codes = [(code, 0.0) for code in [*ours.codes, "<mask>"]]
    theirs = kind(vocab=special + scored(model, 3) + codes)
    theirs.save_pretrained(tmp_path)
    saved = load_tokenizer(tmp_path, config)
    assert ours.codes["ar_AR"] == len(model) + 1 and len(ours.codes) == (52 if fifty else 25)
    for language in ("en_XX", "de_DE"):
        theirs.src_lang = theirs.tgt_lang = language
        for tokenizer in (ours, saved):
            assert isinstance(tokenizer, MultilingualTokenizer)
            tokenizer.src_lang = tokenizer.tgt_lang = language
            assert (tokenizer.src_lang, tokenizer.tgt_lang) == (language, language)
            assert dict(tokenizer(LINES)) == dict(theirs(LINES))
            with pytest.raises(ValueError, match="src_lang='tlh' is no language of this model"):
                tokenizer.src_lang = "tlh"
            found, options = tokenizer.between(language, language)
            code = ours.codes[language]
            name = "forced_bos_token_id" if fifty else "decoder_start_token_id"
            assert options == {name: code}
            for line in [*LINES, UNKNOWN]:
                ids = theirs(line)["input_ids"]
                assert found.encode(line) == ids
                check_batches(found, [line])
                # As labels, transformers' mBART ends with the code and moves it to the front.
                target = found.encode_target(line)
                assert target == (ids if fifty else ids[:-1])
                for skip in (True, False):
                    text = theirs.decode(target, skip_special_tokens=skip)
                    assert (
                        found.decode(target, skip_special_tokens=skip).rstrip() == text.rstrip()
                    )  # SentencePiece strips it


@pytest.fixture(scope="module")
def m2m(fairseq: tuple[Path, SentencePieceProcessor]) -> tuple[MultilingualTokenizer, Any]:
    folder, model = fairseq
    (folder / "m2m").mkdir()
    path = folder / "m2m" / "sentencepiece.bpe.model"
    path.write_bytes((folder / "sentencepiece.bpe.model").read_bytes())
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *(piece for piece, _ in scored(model, 3)[:-5])]
    vocab = {token: number for number, token in enumerate(tokens)}
    (folder / "m2m" / "vocab.json").write_text(json.dumps(vocab))
    ours = load_tokenizer(folder / "m2m", {"model_type": "m2m_100"})
    assert isinstance(ours, MultilingualTokenizer)
    return ours, transformers.M2M100Tokenizer.from_pretrained(folder / "m2m")


@given(text=texts, language=st.sampled_from(["en", "de", "ast", "zu"]))
def test_m2m_100(m2m: tuple[MultilingualTokenizer, Any], text: str, language: str) -> None:
    ours, theirs = m2m
    theirs.src_lang = theirs.tgt_lang = language
    found, options = ours.between(language, language)
    assert options == {"forced_bos_token_id": theirs.get_lang_id(language)}
    text = text.replace("__", "_")  # in transformers 5 the codes are no special tokens any more
    ids = theirs(text)["input_ids"]
    assert found.encode(text) == ids and found.encode_target(text) == ids
    check_batches(found, [text])
    assert found.decode(ids, skip_special_tokens=True) == theirs.decode(
        ids[1:], skip_special_tokens=True
    )


def test_m2m_100_as_published(m2m: tuple[MultilingualTokenizer, Any], tmp_path: Path) -> None:
    """A special_tokens_map.json makes special tokens of the codes in transformers 5, too."""
    shutil.copytree(m2m[1].name_or_path, tmp_path, dirs_exist_ok=True)
    codes = [f"__{code}__" for code in m2m[0].codes]
    listed = json.dumps({"additional_special_tokens": codes})
    (tmp_path / "special_tokens_map.json").write_text(listed)
    ours = load_tokenizer(tmp_path, {"model_type": "m2m_100"})
    theirs = transformers.M2M100Tokenizer.from_pretrained(tmp_path)
    for line in [*LINES, "__de__ so </s></s>ja", UNKNOWN]:
        check(ours, theirs, line)


@pytest.mark.parametrize("legacy", [False, True])
def test_nllb_of_a_tokenizer_json(legacy: bool, tmp_path: Path) -> None:
    letters = sorted({c for line in LINES for c in line if c != " "})
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "▁", *letters]
    vocab = {token: number for number, token in enumerate(tokens)}
    theirs = transformers.NllbTokenizer(
        vocab=vocab, merges=[], extra_special_tokens=NLLB, legacy_behaviour=legacy
    )
    theirs.save_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path, {"model_type": "m2m_100"})
    assert isinstance(ours, MultilingualTokenizer) and sorted(ours.codes) == NLLB
    theirs.src_lang = "deu_Latn"
    found, options = ours.between("deu_Latn", "fra_Latn")
    assert options == {"forced_bos_token_id": theirs.convert_tokens_to_ids("fra_Latn")}
    for line in LINES:
        check(found, theirs, line)
        ids = found.encode_target(line)
        assert ids[0] == options["forced_bos_token_id"] and ids[-1] == theirs.eos_token_id


def test_nllb_of_a_sentencepiece_model(fairseq: tuple[Path, SentencePieceProcessor]) -> None:
    """transformers 5 numbers these wrong; the numbers are those of fairseq."""
    folder, model = fairseq
    config = {"model_type": "m2m_100", "tokenizer_class": "NllbTokenizer"}
    with pytest.raises(ValueError, match="no language 'eng_Latn'.*extra_special_tokens"):
        load_tokenizer(folder, config)
    listed = folder / "special_tokens_map.json"
    listed.write_text(json.dumps({"additional_special_tokens": NLLB}))
    ours = load_tokenizer(folder, config)
    listed.unlink()
    text = GERMAN[0]
    pieces = [number + 1 for number in model.encode(text)]
    assert ours.encode(text) == [len(model) + 2, *pieces, 2]
    assert ours.decode([len(model) + 1, *pieces, 2], skip_special_tokens=True) == text


@pytest.mark.parametrize("family", ["mbart", "m2m_100"])
def test_what_is_wrong_with_languages(
    fairseq: tuple[Path, SentencePieceProcessor], m2m: tuple[Any, Any], family: str
) -> None:
    folder = fairseq[0] / "m2m" if family == "m2m_100" else fairseq[0]
    ours = load_tokenizer(folder, {"model_type": family})
    assert isinstance(ours, MultilingualTokenizer)
    with pytest.raises(ValueError, match="src_lang='tlh' is no language of this model, only "):
        ours.between("tlh", None)
    with pytest.raises(ValueError, match="say which one with tgt_lang"):
        ours.between(None, None)
    language = "de" if family == "m2m_100" else "de_DE"
    found, options = ours.between(None, None, begins=[2, ours.codes[language]])
    assert options == {} and found == ours.between(None, language)[0]
    if family == "m2m_100":
        with pytest.raises(ValueError, match="target's language is not known"):
            ours.encode_target("so")


# The others.


def test_pegasus(tmp_path: Path) -> None:
    path = tmp_path / "spiece.model"
    train_sentencepiece(GERMAN + ENGLISH, path, pad_id=0, eos_id=1, unk_id=2)
    model = SentencePieceProcessor(model_file=str(path))
    masks = ["<mask_1>", "<mask_2>", *(f"<unk_{i}>" for i in range(2, 103))]
    special = [(token, 0.0) for token in ("<pad>", "</s>", *masks, "<unk>")]
    theirs = transformers.PegasusTokenizer(vocab=special + scored(model, 3))
    theirs.save_pretrained(tmp_path / "saved")
    of_file = load_tokenizer(tmp_path, {"model_type": "pegasus"})
    saved = load_tokenizer(tmp_path / "saved", {"model_type": "pegasus"})
    assert of_file.encode("\u2603")[-2:] == [105, 1]  # 96103 entries: 96000 pieces behind 103
    for line in [*GERMAN, *ENGLISH, "", "two  spaces", "so</s></s>ja<mask_1>", UNKNOWN]:
        check(saved, theirs, line)
        check(of_file, theirs, line)


@pytest.mark.parametrize("extra", [100, 0])
def test_t5(extra: int, tmp_path: Path) -> None:
    path = tmp_path / "spiece.model"
    pieces = train_sentencepiece(GERMAN + ENGLISH, path, pad_id=0, eos_id=1, unk_id=2)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"extra_ids": extra}))
    model = SentencePieceProcessor(model_file=str(path))
    marks = [(f"<extra_id_{number}>", 0.0) for number in reversed(range(extra))]
    theirs = transformers.T5Tokenizer(vocab=scored(model, 0) + marks, extra_ids=extra)
    theirs.save_pretrained(tmp_path / "saved")
    of_file = load_tokenizer(tmp_path, {"model_type": "t5"})
    saved = load_tokenizer(tmp_path / "saved", {"model_type": "t5"})
    texts = [*GERMAN, *ENGLISH, "", "two  spaces", "so</s>ja", UNKNOWN, "so <extra_id_1> ja"]
    for line in texts if extra else texts[:-1]:
        check(saved, theirs, line)
        check(of_file, theirs, line)
    if extra:  # the first mark comes last
        assert of_file.encode("<extra_id_0>")[0] == len(pieces) + extra - 1


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp("small")
    train_word_bpe(folder, ["__null__", "__start__", "__end__", "__unk__", "__newln__"])
    theirs = transformers.BlenderbotSmallTokenizer.from_pretrained(folder)
    return load_tokenizer(folder, {"model_type": "blenderbot-small"}), theirs


@given(text=texts)
def test_blenderbot_small(small: tuple[Any, Any], text: str) -> None:
    check(*small, text)


def test_blenderbot_small_splits_punctuation(small: tuple[Any, Any]) -> None:
    ours, _ = small
    text = "It's here, isn't she?\nYes!"
    assert words(text) == "it ' s here , isn ' t she ? __newln__ yes !".split()
    assert (
        ours.decode(ours.encode("Where did you put"), skip_special_tokens=True)
        == "where did you put"
    )
    assert ours.decode(ours.encode("\u2603"), skip_special_tokens=False) == "__unk__"


def test_texts_of_pieces(m2m: tuple[MultilingualTokenizer, Any]) -> None:
    """What stop strings are looked for in."""
    ours, theirs = m2m
    found = token_texts(ours)
    ids = ours.base.cut("Wo hast du meinen Schlüssel")
    assert "".join(str(found[number]) for number in ids) == " Wo hast du meinen Schlüssel"
    assert len(found) == 1 + max(ours.codes.values()) == theirs.get_lang_id("zu") + 1


def test_texts_of_pieces_that_are_bytes(tmp_path: Path) -> None:
    """Of all tokens bytes then: a stop string's letter may be cut between two of them."""
    options = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "byte_fallback": True}
    train_sentencepiece(GERMAN, tmp_path / "spiece.model", vocab_size=350, **options)
    ours = load_tokenizer(tmp_path, {"model_type": "t5"})
    found = token_texts(ours)
    text = " so \u2603 naïve"
    ids = ours.encode(text, add_special_tokens=False)
    assert "<0xE2>" in ours.convert_ids_to_tokens(ids)
    texts = [found[number] for number in ids]
    assert b"".join(part for part in texts if isinstance(part, bytes)) == text.encode()
