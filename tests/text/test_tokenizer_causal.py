"""The text of decoder-only families: what transformers saves for them, run by us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from sentencepiece import SentencePieceProcessor

from decoding.text.token_texts import token_texts
from decoding.text.tokenizers import load_tokenizer
from decoding.text.tokenizers.llama import BYTES, SPECIAL
from tests.support.vocabularies import ENGLISH, GERMAN, TEXT, train_bpe, train_sentencepiece
from tests.text.batches import check_batches
from tests.text.trained_tokenizers import trained

LINES = [
    *GERMAN,
    *ENGLISH,
    "",
    " two  spaces ",
    "привет, мир! 👋🏽\n\n\tso",
    "12345 a1",
    "It's  we'LL",
    "Ende</s><|endoftext|>so",
]
BYTE_LEVEL = {
    "gpt_neox": "GPTNeoXTokenizer",
    "gptj": "GPT2Tokenizer",
    "phi": "CodeGenTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
}
PIECES = {"llama": "LlamaTokenizer", "gemma": "GemmaTokenizer", "gemma2": "GemmaTokenizer"}


def byte_level(folder: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary and its merges."""
    train_bpe(folder)
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split(" ") for line in lines if not line.startswith("#version")]
    return vocab, [(first, second) for first, second in pairs]


def pieces(family: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The same of pieces of text, with bytes for letters that are none."""
    special = SPECIAL if family == "llama" else ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
    merges = [("▁", "d"), ("e", "r"), ("e", "i"), ("▁", "t"), ("▁t", "h"), ("i", "n"), ("▁", "▁")]
    letters = sorted({letter for line in GERMAN + ENGLISH for letter in line if letter != " "})
    tokens = [*special, *BYTES, *letters, "▁", *map("".join, merges)]
    return {token: number for number, token in enumerate(tokens)}, merges


@pytest.mark.parametrize("family", BYTE_LEVEL | PIECES)
def test_a_saved_tokenizer(family: str, tmp_path: Path) -> None:
    vocab, merges = byte_level(tmp_path) if family in BYTE_LEVEL else pieces(family)
    kind = getattr(transformers, (BYTE_LEVEL | PIECES)[family])
    theirs: Any = kind(vocab=vocab, merges=merges)
    theirs.save_pretrained(tmp_path / "saved")
    ours = load_tokenizer(tmp_path / "saved", {"model_type": family})
    for line in LINES:
        ids = theirs(line)["input_ids"]
        assert ours.encode(line) == ids
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == expected
        if "<" not in line:
            assert ours.decode(ids, skip_special_tokens=True).lstrip() == line.lstrip()
    check_batches(ours, LINES)
    assert len(token_texts(ours)) == len(theirs)


@pytest.mark.parametrize("name", ["eos_token", "extra_special_tokens"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])
def test_special_tokens_that_the_file_calls_others(family: str, name: str, tmp_path: Path) -> None:
    """An eos_token is no part of the answer, whatever tokenizer.json says of it."""
    trained(family, tmp_path, TEXT)
    path = tmp_path / "tokenizer.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    vocab = written["model"]["vocab"].values()
    number = 1 + max(*vocab, *(token["id"] for token in written["added_tokens"]))
    flags = {"special": False, "normalized": False, "single_word": False, "lstrip": False}
    flags["rstrip"] = family != "qwen2"  # its class forgets this
    written["added_tokens"].append({"id": number, "content": "<|x|>", **flags})
    path.write_text(json.dumps(written), encoding="utf-8")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config[name] = ["<|x|>"] if name.startswith("extra") else "<|x|>"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path, {"model_type": family})
    ids = theirs("so <|x|> ja<|x|>")["input_ids"]
    assert ours.encode("so <|x|> ja<|x|>") == ids and ids[-1] == number
    text = ours.decode(ids, skip_special_tokens=True)
    assert text == theirs.decode(ids, skip_special_tokens=True)
    assert ("<|x|>" in text) == (name != "eos_token" and family != "qwen2")


LLAMA: dict[str, dict[str, Any]] = {
    "as published": {},
    "padding": {"pad_id": 3},
    "control tokens": {"control_symbols": ["[INST]", "[/INST]"]},
    "symbols": {"user_defined_symbols": ["[INST]", "  ", "x" * 150]},
    "no bytes": {"byte_fallback": False},
    "the end first": {"eos_id": 0, "unk_id": 1, "bos_id": 2},
    "no beginning": {"bos_id": -1},
}


@pytest.mark.parametrize("kind", LLAMA)
def test_the_numbers_of_a_tokenizer_model(kind: str, tmp_path: Path) -> None:
    """Bytes are 3 to 258 in those of Llama 1 and 2 alone."""
    options = {"bos_id": 1, "eos_id": 2, "byte_fallback": True, "model_type": "bpe"} | LLAMA[kind]
    options |= {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    path = tmp_path / "tokenizer.model"
    pieces = train_sentencepiece(TEXT, path, vocab_size=450, **options)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    flags = {"add_bos_token": "<s>" in pieces, "legacy": True}
    settings = {"tokenizer_class": "LlamaTokenizer", **flags}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    model = SentencePieceProcessor(model_file=str(path))
    ours = load_tokenizer(tmp_path, {"model_type": "llama"})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert [ours.convert_ids_to_tokens(number) for number in range(len(model))] == pieces
    first = [model.bos_id()] if "<s>" in pieces else []
    for line in [*TEXT, "two  spaces", "Guten Morgen! Ä ☃", "so[INST]", "so" + "x" * 150]:
        ids = ours.encode(line)
        alone = {"control tokens": "[INST]", "symbols": "  "}.get(kind, line + "!")
        if alone not in line:  # which sentencepiece does not know, or puts no space behind
            assert ids == [*first, *model.encode(line)]
        if kind != "no bytes":  # transformers drops what it does not know
            assert ids == theirs(line)["input_ids"]
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == expected


@pytest.mark.parametrize("kind", [None, "PreTrainedTokenizerFast"])
@pytest.mark.parametrize(
    "family", ["gemma", "gpt2", "gpt_neox", "llama", "mistral", "phi", "qwen2"]
)
def test_a_tokenizer_json_has_the_ends(family: str, kind: str | None, tmp_path: Path) -> None:
    """Flags of tokenizer_config.json count only where there is none."""
    trained("llama" if family == "mistral" else family, tmp_path, TEXT)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    path, whole = tmp_path / "tokenizer_config.json", tmp_path / "tokenizer.json"
    config, written = json.loads(path.read_text()), json.loads(whole.read_text())
    bos = family in ("gemma", "llama", "mistral")
    if bos:  # as published
        name = "<bos>" if family == "gemma" else "<s>"
        number = written["model"]["vocab"][name]
        backend = tokenizers.Tokenizer.from_file(str(whole))
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=[name, "$A"], pair=[name, "$A", name, "$B:1"], special_tokens=[(name, number)]
        )
        backend.save(str(whole))
    for flags in ((True, None), (False, True), (None, True)):
        added = dict(zip(("add_bos_token", "add_eos_token"), flags, strict=True))
        kinds = {} if kind is None else {"tokenizer_class": kind}
        path.write_text(json.dumps(config | kinds | added))
        ours = load_tokenizer(tmp_path, {"model_type": family})
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        for line in TEXT[:3]:
            ids = theirs(line)["input_ids"]
            assert ours.encode(line) == ids
            assert (ids[0] == theirs.bos_token_id) == bos
        assert ours.encode("so", "ja") == theirs("so", "ja")["input_ids"]


def as_llama_2(written: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json in the form in which Llama 2's is published."""
    normalizers = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    parts: dict[str, Any] = {"normalizer": {"type": "Sequence", "normalizers": normalizers}}
    parts["decoder"] = {"type": "Sequence", "decoders": decoders}
    return written | parts | {"pre_tokenizer": None}


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"legacy": False},
        {"legacy": True},
        {"add_prefix_space": False},
        {"legacy": False, "tokenizer_class": "LlamaTokenizerFast"},
        {"legacy": False, "tokenizer_class": "PreTrainedTokenizerFast"},
    ],
)
def test_spaces_of_llama_2(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    trained("llama", tmp_path, TEXT)
    path, whole = tmp_path / "tokenizer_config.json", tmp_path / "tokenizer.json"
    whole.write_text(json.dumps(as_llama_2(json.loads(whole.read_text(encoding="utf-8")))))
    path.write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"} | settings))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    ours = load_tokenizer(tmp_path, {"model_type": family})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for line in [*LINES, "</s>\nso", "<s>Wo</s><s> hast du", "  so"]:
        ids = theirs(line)["input_ids"]
        assert ours.encode(line) == ids
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == expected
    check_batches(ours, LINES)


def test_missing_files(tmp_path: Path) -> None:
    for family, needs in [
        ("qwen2", "needs tokenizer.json$"),
        ("mistral", "needs tokenizer.json or tokenizer.model"),
    ]:
        with pytest.raises(FileNotFoundError, match=needs):
            load_tokenizer(tmp_path, {"model_type": family})
