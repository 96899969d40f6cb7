"""What transformers' tokenizers offer, by ours: equal for every family, on vocabularies trained
here."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import decoding
from decoding.text.tokenizers import Tokenizer, load_tokenizer
from tests.support.vocabularies import TEXT
from tests.text.trained_tokenizers import FAMILIES, trained

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

LINES = [
    *TEXT,
    "",
    "  two  spaces\tand a tab ",
    "привет, мир! こんにちは世界。 안녕 👋🏽 ﬁne Å שלום مرحبا नमस्ते",
    "I 'm sure , it 's n't you 've met .",
    "Ende</s>so<|endoftext|><unk> [MASK]<0x0A>",
    "\u00a0\u200b\ufeff\x00\x1c",
]
MARKS = ["</s>", "<unk>", "<pad>", "<|endoftext|>", "[SEP]", "<0x41>", " 's", " .", " ", "\n", "▁"]
texts = st.lists(st.one_of(st.text(max_size=9), st.sampled_from([*TEXT, *MARKS])), max_size=6).map(
    "".join
)
Pair = tuple[Tokenizer, Any]


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Our tokenizer of a directory, and transformers' of the same one."""
    folder = tmp_path_factory.mktemp(request.param)
    theirs = trained(request.param, folder, TEXT)
    return load_tokenizer(folder, {"model_type": request.param}), theirs


def same(ours: Any, theirs: Any, *args: Any, **options: Any) -> dict[str, Any]:
    found, expected = dict(ours(*args, **options)), dict(theirs(*args, **options))
    if "return_tensors" not in options:
        assert found == expected
    else:
        assert found.keys() == expected.keys()
        for name, value in found.items():
            assert type(value) is type(expected[name]) and (value == expected[name]).all()
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_special_tokens": False},
        {"padding": True},
        {"padding": True, "padding_side": "left", "return_tensors": "pt"},
        {"padding": "longest", "pad_to_multiple_of": 8, "return_tensors": "np"},
        {"padding": "max_length", "max_length": 9, "truncation": True},
        {"truncation": True, "max_length": 5},
        {"max_length": 4},
        {"truncation": False, "padding": "max_length", "max_length": 40},
        {"truncation": "only_first", "max_length": 4, "add_special_tokens": False},
        {"return_token_type_ids": True, "return_attention_mask": False},
    ],
    ids=str,
)
def test_calls(pair: Pair, options: dict[str, Any]) -> None:
    same(*pair, LINES, **options)
    if "max_length" not in options:
        same(*pair, LINES[0], **options)


def test_pairs(pair: Pair) -> None:
    ours, theirs = pair
    others = [*LINES[1:], LINES[0]]
    for options in ({}, {"padding": True, "return_tensors": "pt"}, {"add_special_tokens": False}):
        same(*pair, LINES, others, **options)
    same(*pair, LINES[0], LINES[1])
    assert ours.encode(LINES[0], LINES[1]) == theirs.encode(LINES[0], LINES[1])
    if theirs.is_fast:  # the other classes divide an odd rest in another way
        for length in (4, 5, 9, 14, 15):
            same(*pair, LINES, others, truncation=True, max_length=length)
        most = len(theirs(TEXT[0])["input_ids"]) + 6
        same(*pair, TEXT[0], TEXT[1], truncation="only_second", max_length=most)


def test_targets(pair: Pair) -> None:
    ours, theirs = pair
    if hasattr(theirs, "tgt_lang"):
        if ours.tgt_lang is None:  # type: ignore[attr-defined]
            with pytest.raises(ValueError, match="set tokenizer.tgt_lang to one of"):
                ours(text_target="a")
        code = sorted(ours.codes)[1]  # type: ignore[attr-defined]
        theirs.tgt_lang = ours.tgt_lang = code  # type: ignore[attr-defined]
    others = LINES[::-1]
    for options in ({}, {"padding": True, "return_tensors": "pt"}, {"add_special_tokens": False}):
        same(*pair, text_target=others, **options)
        same(*pair, LINES, text_target=others, **options)
    found = same(*pair, LINES[0], text_target=LINES[1], truncation=True, max_length=6)
    assert len(found["labels"]) == 6
    same(*pair, LINES)  # it reads sources as before


def test_offsets(pair: Pair) -> None:
    ours, theirs = pair
    if not theirs.is_fast:
        with pytest.raises(NotImplementedError, match="return_offsets_mapping needs a tokenizer"):
            ours("a", return_offsets_mapping=True)
        with pytest.raises(NotImplementedError, match="return_overflowing_tokens needs a"):
            ours("a", return_overflowing_tokens=True, truncation=True, max_length=5)
        return
    every: list[dict[str, Any]] = [
        {},
        {"padding": True, "return_tensors": "pt"},
        {"add_special_tokens": False},
        {"truncation": True, "max_length": 7, "padding": "max_length", "padding_side": "left"},
    ]
    for options in every:
        same(*pair, LINES, return_offsets_mapping=True, **options)
        same(*pair, LINES, LINES[::-1], return_offsets_mapping=True, **options)
    found = same(*pair, LINES[0], return_offsets_mapping=True)
    assert max(end for _, end in found["offset_mapping"]) == len(LINES[0])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("stride", [0, 1, 3])
def test_overflowing_tokens(pair: Pair, side: str, stride: int) -> None:
    ours, theirs = pair
    if not theirs.is_fast:
        pytest.skip("transformers has another form for it")
    before = ours.settings, theirs.truncation_side
    ours.truncation_side = theirs.truncation_side = side
    options: dict[str, Any] = {"return_overflowing_tokens": True, "stride": stride}
    same(*pair, LINES[0], **options)
    options["truncation"] = True
    found = same(*pair, LINES, max_length=9, return_offsets_mapping=True, **options)
    assert len(found["input_ids"]) > len(LINES)
    same(*pair, LINES, max_length=9, padding="max_length", return_tensors="pt", **options)
    same(*pair, LINES[0], max_length=8, **options)
    same(*pair, TEXT, TEXT[::-1], max_length=18, **options)
    most = len(theirs(TEXT[0])["input_ids"]) + 9
    same(*pair, TEXT[0], TEXT[1], max_length=most, **{**options, "truncation": "only_second"})
    with pytest.raises(ValueError, match="stride=9 must be less than the . tokens of a text"):
        ours(LINES, max_length=9, **{**options, "stride": 9})
    ours.settings, theirs.truncation_side = before


def test_threads_share_a_tokenizer(tmp_path: Path) -> None:
    trained("bert", tmp_path, TEXT)
    ours = load_tokenizer(tmp_path, {"model_type": "bert"})
    options: dict[str, Any] = {"truncation": True, "return_overflowing_tokens": True}

    def call(length: int) -> dict[str, Any]:
        return ours(LINES, max_length=length, return_offsets_mapping=True, **options)

    lengths = list(range(5, 25)) * 10
    expected = list(map(call, lengths))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # another thread's turn may come between any two calls
    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(call, lengths)) == expected
    finally:
        sys.setswitchinterval(interval)
    assert ours(LINES) == load_tokenizer(tmp_path, {"model_type": "bert"})(LINES)


@pytest.mark.parametrize("side", ["left", "right"])
def test_sides(pair: Pair, side: str) -> None:
    ours, theirs = pair
    before = ours.settings, theirs.padding_side, theirs.truncation_side
    assert before[0].padding_side == before[1] and before[0].truncation_side == before[2]
    ours.padding_side = theirs.padding_side = side
    ours.truncation_side = theirs.truncation_side = side
    same(*pair, LINES, truncation=True, max_length=7, padding=True)
    ours.settings, theirs.padding_side, theirs.truncation_side = before


@given(text=texts, length=st.integers(3, 12))
def test_any_text(pair: Pair, text: str, length: int) -> None:
    ids = same(*pair, text)["input_ids"]
    check_decode(*pair, ids)
    same(*pair, text, truncation=True, max_length=length)
    if pair[1].is_fast:
        options: dict[str, Any] = {"return_overflowing_tokens": True}
        options["return_offsets_mapping"] = True
        same(*pair, text, truncation=True, max_length=length, **options)


def check_decode(ours: Tokenizer, theirs: Any, ids: list[int]) -> None:
    # transformers decodes Marian's joint vocabulary through the source model unless told otherwise.
    source = {"use_source_tokenizer": False} if hasattr(theirs, "spm_source") else {}
    for skip in (None, True, False):
        for clean in (None, True, False):
            options: dict[str, Any] = {"clean_up_tokenization_spaces": clean}
            options |= {} if skip is None else {"skip_special_tokens": skip}
            assert ours.decode(ids, **options) == theirs.decode(ids, **options, **source)


def test_decode(pair: Pair) -> None:
    ours, theirs = pair
    for line in LINES:
        check_decode(ours, theirs, theirs(line)["input_ids"])
    rows = theirs(TEXT[:3], padding=True)["input_ids"]
    expected = theirs.batch_decode(rows)
    for given_rows in (rows, torch.tensor(rows), np.array(rows), tuple(map(tuple, rows))):
        assert ours.batch_decode(given_rows) == ours.decode(given_rows) == expected
    assert ours.decode(rows[0][1]) == theirs.decode(rows[0][1])
    assert ours.decode(torch.tensor(rows[0])) == expected[0]
    scalars = list(torch.tensor(rows[0]))
    assert ours.decode(scalars) == ours.decode(list(np.array(rows[0]))) == expected[0]
    assert ours.decode([]) == theirs.decode([]) == ""
    for error, message, ids in [
        (ValueError, "token_ids holds -1, which is no id", [5, -1]),
        (TypeError, "token_ids must be integers, got float", [1.5, 2]),
        (TypeError, "token_ids must be integers, got str", "abc"),
        (TypeError, "token_ids must be integers, got NoneType", None),
    ]:
        with pytest.raises(error, match=message):
            ours.decode(ids)
    assert repr(ours).startswith(f"{type(ours).__name__}({len(ours)} tokens, ")


def test_special_tokens_and_the_vocabulary(pair: Pair) -> None:
    ours, theirs = pair
    for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        for what in (f"{name}_token", f"{name}_token_id"):
            assert getattr(ours, what) == getattr(theirs, what), what
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert ours.all_special_tokens == theirs.all_special_tokens
    assert ours.all_special_ids == theirs.all_special_ids
    assert (len(ours), ours.vocab_size) == (len(theirs), theirs.vocab_size)
    assert dict(ours.get_vocab()) == theirs.get_vocab()
    ids = theirs(LINES[0])["input_ids"]
    tokens = theirs.convert_ids_to_tokens(ids)
    assert ours.convert_ids_to_tokens(ids) == tokens
    skipping = ours.convert_ids_to_tokens(ids, skip_special_tokens=True)
    assert skipping == theirs.convert_ids_to_tokens(ids, skip_special_tokens=True)
    tokens = [*tokens, "no such token"]
    assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)
    assert (
        ours.convert_tokens_to_ids(tokens[0]) == ids[0]
        and ours.convert_ids_to_tokens(10**6) is None
    )


def test_setting_special_tokens(tmp_path: Path) -> None:
    trained("gpt2", tmp_path, TEXT)
    ours = load_tokenizer(tmp_path, {"model_type": "gpt2"})
    ours.pad_token = None
    assert ours.pad_token_id is None and "pad_token" not in ours.special_tokens_map
    with pytest.raises(ValueError, match="has no pad_token: set one"):
        ours(TEXT, padding=True)
    ours.pad_token = ours.eos_token
    assert ours.pad_token_id == ours.eos_token_id is not None
    ours.pad_token_id = 5
    assert ours.pad_token == ours.convert_ids_to_tokens(5)
    assert ours(["a", "a b"], padding=True)["input_ids"][0][-1] == 5
    with pytest.raises(ValueError, match="pad_token='<none>' is no token of the vocabulary"):
        ours.pad_token = "<none>"
    with pytest.raises(ValueError, match="pad_token_id=99999 is no id"):
        ours.pad_token_id = 99999


def test_settings_of_files(tmp_path: Path) -> None:
    theirs = trained("qwen2", tmp_path, TEXT)
    theirs.add_special_tokens({"extra_special_tokens": ["<|call|>"], "bos_token": "<|begin|>"})
    theirs.model_max_length = 77
    theirs.add_bos_token = theirs.add_eos_token = True
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"padding_side": "left"}))
    ours = load_tokenizer(tmp_path, {"model_type": "qwen2"})
    again = type(theirs).from_pretrained(tmp_path)
    assert (ours.model_max_length, ours.padding_side) == (77, "left")
    assert ours.bos_token == "<|begin|>" and "<|call|>" in ours.all_special_tokens
    assert ours.all_special_ids == again.all_special_ids
    for line in (*TEXT, "so<|call|>ja<|begin|>"):
        same(ours, again, line)
        same(ours, again, line, line)
        check_decode(ours, again, again(line)["input_ids"])
    assert len(same(ours, again, "a " * 99, truncation=True)["input_ids"]) == 77


def test_what_is_no_text(pair: Pair) -> None:
    ours, _ = pair
    for given_text, message in [
        (None, "text must be a str or a list of str, got NoneType"),
        ({"text": "a"}, "text must be a str or a list of str, got dict"),
        (["a", None], r"text\[1\] must be a str, got NoneType"),
        ([["a"]], r"text\[0\] must be a str, got list"),
        (b"a", "text must be a str or a list of str, got bytes"),
    ]:
        with pytest.raises(TypeError, match=message):
            ours(given_text)
    with pytest.raises(ValueError, match=r"text\[1\] holds half of a surrogate pair, '\\udc80'"):
        ours(["a", "b\udc80"])
    with pytest.raises(TypeError, match="text must be a str, got int"):
        ours.encode(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"return_tensors": "pt"}, "different numbers of tokens: pass padding=True"),
        ({"return_tensors": "tf", "padding": True}, "return_tensors must be 'pt' or 'np'"),
        ({"padding": "left"}, "padding must be a bool or one of do_not_pad, longest, max_length"),
        ({"padding": 3}, "padding must be a bool or one of do_not_pad, longest, max_length, got 3"),
        ({"truncation": 3, "max_length": 3}, "truncation must be a bool or one of"),
        ({"truncation": "yes", "max_length": 3}, "truncation must be a bool or one of"),
        ({"padding_side": "top", "padding": True}, "padding_side must be 'left' or 'right'"),
        ({"truncation": True, "max_length": 0}, "max_length must be at least 1"),
        ({"truncation": True}, "name no maximum length: pass max_length"),
        ({"truncation": True, "max_length": 1}, "no room for 2 special tokens"),
        ({"truncation": "only_second", "max_length": 4}, "needs a text_pair"),
        (
            {"truncation": True, "max_length": 7, "padding": True, "pad_to_multiple_of": 8},
            "max_length=7 must be a multiple of pad_to_multiple_of=8",
        ),
    ],
    ids=str,
)
def test_what_does_not_go_together(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    trained("bert", tmp_path, TEXT)
    ours = load_tokenizer(tmp_path, {"model_type": "bert"})
    with pytest.raises(ValueError, match=message):
        ours(TEXT, **options)


def test_pairs_that_are_none(tmp_path: Path) -> None:
    trained("bert", tmp_path, TEXT)
    ours = load_tokenizer(tmp_path, {"model_type": "bert"})
    for first, second in ((TEXT, TEXT[:1]), (TEXT[0], TEXT[:1]), (TEXT[:1], TEXT[0])):
        with pytest.raises(ValueError, match="text_pair must be one str, or as many texts"):
            ours(first, second)
    with pytest.raises(ValueError, match="that text is too short"):
        ours(TEXT[0], "a " * 40, truncation="only_first", max_length=9)
    with pytest.warns(UserWarning, match="max_length has no effect without truncation"):
        ours(TEXT, padding=True, max_length=3, truncation=False)


def test_encodings_go_into_generate() -> None:
    model = decoding.load("tests/data/stories260K")
    tokenizer = model.tokenizer
    tokenizer.pad_token = tokenizer.eos_token
    encoding = tokenizer(["Once upon a time", "The dog"], padding=True, return_tensors="pt")
    assert encoding.input_ids is encoding["input_ids"] and encoding.to("cpu") is encoding
    with pytest.raises(AttributeError, match="no token_type_ids, only input_ids, attention_mask"):
        _ = encoding.token_type_ids
    with pytest.raises(TypeError, match=r"as in generate\(\*\*batch\)"):
        model.generate(encoding, max_new_tokens=8)
    rows = model.generate(**encoding, max_new_tokens=8)
    alone = model.generate([tokenizer.encode("The dog")], max_new_tokens=8)
    found, expected = tokenizer.batch_decode([rows[1], alone[0]], skip_special_tokens=True)
    assert found == expected and found.startswith("The dog")
