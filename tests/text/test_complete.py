"""Texts that a model goes on with, and its answers in a chat."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import decoding
from decoding.text.complete import NO_VARIABLES, answers, read_texts
from decoding.text.hypotheses import Hypothesis
from tests.support.demo import DEMO
from tests.support.vocabularies import TEXT
from tests.text.trained_tokenizers import text_generation_directory

TEMPLATE = """
{%- for m in messages %}{{ bos_token }}[{{ m.role }}] {{ m.content }}
{% endfor %}
{%- if tools %}{{ tools | length }}{% endif %}{{ mood }}
{%- if add_generation_prompt %}[assistant]{% endif %}"""
CHAT = [{"role": "user", "content": "Where is my key?"}]
PROMPTS = ["Once upon a time", "The dog", "", "Lily and Tim went to the park. They"]


@pytest.fixture(scope="module")
def stories() -> decoding.Model:
    return decoding.load("tests/data/stories260K", device="cpu")


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[decoding.Model, Any, Any]:
    """A model of ours, transformers' and its tokenizer, with a chat template."""
    folder = text_generation_directory(request.param, tmp_path_factory.mktemp(request.param))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return decoding.load(folder, device="cpu", dtype="float32"), theirs.eval(), tokenizer


def behind(tokenizer: Any, ids: list[int], row: list[int]) -> str:
    """The text of a row of generate(), without that of its prompt."""
    before = tokenizer.decode(ids, skip_special_tokens=True)
    whole = tokenizer.decode(row, skip_special_tokens=True)
    return whole[len(before) :] if whole.startswith(before) else "?"


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=str)
def test_the_text_of_transformers(pair: tuple[Any, Any, Any], options: dict[str, Any]) -> None:
    ours, theirs, tokenizer = pair
    compared = 0
    for text in TEXT:
        ids = tokenizer(text, return_tensors="pt")
        row = theirs.generate(**ids, max_new_tokens=9, do_sample=False, **options)[0].tolist()
        expected = behind(tokenizer, ids["input_ids"][0].tolist(), row)
        if expected != "?":  # bytes of the prompt and of the answer are not one character
            compared += 1
            assert ours.complete(text, max_new_tokens=9, **options) == expected
    assert compared >= 8


@torch.no_grad()
def test_the_chats_of_transformers(pair: tuple[Any, Any, Any]) -> None:
    ours, theirs, tokenizer = pair
    cases: list[tuple[Any, dict[str, Any]]] = [
        (CHAT, {}),
        ([*CHAT, {"role": "assistant", "content": "Here."}, *CHAT], {"tools": [{"name": "so"}]}),
        (CHAT, {"chat_template": "{{ bos_token }}{{ messages[0].content }}"}),
    ]
    for chat, given_options in cases:
        ids = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", **given_options
        )
        row = theirs.generate(**ids, max_new_tokens=9, do_sample=False)[0]
        new = row[ids["input_ids"].shape[1] :]
        expected = tokenizer.decode(new, skip_special_tokens=True)
        assert ours.chat(chat, max_new_tokens=9, **given_options) == expected
        found = ours.chat(chat, max_new_tokens=9, stream=True, **given_options)
        assert "".join(found) == expected


def test_chats(pair: tuple[Any, Any, Any]) -> None:
    model, _, _ = pair
    one = model.chat(CHAT, max_new_tokens=6)
    assert model.chat("Where is my key?", max_new_tokens=6) == one
    other = [{"role": "user", "content": "So?"}]
    assert model.chat([CHAT, other], max_new_tokens=6) == [one, model.chat(other, max_new_tokens=6)]
    mood = model.chat(CHAT, max_new_tokens=6, chat_template_kwargs={"mood": "happy sunny"})
    assert mood != one
    begun = [*CHAT, {"role": "assistant", "content": "Here is"}]
    going_on = model.chat(begun, max_new_tokens=6, continue_final_message=True)
    ids = model.tokenizer.apply_chat_template(begun, continue_final_message=True, return_dict=False)
    [row] = model.generate([ids], max_new_tokens=6).tolist()
    assert going_on == behind(model.tokenizer, ids, row)
    found = model.chat(CHAT, max_new_tokens=6, n_best=2, num_beams=3)
    assert [type(each) for each in found] == [Hypothesis, Hypothesis]
    with pytest.raises(ValueError, match="one chat can be streamed at a time, got 2"):
        model.chat([CHAT, other], stream=True)
    with pytest.raises(TypeError, match="one answer can be streamed: leave n_best out"):
        model.chat(CHAT, stream=True, n_best=2)
    for name in NO_VARIABLES:
        with pytest.raises(ValueError, match=f"chat_template_kwargs must not set {name}"):
            model.chat(CHAT, chat_template_kwargs={name: False})
    with pytest.raises(ValueError, match=r"chat 1 has \d+ tokens, and the model has 96 positions"):
        model.chat([CHAT, [{"role": "user", "content": "so " * 200}]])


def test_shapes_of_results(stories: decoding.Model) -> None:
    sampled: dict[str, Any] = {"do_sample": True, "seed": 3, "max_new_tokens": 8}
    one = stories.complete(PROMPTS[0], max_new_tokens=8)
    assert one == ", there was a little girl n"[: len(one)] and PROMPTS[0] + one
    assert stories.complete([PROMPTS[0]], max_new_tokens=8) == [one]
    assert stories.complete(tuple(PROMPTS[:1]), max_new_tokens=8) == [one]
    assert stories.complete([]) == []
    three = stories.complete(PROMPTS, num_return_sequences=3, **sampled)
    assert [len(each) for each in three] == [3] * 4 and len(set(three[0])) > 1
    assert stories.complete(PROMPTS[0], num_return_sequences=3, **sampled) == three[0]
    with pytest.warns(UserWarning, match="top_k=7 has no effect") as caught:
        stories.complete("The", top_k=7, max_new_tokens=2)
    assert len(caught) == 1 and caught[0].filename == __file__


def test_a_text_in_a_batch_and_alone(stories: decoding.Model) -> None:
    searches: list[dict[str, Any]] = [{"max_new_tokens": 12}, {"max_length": 20}]
    for options in (*searches, {"num_beams": 2, "max_length": 19}):
        found = stories.complete(PROMPTS, **options)
        assert found == [stories.complete(text, **options) for text in PROMPTS]


def test_scores(stories: decoding.Model) -> None:
    searches: list[dict[str, Any]] = [{}, {"do_sample": True, "seed": 1, "temperature": 1.3}]
    for options in searches:
        found = stories.complete(
            PROMPTS, n_best=1 if not options else 3, max_new_tokens=9, **options
        )
        for text, hypotheses in zip(PROMPTS, found, strict=True):
            scores = [each.score for each in hypotheses]
            assert scores == sorted(scores, reverse=True)
            for each in hypotheses[:1] if text else []:
                again = float(stories.score(text, each.text).sums)
                if stories.tokenizer.encode(text + each.text) == retold(stories, text, each.text):
                    assert each.score == pytest.approx(again, abs=1e-4)
    beams = stories.complete(PROMPTS[0], n_best=3, num_beams=3, max_new_tokens=9)
    ids = [stories.tokenizer.encode(PROMPTS[0])]
    output = stories.generate(
        ids,
        num_beams=3,
        num_return_sequences=3,
        max_new_tokens=9,
        return_dict_in_generate=True,
        output_sequences_scores=True,
    )
    assert [each.score for each in beams] == output["sequences_scores"].tolist()


def retold(model: decoding.Model, text: str, answer: str) -> list[int]:
    """The ids of a text and an answer, each cut alone."""
    ids = model.tokenizer.encode(text)
    return ids + model.tokenizer.encode(text + answer)[len(ids) :]


def test_lengths(stories: decoding.Model) -> None:
    tokenizer = stories.tokenizer
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        long = stories.complete("Once")
    assert 200 < len(tokenizer.encode("Once" + long)) <= 258 + 20
    assert 490 < len(tokenizer.encode("the " * 480 + stories.complete("the " * 480)))
    for error, message, call in [
        (
            ValueError,
            r"texts\[1\] has 700 tokens, and the model has 512 positions: shorten it",
            lambda: stories.complete(["a", "the " * 698]),
        ),
        (
            ValueError,
            r"texts\[1\] has 6 tokens, and max_length=6 counts them: raise it",
            lambda: stories.complete(["a", "the " * 4], max_length=6),
        ),
        (
            ValueError,
            "9999 new tokens behind a prompt of 2",
            lambda: stories.complete("a", max_new_tokens=9999),
        ),
    ]:
        with pytest.raises(error, match=message):
            call()


def test_an_empty_text(pair: tuple[Any, Any, Any]) -> None:
    model, _, _ = pair
    assert model.complete("", max_new_tokens=3) == model.complete([""], max_new_tokens=3)[0]
    model.generation_config, kept = {}, model.generation_config
    try:
        if not model.tokenizer.encode(""):
            with pytest.raises(ValueError, match="the text has no tokens, and the model no bos"):
                model.complete("", max_new_tokens=3)
    finally:
        model.generation_config = kept


def test_what_is_refused(stories: decoding.Model) -> None:
    complete: Any = stories.complete
    demo = decoding.load(DEMO, device="cpu")
    for error, message, call in [
        (TypeError, "texts must be a str or .* got int", lambda: complete(3)),
        (TypeError, r"texts\[0\] must be a str, got bytes", lambda: complete([b""])),
        (ValueError, r"texts\[0\] holds half of a surrogate", lambda: complete(["\udc80"])),
        (TypeError, "output_scores is for generate", lambda: complete("a", output_scores=True)),
        (TypeError, "attention_mask is for generate", lambda: complete("a", attention_mask=1)),
        (TypeError, "has no option shortlist", lambda: complete("a", shortlist="x")),
        (TypeError, "the model's own tokenizer", lambda: complete("a", tokenizer=1)),
        (TypeError, "no option 'temprature'", lambda: complete("a", temprature=1)),
        (ValueError, "n_best must be at least 1, got 0", lambda: complete("a", n_best=0)),
        (ValueError, "greedy search finds one", lambda: complete("a", n_best=2)),
        (
            TypeError,
            "n_best sets num_return_sequences: pass one of them",
            lambda: complete("a", n_best=2, num_return_sequences=2),
        ),
        (ValueError, r"complete\(\) goes on with.* use translate", lambda: demo.complete("a")),
        (ValueError, r"chat\(\) goes on with texts.* use translate", lambda: demo.chat(CHAT)),
        (ValueError, "hold no chat template", lambda: stories.chat(CHAT)),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            call()


@given(text=st.text(alphabet="abcdehilmnorstuw .,!'é👋", max_size=30))
def test_text_and_completion_are_the_whole(stories: decoding.Model, text: str) -> None:
    """The spaces between them are right."""
    found = stories.complete(text, max_new_tokens=4)
    ids = stories.tokenizer.encode(text)
    [row] = stories.generate([ids], max_new_tokens=4).tolist()
    whole = stories.tokenizer.decode(row, skip_special_tokens=True)
    assert whole.endswith(found)
    if "\ufffd" not in whole and stories.tokenizer.decode(ids, skip_special_tokens=True) == text:
        assert text + found == whole


def test_texts_in_generate(stories: decoding.Model) -> None:
    tokenizer = stories.tokenizer
    ids = [tokenizer.encode(text) for text in PROMPTS[:2]]
    expected = stories.generate(ids, max_new_tokens=5)
    assert stories.generate(PROMPTS[:2], max_new_tokens=5).equal(expected)
    alone = stories.generate(PROMPTS[0], max_new_tokens=5)
    assert alone.equal(stories.generate([ids[0]], max_new_tokens=5)) and alone.shape[0] == 1
    assert stories.generate(np.array(PROMPTS[:2]), max_new_tokens=5).equal(expected)
    [[*new]] = [sum((step[0] for step in stories.stream(PROMPTS[0], max_new_tokens=5)), [])]
    assert new == alone[0, len(ids[0]) :].tolist()
    with pytest.raises(ValueError, match="attention_mask belongs to ids: leave it out"):
        stories.generate("a", attention_mask=[[1]])
    with pytest.raises(TypeError, match=r"input_ids\[1\] must be a str, got int"):
        stories.generate(["a", 3])
    with pytest.raises(TypeError, match="input_ids must be a str or a list of str, got bytes"):
        stories.generate(b"a")


def test_the_pad_token_in_a_text_counts(stories: decoding.Model) -> None:
    """As where transformers' tokenizer gives the mask."""
    text = "The <unk> cat <unk> was"
    options: dict[str, Any] = {"max_new_tokens": 12, "pad_token_id": 0}
    ids = [stories.tokenizer.encode(text)]
    assert 0 in ids[0]
    whole = stories.generate(ids, attention_mask=[[1] * len(ids[0])], **options)
    assert torch.equal(stories.generate(text, **options), whole)
    assert not torch.equal(stories.generate(ids, **options), whole), "its padding would not count"
    expected = stories.complete(text, max_new_tokens=12)
    assert stories.complete([text, "Lily"], **options)[0] == expected
    assert "".join(stories.stream_text(text, **options)) == expected
    assert stories.complete("Once<unk>", **options)


def test_seeds_of_some_prompts(stories: decoding.Model) -> None:
    seeded, free = read_texts(stories, ["Once", "The dog"])
    prompts = [replace(seeded, options={"seed": 5}), free]
    options = {"do_sample": True, "max_new_tokens": 20}
    found = [answers(stories, prompts, None, options) for _ in range(3)]
    assert len({first for first, _ in found}) == 1 < len({second for _, second in found})


def test_the_default_of_generate_is_said(stories: decoding.Model) -> None:
    with pytest.warns(UserWarning, match="ends at 20 new tokens.*pass max_new_tokens") as caught:
        assert stories.generate([[1, 403]]).shape == (1, 22)
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stories.generate([[1, 403]], max_length=9)
        decoding.load(DEMO, device="cpu").generate([[5, 0]])  # whose files set one


def test_scores_of_texts(stories: decoding.Model) -> None:
    tokenizer = stories.tokenizer
    found = stories.score(PROMPTS[:2])
    ids = [tokenizer.encode(text) for text in PROMPTS[:2]]
    assert found.token_logprobs.equal(stories.score(ids).token_logprobs)
    text, target = "Once upon", " a time, there was a cat"
    whole, prompt = tokenizer.encode(text + target), tokenizer.encode(text)
    labels = [[-100] * len(prompt) + whole[len(prompt) :]]
    expected = stories.score([whole], labels)
    found = stories.score(text, target)
    assert found.token_logprobs.equal(expected.token_logprobs)
    assert int(found.lengths) == len(whole) - len(prompt) > 5
    inside = stories.score("Once up", "on a time")  # a token is in both
    assert int(inside.lengths) == len(whole[:0]) + len(tokenizer.encode("Once upon a time")) - len(
        [a for a, b in zip(tokenizer.encode("Once up"), whole, strict=False) if a == b]
    )
    demo = decoding.load(DEMO, device="cpu")
    german, english = ["Guten Morgen.", "Wo bist du?"], ["Good morning.", "Where are you?"]
    found = demo.score(german, english)
    expected = demo.score(
        [demo.tokenizer.encode(line) for line in german],
        [demo.tokenizer.encode_target(line) for line in english],
    )
    assert found.token_logprobs.equal(expected.token_logprobs)
    assert float(demo.score(german[0], english[0]).sums) == pytest.approx(float(found.sums[0]))
    score = demo.score
    for error, message, call in [
        (ValueError, "a model with an encoder needs targets", lambda: score(german)),
        (ValueError, "as many texts as texts: got 1", lambda: score(german, english[:1])),
        (TypeError, r"targets\[0\] must be a str, got int", lambda: score(german, [3, 4])),
        (ValueError, "belong to texts, and these are ids", lambda: score([[1]], src_lang="de")),
        (ValueError, "has no languages to name", lambda: score("a", "b", src_lang="de")),
        (ValueError, "attention_mask belongs to ids", lambda: score("a", "b", [[1]])),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            call()
