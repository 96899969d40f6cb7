"""Texts of other toolkits: fairseq's, Marian's and OpenNMT-py's files, from their definitions."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.text.tokenizers import Tokenizer, load_tokenizer
from decoding.text.tokenizers.cutters import BytePairs, read_merges
from decoding.text.tokenizers.fairseq import read_dictionary
from decoding.text.tokenizers.marian import read_vocabulary
from tests.support.vocabularies import ENGLISH, GERMAN, train_sentencepiece

# Learnt of nothing: merges of letters, of what they gave, and with the end of a word.
MERGES = [
    ("a", "b"), ("c", "d</w>"), ("ab", "ab"), ("b", "c"), ("ab", "cd</w>"), ("d", "d"),
    ("abab", "abcd</w>"), ("a", "a</w>"),
]  # fmt: skip
PIECES = ["a@@", "b@@", "c@@", "d@@", "e@@", "a", "b", "c", "d", "e", "ab@@", "abcd", "dd@@"]


def ids(*pieces: str) -> list[int]:
    """Both toolkits put four tokens before the pieces."""
    return [4 + PIECES.index(piece) for piece in pieces]


def write_codes(path: Path) -> Path:
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in MERGES)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def byte_pairs(word: str) -> list[str]:
    """Sennrich et al. 2016: the most frequent pair that is there is merged, until none is."""
    symbols = [*word[:-1], word[-1] + "</w>"]
    while True:
        pairs = [pair for pair in zip(symbols, symbols[1:], strict=False) if pair in MERGES]
        if not pairs:
            break
        best, merged = min(pairs, key=MERGES.index), list[str]()
        for symbol in symbols:
            if merged and (merged[-1], symbol) == best:
                merged[-1] += symbol
            else:
                merged.append(symbol)
        symbols = merged
    return [*(symbol + "@@" for symbol in symbols[:-1]), symbols[-1].removesuffix("</w>")]


@pytest.fixture(scope="module")
def cutter(tmp_path_factory: pytest.TempPathFactory) -> BytePairs:
    return BytePairs(write_codes(tmp_path_factory.mktemp("bpe") / "codes"), PIECES)


@given(words=st.lists(st.text("abcde", min_size=1, max_size=9), max_size=5))
def test_byte_pairs_are_merged_as_in_the_paper(cutter: BytePairs, words: list[str]) -> None:
    pieces = cutter.cut(" ".join(words))
    assert pieces == [piece for word in words for piece in byte_pairs(word)]
    assert cutter.join(pieces) == " ".join(words)
    marked = "".join(cutter.marked(pieces)).replace("@@", "")
    assert marked == "".join("\u2581" + word for word in words)


def test_unknown_letters_are_pieces_of_their_own(cutter: BytePairs) -> None:
    assert cutter.cut("aby yab") == ["ab@@", "<unk>@@", "<unk>@@", "a@@", "b"]


def test_merges_of_fastbpe_and_of_2016(tmp_path: Path) -> None:
    path = tmp_path / "codes"
    path.write_text("a b 120\nc d</w> 7\n")
    assert read_merges(path) == [("a", "b"), ("c", "d</w>")]
    for line in ("e </w>", "e", "a b c d"):
        path.write_text(f"#version: 0.2\na b\n{line}\n")
        with pytest.raises(ValueError, match=f"codes, line 3: '{line}' is no merge"):
            read_merges(path)


# fairseq

FAIRSEQ = {"model_type": "fairseq", "source_lang": "de", "target_lang": "en"}


def ordinary(pieces: list[str]) -> list[str]:
    return [piece for piece in pieces if piece not in ("<unk>", "</s>")]


def dictionary(tokens: list[str]) -> str:
    return "".join(f"{token} 100\n" for token in tokens)


@pytest.fixture
def fairseq(tmp_path: Path) -> Path:
    """A directory whose dictionaries number the pieces of a SentencePiece model."""
    pieces = ordinary(train_sentencepiece(GERMAN + ENGLISH, tmp_path / "spm.model"))
    (tmp_path / "dict.de.txt").write_text(dictionary(pieces), encoding="utf-8")
    (tmp_path / "dict.en.txt").write_text(dictionary(pieces[::-1]), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("named", [True, False])
def test_fairseq_of_a_sentencepiece_model(fairseq: Path, named: bool) -> None:
    config = dict(FAIRSEQ)
    if named:
        path = "/data/of/training/spm.model"
        config |= {"bpe": "sentencepiece", "sentencepiece_model": path}
    else:
        (fairseq / "spm.model").rename(fairseq / "sentencepiece.bpe.model")
    ours: Any = load_tokenizer(fairseq, config)
    source, target = (read_dictionary(fairseq / f"dict.{side}.txt") for side in ("de", "en"))
    for line in GERMAN + ENGLISH:
        pieces = [piece for piece in ours.source_pieces(line) if piece is not None]
        assert "".join(pieces).replace("\u2581", " ").strip() == line
        assert ours.encode(line) == [*(source[piece] for piece in pieces), 2]
        assert ours.encode_target(line) == [*(target[piece] for piece in pieces), 2]
        assert ours.decode(ours.encode_target(line), skip_special_tokens=True) == line
    assert ours.encode("Ω")[-2:] == [3, 2]
    assert ours.decode([0, 1, 3, 2], skip_special_tokens=True) == "<unk>"
    assert ours.decode([3, 2], skip_special_tokens=False) == "<unk></s>"
    assert ours.target_pieces([4, 2]) == [ours.tokens[4], None]


def test_fairseq_of_merges_and_of_words(tmp_path: Path) -> None:
    for side in ("de", "en"):
        (tmp_path / f"dict.{side}.txt").write_text(dictionary(PIECES))
    words: Any = load_tokenizer(tmp_path, FAIRSEQ)
    assert words.encode(" abcd  e@@ zz") == [*ids("abcd", "e@@"), 3, 2]
    assert words.decode([4, 5, 2], skip_special_tokens=True) == "a@@ b@@"
    assert words.source_pieces("a b") == ["\u2581a", "\u2581b", None]
    write_codes(tmp_path / "bpecodes")
    ours: Any = load_tokenizer(tmp_path, FAIRSEQ)
    assert ours.encode("abcd abe") == [*ids("abcd", "ab@@", "e"), 2]
    assert ours.decode(ours.encode_target("abcd abe"), skip_special_tokens=True) == "abcd abe"
    (tmp_path / "bpecodes").rename(tmp_path / "codes.joint")
    named = FAIRSEQ | {"bpe": "subword_nmt", "bpe_codes": "codes.joint"}
    assert load_tokenizer(tmp_path, named).encode("abcd abe") == ours.encode("abcd abe")


def test_fairseq_words_of_moses(fairseq: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = FAIRSEQ | {"tokenizer": "moses"}
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(ValueError, match="tokenizer='moses' needs a package: pip install sacremo"):
        load_tokenizer(fairseq, config)

    class Splits:
        """A package that cuts punctuation off, and writes what it was told behind it."""

        def __init__(self, lang: str) -> None:
            self.lang = lang

        def tokenize(self, text: str, return_str: bool, **options: bool) -> str:
            assert return_str and options == {"aggressive_dash_splits": True, "escape": False}
            return text.replace(".", f" . {self.lang}")

        def detokenize(self, words: list[str]) -> str:
            return " ".join(words).replace(f" . {self.lang}", ".")

    package = SimpleNamespace(MosesTokenizer=Splits, MosesDetokenizer=Splits)
    monkeypatch.setitem(sys.modules, "sacremoses", package)
    tokens = ["Haus", "house", ".", "de", "en"]
    for side in ("de", "en"):
        (fairseq / f"dict.{side}.txt").write_text(dictionary(tokens))
    ours = load_tokenizer(fairseq, config | {"moses_no_escape": True})
    assert ours.encode("Haus.") == [4, 6, 7, 2]
    assert ours.decode([5, 6, 8, 2], skip_special_tokens=True) == "house."


def test_fairseq_dictionaries(tmp_path: Path) -> None:
    path = tmp_path / "dict.de.txt"
    path.write_text("a 3\nb c 2\n\u2028 1\n<unk> 1 #fairseq:overwrite\n", encoding="utf-8")
    found = read_dictionary(path)
    assert [found[each] for each in ("<s>", "<pad>", "</s>")] == [0, 1, 2]
    assert [found[each] for each in ("a", "b c", "\u2028", "<unk>")] == [4, 5, 6, 7]
    for text in ("a 3\na 2\n", "a 3\nb\n", "a 3\nb many\n", "a 3\n<s> 1\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match="dict.de.txt, line 2: .* is no new token"):
            read_dictionary(path)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"source_lang": None}, ValueError, "name no source_lang"),
        ({"target_lang": "fr"}, FileNotFoundError, "dict.fr.txt is missing"),
        ({"bpe": "gpt2"}, ValueError, "bpe='gpt2' is not supported, only fastbpe"),
        ({"bpe": "fastbpe"}, FileNotFoundError, r"bpecodes is missing.*\(bpe_codes\)"),
        (
            {"bpe": "sentencepiece", "sentencepiece_model": "/data/joint.model"},
            FileNotFoundError,
            r"joint.model is missing.*\(sentencepiece_model\)",
        ),
        ({"tokenizer": "nltk"}, ValueError, "tokenizer='nltk' is not supported"),
    ],
)
def test_what_fairseq_texts_lack(
    fairseq: Path, changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        load_tokenizer(fairseq, FAIRSEQ | changed)


# OpenNMT-py


def opennmt(directory: Path, tokens: list[str], **options: Any) -> Tokenizer:
    vocabulary = ["<unk>", "<blank>", "<s>", "</s>", *tokens]
    config = {"model_type": "opennmt", "vocabularies": {"src": vocabulary, "tgt": vocabulary}}
    return load_tokenizer(directory, config | options)


def test_opennmt(tmp_path: Path) -> None:
    words = opennmt(tmp_path, PIECES, transforms=["filtertoolong"])
    assert words.encode("a zz abcd") == [*ids("a"), 0, *ids("abcd")]
    assert words.encode_target("a") == [*ids("a"), 3]
    assert words.decode([2, 4, 0, 3, 1], skip_special_tokens=True) == "a@@ <unk>"
    write_codes(tmp_path / "codes")
    data = {"corpus": {"transforms": ["bpe", "filtertoolong"]}, "valid": {"transforms": None}}
    named = {"src_subword_model": "/there/codes", "tgt_subword_model": "codes"}
    ours = opennmt(tmp_path, PIECES, data=data, **named)
    assert ours.encode("abcd abe") == ids("abcd", "ab@@", "e")
    pieces = train_sentencepiece(ENGLISH, tmp_path / "spm.model")
    options = {"src_subword_model": "spm.model", "share_vocab": True}
    ours = opennmt(tmp_path, ordinary(pieces), transforms=["sentencepiece"], **options)
    for line in ENGLISH:
        assert ours.decode(ours.encode_target(line), skip_special_tokens=True) == line
        assert ours.encode(line) == ours.encode_target(line)[:-1]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"transforms": ["onmt_tokenize"]}, ValueError, r"transforms=\['onmt_tokenize'\]"),
        ({"transforms": ["bpe", "sentencepiece"]}, ValueError, "only sentencepiece or bpe"),
        ({"transforms": ["bpe"]}, ValueError, "name no src_subword_model"),
        (
            {"transforms": ["bpe"], "src_subword_model": "/there/codes"},
            FileNotFoundError,
            r"codes is missing.*\(src_subword_model\)",
        ),
    ],
)
def test_what_opennmt_texts_lack(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        opennmt(tmp_path, PIECES, **options)


def test_a_vocabulary_without_unknown(tmp_path: Path) -> None:
    config = {"model_type": "opennmt", "vocabularies": {"src": ["a"], "tgt": ["a"]}}
    with pytest.raises(ValueError, match="the vocabulary has no '<unk>'"):
        load_tokenizer(tmp_path, config)


# Marian


def test_marian_of_spm_vocabularies(tmp_path: Path) -> None:
    """As marian trains them: EOS is piece 0, unknown 1."""
    for name, lines in (("de.spm", GERMAN), ("en.spm", ENGLISH)):
        train_sentencepiece(lines, tmp_path / name, eos_id=0, unk_id=1)
    config = {"model_type": "marian_npz", "vocabs": ["/there/de.spm", "en.spm"]}
    ours = load_tokenizer(tmp_path, config)
    for german, english in zip(GERMAN, ENGLISH, strict=True):
        assert ours.encode(german)[-1] == 0
        assert ours.decode(ours.encode_target(english), skip_special_tokens=True) == english
    assert 1 in ours.encode("Ω") and ours.decode([1, 0, 10**6], skip_special_tokens=True) == ""


def test_marian_of_lists_of_pieces(tmp_path: Path) -> None:
    tokens = ["</s>", "<unk>"]
    for name, lines in (("source.spm", GERMAN), ("target.spm", ENGLISH)):
        tokens += ordinary(train_sentencepiece(lines, tmp_path / name))
    tokens = list(dict.fromkeys(tokens))
    lines = [f"{written(token)}: {number}" for number, token in enumerate(tokens)]
    (tmp_path / "vocab.yml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    config: dict[str, Any] = {"model_type": "marian_npz", "vocabs": ["vocab.yml", "vocab.yml"]}
    ours = load_tokenizer(tmp_path, config)
    for german, english in zip(GERMAN, ENGLISH, strict=True):
        assert ours.encode(german)[-1] == 0 and 1 not in ours.encode(german)
        assert ours.decode(ours.encode_target(english), skip_special_tokens=True) == english
    with pytest.raises(ValueError, match="must name two vocabs, got .."):
        load_tokenizer(tmp_path, config | {"vocabs": None})
    with pytest.raises(FileNotFoundError, match="other.yml is missing"):
        load_tokenizer(tmp_path, config | {"vocabs": ["vocab.yml", "other.yml"]})
    (tmp_path / "target.spm").unlink()
    with pytest.raises(FileNotFoundError, match="target.spm is missing: it cuts text into"):
        load_tokenizer(tmp_path, config)


def written(token: str) -> str:
    return '"' + token.replace("\\", "\\\\").replace('"', '\\"') + '"'


def test_marians_vocabularies(tmp_path: Path) -> None:
    """Tokens that YAML takes for something else, and how yaml-cpp writes them."""
    path = tmp_path / "vocab.yml"
    path.write_text(
        '</s>: 0\n<unk>: 1\nnull: 2\n~: 3\nyes: 4\n1e3: 5\n2001-01-01: 6\n"\\"": 7\n'
        '"\'": 8\n? long\n: 9\n01: 10\n1: 11\n<<: 12\n"\\x85": 13\n=: 14\n',
        encoding="utf-8",
    )
    tokens = ["</s>", "<unk>", "null", "~", "yes", "1e3", "2001-01-01", '"', "'", "long", "01", "1"]
    tokens += ["<<", "\x85", "="]
    expected = {token: number for number, token in enumerate(tokens)}
    assert read_vocabulary(path) == expected
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    assert read_vocabulary(tmp_path / "vocab.txt") == expected
    for text in ("a: b", "a: [", "one", "[a, b]"):
        path.write_text(text)
        with pytest.raises(ValueError, match="vocab.yml (is no|must number)"):
            read_vocabulary(path)
