"""Translations that begin with given text, n-best of searches without beams, and their scores."""

from __future__ import annotations

from typing import Any

import pytest

import decoding
from decoding.text.translate import Translator
from tests.support.demo import DEMO
from tests.support.stand_in import StandIn

GERMAN = [
    "Wir haben heute keine Zeit.",
    "Das ist ein Haus, und da steht noch eines.",
    "Ja.",
]


@pytest.fixture(scope="module")
def model() -> decoding.Model:
    return decoding.load(DEMO, device="cpu", threads=1)


def generated(model: decoding.Model, line: str, prefix: str = "", **options: Any) -> Any:
    """What generate() makes of a line after a prompt."""
    tokenizer = model.tokenizer
    start = model.generation_config["decoder_start_token_id"]
    prompt = [start, *tokenizer.encode_target(prefix)[:-1]]
    output = model.generate(
        [tokenizer.encode(line)],
        decoder_input_ids=[prompt],
        return_dict_in_generate=True,
        **options,
    )
    return tokenizer.decode(output.sequences[0].tolist(), skip_special_tokens=True), output


@pytest.mark.parametrize("beams", [1, 4])
def test_prefixes(model: decoding.Model, beams: int) -> None:
    """The text of generate() behind the prefix, whatever other lines are translated with it."""
    prefixes = ["Today", "", "Of course,"]
    found = model.translate(GERMAN, target_prefix=prefixes, num_beams=beams)
    for line, prefix, text in zip(GERMAN, prefixes, found, strict=True):
        assert text == generated(model, line, prefix, num_beams=beams)[0]
        assert text.startswith(prefix)
    same = model.translate(GERMAN, target_prefix="Today", num_beams=beams)
    assert [same[0], same[1] != found[1]] == [found[0], True]


def test_a_line_in_parts_begins_with_its_prefix_once() -> None:
    model = StandIn(positions=8)
    with pytest.warns(UserWarning, match="in 2 parts"):
        [text] = model.translate(["a bb. C d."], target_prefix="x")
    assert text.count("X") == 1 and text.startswith("X ")


def test_what_is_no_prefix(model: decoding.Model) -> None:
    with pytest.raises(ValueError, match="one text, or one for each line"):
        model.translate(GERMAN, target_prefix=["a", "b"])
    with pytest.raises(ValueError, match="line 1: target_prefix has .* shorten it"):
        model.translate(GERMAN, target_prefix="no " * 999)
    with pytest.raises(ValueError, match="line 2: target_prefix holds half of a surrogate pair"):
        model.translate(GERMAN, target_prefix=["", "\udcff", ""])
    with pytest.raises(ValueError, match="do not go together"):
        model.translate(GERMAN, target_prefix="a", alignments=True, n_best=1)


def test_scores_of_greedy_search(model: decoding.Model) -> None:
    """The sums of the log-probabilities that its steps had, behind a prefix too."""
    for prefix in ("", "Today"):
        found = model.translate(GERMAN, n_best=1, num_beams=1, target_prefix=prefix)
        for line, [best] in zip(GERMAN, found, strict=True):
            text, output = generated(model, line, prefix, num_beams=1, output_logits=True)
            assert best.text == text and best.tokens == int(output.lengths[0])
            assert best.score == pytest.approx(float(output.token_logprobs.sum()), abs=1e-3)


def test_scores_of_samples(model: decoding.Model) -> None:
    """Best first, and of the model's own distribution, whatever the filters leave."""
    options: dict[str, Any] = {"do_sample": True, "num_beams": 1, "top_k": 5, "seed": 1}
    options["temperature"] = 1.3
    tokenizer, same = model.tokenizer, 0
    for line, found in zip(GERMAN, model.translate(GERMAN, n_best=4, **options), strict=True):
        assert len(found) == 4 and len({one.text for one in found}) > 1
        scores = [one.score for one in found]
        assert scores == sorted(scores, reverse=True)
        labels = [tokenizer.encode_target(one.text) for one in found]
        sums = model.score([tokenizer.encode(line)] * 4, labels).sums.tolist()
        same += sum(a == pytest.approx(b, abs=1e-3) for a, b in zip(scores, sums, strict=True))
    assert same >= 2  # samples that the tokenizer cuts as they were drawn


def test_unique(model: decoding.Model) -> None:
    several = list(Translator(model, n_best=8, num_beams=8).stream(GERMAN))
    unique = list(Translator(model, n_best=3, num_beams=8, unique=True).stream(GERMAN))
    assert any(len({one.text for one in line}) < 8 for line in several)
    for every, some in zip(several, unique, strict=True):
        texts = list(dict.fromkeys(one.text for one in every))
        assert [one.text for one in some] == texts[:3]
        best = {one.text: one for one in reversed(every)}
        assert [one.score for one in some] == [best[one.text].score for one in some]
