"""Ids and text against transformers' own tokenizers, on vocabularies trained here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.text.tokenizers import MarianTokenizer, Tokenizer, load_tokenizer, split_language_code
from tests.support.vocabularies import ENGLISH, GERMAN, numbered, train_bpe, train_sentencepiece
from tests.text.batches import check_batches, check_texts

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

TEXTS = [
    *GERMAN,
    *ENGLISH,
    "",
    " ",
    "  two  spaces\tand a tab ",
    "привет, мир! こんにちは世界。 ¿Qué tal? 안녕 👋🏽 ﬁne Å Å",
    ">>fra<< Wo ist der Bahnhof?",
    ">>zzz<< Wo ist >>fra<< der Bahnhof?",
    ">>fra<<>>deu<<x",
    ">>fra und deu",
    "Ende</s> und <unk> weiter<pad>, >>fra<<</s>>>deu<< so",
    "▁Haus ▁ _ ▁▁",
    "\u00a0\u200b\ufeff",
    "a" * 300,
]
SPECIAL = [
    "</s>",
    "<unk>",
    "<pad>",
    ">>fra<<",
    ">>",
    "<<",
    "<|endoftext|>",
    "Sonne",
    " ",
    "'s",
    " .",
]
PADDING = {"__type": "AddedToken", "content": "<pad>", "special": True}
texts = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(SPECIAL)), max_size=8).map("".join)


@pytest.fixture(scope="module")
def marian_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("marian")
    source = train_sentencepiece(GERMAN, folder / "source.spm")
    target = train_sentencepiece(ENGLISH, folder / "target.spm")
    size = min(len(set(source)), len(set(target)))  # as Marian's: both tables have equal sizes
    (folder / "joint.json").write_text(numbered(source + target))
    (folder / "source.json").write_text(numbered(source[:size]))
    (folder / "target.json").write_text(numbered(target[:size]))
    return folder


@pytest.fixture(scope="module", params=["joint", "separate", "clean up"])
def marian(
    request: pytest.FixtureRequest, marian_files: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Any]:
    """Ours and transformers', of one directory."""
    folder = tmp_path_factory.mktemp("model")
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes((marian_files / name).read_bytes())
    separate = request.param == "separate"
    vocab = marian_files / ("source.json" if separate else "joint.json")
    (folder / "vocab.json").write_text(vocab.read_text())
    if separate:
        (folder / "target_vocab.json").write_text((marian_files / "target.json").read_text())
    written = {"separate_vocabs": separate}
    if request.param == "clean up":
        written |= {"clean_up_tokenization_spaces": True, "pad_token": PADDING}
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    theirs = transformers.MarianTokenizer.from_pretrained(folder)
    return load_tokenizer(folder, {"model_type": "marian"}), theirs


@pytest.fixture(scope="module", params=["files", "settings", "tokenizer.json"])
def gpt2(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Any]:
    """Ours and transformers', of one directory."""
    folder = tmp_path_factory.mktemp("gpt2")
    train_bpe(folder)
    if request.param == "settings":
        written = {"add_prefix_space": True, "add_bos_token": True, "pad_token": "<pad>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(written))
    theirs = transformers.GPT2Tokenizer.from_pretrained(folder)
    if request.param == "tokenizer.json":
        theirs.pad_token = theirs.eos_token
        theirs(["one", "and two"], padding="max_length", max_length=5, truncation=True)
        theirs.save_pretrained(folder)
        (folder / "vocab.json").unlink(missing_ok=True)
        (folder / "merges.txt").unlink(missing_ok=True)
        theirs = transformers.GPT2Tokenizer.from_pretrained(folder)
    return load_tokenizer(folder, {"model_type": "gpt2"}), theirs


def check_encode(pair: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = pair
    assert ours.encode(text) == theirs(text)["input_ids"]


def check_encode_target(pair: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = pair
    assert ours.encode_target(text) == theirs(text_target=text)["input_ids"]


def check_decode(pair: tuple[Tokenizer, Any], ids: list[int]) -> None:
    ours, theirs = pair
    assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(
        ids, skip_special_tokens=True
    )
    # transformers decodes a joint vocabulary through the source model unless told otherwise, which
    # only shows in spaces around special tokens.
    expected = theirs.decode(ids, skip_special_tokens=False, use_source_tokenizer=False)
    assert ours.decode(ids, skip_special_tokens=False) == expected


@pytest.mark.parametrize("text", TEXTS)
def test_marian_encodes_as_transformers(marian: tuple[Tokenizer, Any], text: str) -> None:
    check_encode(marian, text)
    check_encode_target(marian, text)


@settings(max_examples=300)
@given(text=texts, data=st.data())
def test_marian_equals_transformers(
    marian: tuple[Tokenizer, Any], text: str, data: st.DataObject
) -> None:
    check_encode(marian, text)
    check_encode_target(marian, text)
    last = len(marian[1].decoder) - 1
    ids = data.draw(st.lists(st.integers(0, last), max_size=20))
    check_decode(marian, ids)
    check_batches(marian[0], [text])
    check_texts(marian[0], [ids, [*ids, last + 9]])


def test_marian_ids_with_gaps(marian_files: Path, tmp_path: Path) -> None:
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes((marian_files / name).read_bytes())
    dense = json.loads((marian_files / "joint.json").read_text())
    vocab = {token: 3 * number for token, number in dense.items()}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    tokenizer = load_tokenizer(tmp_path, {"model_type": "marian"})
    ids = list(vocab.values())
    check_texts(tokenizer, [ids[20:40], [number + 1 for number in ids[20:40]], [ids[-1] + 1]])
    check_batches(tokenizer, GERMAN[:4])


def test_marian_specials(marian: tuple[Tokenizer, Any]) -> None:
    ours, theirs = marian
    assert ours.encode("")[-1] == theirs.eos_token_id == 0
    code = theirs.get_vocab()[">>fra<<"]
    assert ours.encode(">>fra<< Sonne")[0] == code
    assert ours.encode(">>zzz<< Sonne")[0] == theirs.unk_token_id
    check_batches(ours, [">>fra<< Sonne", "Sonne >>fra<<", ">>zzz<<", "so\n>>fra<<", "so"])
    assert ours.decode([10**6, 0, theirs.pad_token_id], skip_special_tokens=True) == ""


def test_marian_pieces(marian: tuple[Tokenizer, Any]) -> None:
    """Of a text and of ids, as many as ids; special tokens and language codes are none."""
    ours, theirs = marian
    assert isinstance(ours, MarianTokenizer)
    for text in [*GERMAN, "", ">>fra<< Wo ist <unk> der", "Ende</s> so"]:
        pieces = ours.source_pieces(text)
        assert len(pieces) == len(ours.encode(text)) and pieces[-1] is None
    assert ours.source_pieces(">>fra<< Wo")[0] is None
    for line in ENGLISH:
        pieces = ours.target_pieces(ours.encode_target(line))
        kept = [piece for piece in pieces if piece is not None]
        known = "".join(kept).replace("\u2581", " ").strip()
        assert known == ours.decode(ours.encode_target(line), skip_special_tokens=True)


def test_marian_round_trip(marian: tuple[Tokenizer, Any]) -> None:
    ours, theirs = marian
    for line in ENGLISH:
        pieces = theirs.spm_target.encode(line, out_type=str)
        vocab = {token: number for number, token in theirs.decoder.items()}
        if all(piece in vocab for piece in pieces):
            assert (
                ours.decode([vocab[piece] for piece in pieces] + [0], skip_special_tokens=True)
                == line
            )


def test_clean_up_changes_text(marian: tuple[Tokenizer, Any]) -> None:
    ours, theirs = marian
    vocab = {token: number for number, token in theirs.decoder.items()}
    ids = [vocab["▁"], vocab["e"], vocab["▁"], vocab["."]]
    assert ours.decode(ids, skip_special_tokens=True) == (
        "e." if theirs.clean_up_tokenization_spaces else "e ."
    )


@pytest.mark.parametrize("text", TEXTS)
def test_gpt2_encodes_as_transformers(gpt2: tuple[Tokenizer, Any], text: str) -> None:
    check_encode(gpt2, text)


@settings(max_examples=300)
@given(text=texts, data=st.data())
def test_gpt2_equals_transformers(
    gpt2: tuple[Tokenizer, Any], text: str, data: st.DataObject
) -> None:
    check_encode(gpt2, text)
    last = len(gpt2[1]) - 1
    check_decode(gpt2, data.draw(st.lists(st.integers(0, last), max_size=20)))


def test_gpt2_round_trip(gpt2: tuple[Tokenizer, Any]) -> None:
    ours, _ = gpt2
    for text in TEXTS:
        if "<pad>" not in text:
            assert ours.decode(ours.encode(text), skip_special_tokens=True).lstrip(
                " "
            ) == text.lstrip(" ")


def test_language_code() -> None:
    assert split_language_code(">>fra<< Wo?") == (">>fra<<", " Wo?")
    assert split_language_code("Wo >>fra<<?") == ("", "Wo >>fra<<?")
    assert split_language_code(">>fra Wo?") == ("", ">>fra Wo?")


@pytest.mark.parametrize(
    ("family", "missing", "hint"),
    [
        ("marian", "source.spm", "source.spm, target.spm and vocab.json"),
        ("marian", "target.spm", "source.spm, target.spm and vocab.json"),
        ("marian", "vocab.json", "source.spm, target.spm and vocab.json"),
        ("marian", "target_vocab.json", "separate_vocabs"),
        ("gpt2", "vocab.json", "tokenizer.json, or vocab.json and merges.txt"),
        ("gpt2", "merges.txt", "tokenizer.json, or vocab.json and merges.txt"),
    ],
)
def test_missing_file_is_named(
    tmp_path: Path, marian_files: Path, family: str, missing: str, hint: str
) -> None:
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes((marian_files / name).read_bytes())
    vocab = (marian_files / "joint.json").read_text()
    for name in ("vocab.json", "target_vocab.json", "merges.txt"):
        (tmp_path / name).write_text(vocab)
    (tmp_path / "tokenizer_config.json").write_text('{"separate_vocabs": true}')
    (tmp_path / missing).unlink()
    with pytest.raises(FileNotFoundError) as caught:
        load_tokenizer(tmp_path, {"model_type": family})
    assert str(tmp_path / missing) in str(caught.value)
    assert hint in str(caught.value)


def test_files_that_are_no_tokenizer(tmp_path: Path, marian_files: Path) -> None:
    config = {"model_type": "marian"}
    (tmp_path / "source.spm").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ValueError, match=r"source\.spm is not a SentencePiece model"):
        load_tokenizer(tmp_path, config)
    twice = b"\n\x04\n\x02\x81a" * 2  # a piece, which the library's message would quote
    (tmp_path / "source.spm").write_bytes((marian_files / "source.spm").read_bytes() + twice)
    with pytest.raises(ValueError, match=r"source\.spm is not a SentencePiece model"):
        load_tokenizer(tmp_path, config)
    (tmp_path / "source.spm").write_bytes(b"")
    with pytest.raises(ValueError, match=r"source\.spm is empty, not a SentencePiece model"):
        load_tokenizer(tmp_path, config)
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes((marian_files / name).read_bytes())
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(ValueError, match=r"vocab\.json is not valid JSON"):
        load_tokenizer(tmp_path, config)
    (tmp_path / "vocab.json").write_text('{"</s>": 0}')
    with pytest.raises(ValueError, match="has no '<unk>'"):
        load_tokenizer(tmp_path, config)
    (tmp_path / "vocab.json").write_text('{"</s>": 0, "<unk>": 1}')
    added = {"added_tokens_decoder": {"2": {"content": "<new>"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(added))
    with pytest.raises(ValueError, match="'<new>' is not in the vocabulary"):
        load_tokenizer(tmp_path, config)


def test_unknown_family_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model_type 'mamba' \(there are: bart, .*marian"):
        load_tokenizer(tmp_path, {"model_type": "mamba"})
