"""Outputs read as transformers' do, and show themselves in a line or as a tree."""

from __future__ import annotations

import copy
import html.parser
import pickle
from functools import cache
from typing import Any

import pytest
import torch

import decoding
from decoding.generation.hypothesis_tree import Hypothesis, as_html, token_text
from decoding.generation.outputs import OURS, Output
from tests.support.random_models import ours, reference

WANTED: dict[str, Any] = {
    "return_dict_in_generate": True,
    "output_scores": True,
    "max_new_tokens": 5,
}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
}


@cache
def both(family: str, search: str) -> tuple[Output, Any]:
    given = {"input_ids": torch.randint(3, 40, (2, 4), generator=torch.Generator().manual_seed(1))}
    options = WANTED | SEARCHES[search]
    found = ours(family).generate(**given, **options)
    assert isinstance(found, Output)
    return found, reference(family).generate(**given, **options)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_as_transformers(family: str, search: str) -> None:
    found, expected = both(family, search)
    theirs = [name for name in expected if "key_values" not in name]
    theirs = [name for name in theirs if "hidden" not in name and "attentions" not in name]
    assert [name for name in found if name not in OURS] == theirs
    assert list(found.keys()) == list(found) and len(found) == len(list(found))
    for name in theirs:
        assert name in found and found[name] is getattr(found, name)
        assert [type(x) for x in (found[name], expected[name])].count(tuple) in (0, 2)
    assert torch.equal(found[0], expected[0]) and found[0] is found.sequences
    assert found[1] is found[theirs[1]] and found[:2] == (found[0], found[1])
    assert found.to_tuple() == tuple(found.values()) == tuple(v for _, v in found.items())
    assert dict(**found)["sequences"] is found.sequences
    assert "logits" not in found and "no such" not in found and found.get("logits") is None
    with pytest.raises(KeyError, match="logits"):
        found["logits"]
    with pytest.raises(IndexError):
        found[len(found)]


def test_in_one_line() -> None:
    found, _ = both("gpt2", "beams")
    vocab = ours("gpt2").spec.decoder.vocab
    said = "GenerateBeamDecoderOnlyOutput(sequences=int64[4, 9], sequences_scores=float32[4], "
    said += f"scores=5 x float32[6, {vocab}], beam_indices=int32[4, 5], lengths=int64[4], "
    assert repr(found) == str(found) == said + "token_logprobs=float32[4, 5])"


def test_copies() -> None:
    found, _ = both("gpt2", "beams")
    for copied in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert list(copied) == list(found) and torch.equal(copied[0], found[0])


class Items(html.parser.HTMLParser):
    """The texts of list items with their depth; fails where a tag is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[tuple[int, str]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open.count("li"), data.strip()))


def test_a_token_without_text_is_its_piece() -> None:
    tokenizer = decoding.load("demo").tokenizer
    space = tokenizer.convert_tokens_to_ids("\u2581")
    assert token_text(tokenizer)(space) == "\u2581" and token_text(None)(space) == str(space)


def test_hypotheses_as_a_tree() -> None:
    rows = [
        Hypothesis([1, 2, 3], [-0.1, 0.0, -0.2], -0.3),
        Hypothesis([1, 2, 4], [-0.1, 0.0, -3.0], -3.1),
        Hypothesis([1, 2], [-0.1, 0.0], None),
        Hypothesis([5], None, -9.0),
    ]
    text = as_html([rows], lambda token: f"<{token}>")
    assert Items(text).texts == [
        (1, "<1>"),
        (1, "<2>"),
        (1, "probability 0.905"),
        (2, "<3>"),
        (2, "score -0.300 probability 0.741"),
        (2, "<4>"),
        (2, "score -3.100 probability 0.045"),
        (1, "<5>"),
        (1, "score -9.000"),
    ]
    assert 'title="0.905"' in text and "<1>" not in text


def test_in_a_notebook_with_the_tokenizers_texts() -> None:
    model = decoding.load("models/demo", device="cpu")
    ids = [model.tokenizer.encode("Guten Morgen.")]
    best = model.generate(ids, num_beams=3, num_return_sequences=3, **WANTED)
    texts = " ".join(text for _, text in Items(best._repr_html_()).texts)
    assert "Good" in texts and texts.count("probability") == 3
    plain = ours("gpt2").generate([[3, 4]], return_dict_in_generate=True, max_new_tokens=2)
    shown = [str(token) for token in plain.sequences[0, 2:].tolist()]
    assert Items(plain._repr_html_()).texts == [(1, " ".join(shown))]
