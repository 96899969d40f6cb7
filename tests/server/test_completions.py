"""/v1/completions, asked by OpenAI's own client."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from decoding.server.openai.answers import Answers
from decoding.server.openai.choices import StopStrings
from decoding.server.openai.logprobs import shown
from decoding.server.options import read_search
from decoding.text.complete import Prompt
from tests.server.live import Live

ONCE = "Once upon a time"
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.2, "seed": 3},
    "samples": {"temperature": 1.2, "seed": 3, "n": 3},
    "beams": {"extra_body": {"num_beams": 4, "length_penalty": 0.5}},
    "best beams": {"extra_body": {"num_beams": 4}, "n": 3},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    "stop": {"stop": ["play", "girl na"]},
    "stop in beams": {"stop": "She", "extra_body": {"num_beams": 3}},
    "stop in samples": {"stop": "e", "n": 4, "temperature": 1.5, "seed": 1},
    "stop, kept": {"stop": "girl", "extra_body": {"include_stop_str_in_output": True}},
    "several prompts": {"prompt": [ONCE, "The dog", [403, 407, 261]], "seed": 1, "temperature": 1},
    "guided": {"extra_body": {"guidance_scale": 1.5}, "stop": "She"},
    "guided samples": {"extra_body": {"guidance_scale": 1.5}, "n": 2, "temperature": 1, "seed": 4},
    "contrastive": {"extra_body": {"penalty_alpha": 0.6, "top_k": 4}},
    "constrained": {"extra_body": {"num_beams": 3, "force_words_ids": [[40], [41, 42]]}},
}


def text_of(events: Any) -> tuple[dict[int, str], dict[int, str]]:
    """Texts and reasons of a stream, by choice."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for event in events:
        for choice in event.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            assert choice.index not in reasons, "nothing comes after the end"
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    return texts, reasons


def logprobs_of(events: Any) -> dict[int, Any]:
    """The log-probabilities of a stream, by choice, as those of its chunks together."""
    found: dict[int, Any] = {}
    for event in events:
        for choice in event.choices:
            if (said := choice.logprobs) is None:
                continue
            if choice.index not in found:
                found[choice.index] = said.model_copy(deep=True)
                continue
            whole = found[choice.index]
            for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
                if getattr(said, name) is not None:
                    getattr(whole, name).extend(getattr(said, name))
    return found


@pytest.mark.parametrize("model", ["stories", "bytes"])
@pytest.mark.parametrize("search", SEARCHES)
def test_a_stream_is_the_plain_reply(search: str, model: str, client: Any) -> None:
    given: dict[str, Any] = {"model": model, "prompt": ONCE, "max_tokens": 60, **SEARCHES[search]}
    if model == "bytes" and "several" in search:
        given["prompt"] = [ONCE, "The dog", [40, 41]]
    plain = client.completions.create(**given)
    usage = {"include_usage": True}
    events = list(client.completions.create(**given, stream=True, stream_options=usage))
    texts, reasons = text_of(events)
    assert texts == {choice.index: choice.text for choice in plain.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in plain.choices}
    assert events[-1].usage == plain.usage and not events[-1].choices
    assert all(event.usage is None for event in events[:-1])
    assert len(texts) == given.get("n", 1) * (3 if "several" in search else 1)


@pytest.mark.parametrize(
    "options",
    [
        {"guidance_scale": 5.0},
        {"guidance_scale": 3.0, "num_beams": 3},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"num_beams": 4, "force_words_ids": [[403], [407, 261]]},
    ],
    ids=str,
)
def test_options_that_step_alone(options: dict[str, Any], live: Live) -> None:
    """As many at once as wait, beside others that share steps."""
    body, model = {"prompt": ONCE, "max_tokens": 40}, live.model("stories")
    alone = model.complete(ONCE, max_new_tokens=40, **options)
    others = model.complete(ONCE, max_new_tokens=40)
    asked = [body | options, body] * 4
    with ThreadPoolExecutor(len(asked)) as threads:
        found = list(threads.map(lambda each: live.ask("/v1/completions", each), asked))
    texts = [said.json["choices"][0]["text"] for said in found]
    assert texts == [alone, others] * 4 and alone != others
    live.assert_idle()


def test_no_time_is_a_length(live: Live) -> None:
    """max_time ends a text as its length does."""
    body: dict[str, Any] = {"prompt": ONCE, "max_tokens": 40, "max_time": 0}
    said = live.ask("/v1/completions", body).json
    assert said["choices"][0]["finish_reason"] == "length"
    assert said["usage"]["completion_tokens"] == 1
    body |= {"max_time": 60, "stop": "girl"}
    assert live.ask("/v1/completions", body).json["choices"][0]["finish_reason"] == "stop"


def test_answers_are_the_models_own(live: Live, client: Any) -> None:
    model = live.model("stories")
    options: dict[str, Any] = {"num_beams": 4, "max_new_tokens": 30, "no_repeat_ngram_size": 2}
    found = client.completions.create(
        model="stories", prompt=ONCE, n=3, extra_body=options, max_tokens=30
    )
    expected = [one.text for one in model.complete(ONCE, n_best=3, **options)]
    assert [choice.text for choice in found.choices] == expected
    found = client.completions.create(model="stories", prompt="The dog", temperature=0.9, seed=3)
    assert found.choices[0].text == model.complete(
        "The dog", do_sample=True, temperature=0.9, seed=3
    )
    assert found.choices[0].finish_reason == "stop" and found.usage
    penalties: dict[str, Any] = {"presence_penalty": 1.5, "frequency_penalty": 0.5}
    given = {"model": "stories", "prompt": ONCE, "max_tokens": 60}
    penalised = client.completions.create(**given, **penalties).choices[0].text
    assert penalised == model.complete(ONCE, max_new_tokens=60, **penalties)
    assert penalised != client.completions.create(**given).choices[0].text
    ids = model.tokenizer.encode("The dog")
    generated = model.generate([ids], do_sample=True, temperature=0.9, seed=3, max_new_tokens=256)
    assert found.usage.prompt_tokens == len(ids)
    assert found.usage.completion_tokens == generated.shape[1] - len(ids)


def test_best_of_keeps_the_most_probable(live: Live, client: Any) -> None:
    given: dict[str, Any] = {"prompt": "The", "seed": 1, "temperature": 1, "max_tokens": 12}
    found = client.completions.create(model="stories", **given, n=2, best_of=6)
    model = live.model("stories")
    options: dict[str, Any] = {"do_sample": True, "seed": 1, "max_new_tokens": 12}
    drawn = model.complete("The", num_return_sequences=6, **options)
    scored = model.complete("The", n_best=6, **options)
    best = sorted(scored, key=lambda one: one.score / one.tokens, reverse=True)
    assert [choice.text for choice in found.choices] == [one.text for one in best[:2]]
    assert [choice.index for choice in found.choices] == [0, 1]
    assert set(drawn) == {one.text for one in scored} and found.usage
    assert found.usage.completion_tokens == sum(one.tokens for one in scored)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(stream: bool, live: Live, client: Any) -> None:
    given: dict[str, Any] = {"model": "stories", "prompt": ONCE, "max_tokens": 20, "logprobs": 1}
    given |= {"seed": 2, "temperature": 1}
    if stream:
        found = list(client.completions.create(**given, stream=True))
        said, text = logprobs_of(found)[0], text_of(found)[0][0]
    else:
        [choice] = client.completions.create(**given).choices
        said, text = choice.logprobs, choice.text
    assert "".join(said.tokens) == text and said.text_offset[0] == 0
    model = live.model("stories")
    ids, new = model.tokenizer.encode(ONCE), len(said.tokens)
    row = model.generate([ids], do_sample=True, seed=2, temperature=1.0, max_new_tokens=20)
    scores = model.score(row)
    logprobs = scores.token_logprobs[0, len(ids) :].tolist()
    assert said.token_logprobs == pytest.approx(logprobs, abs=1e-5)
    ranks = scores.rank[0, len(ids) :].tolist()
    assert 1 in ranks and max(ranks) > 1, "a test of both"
    for i in range(new):
        [(token, likely)] = said.top_logprobs[i].items()
        assert (token == said.tokens[i]) == (ranks[i] == 1)
        assert (likely > logprobs[i]) == (ranks[i] > 1)


@pytest.mark.parametrize("top", [0, 1, 3])
@pytest.mark.parametrize("search", [name for name in SEARCHES if name != "several prompts"])
@pytest.mark.parametrize("model", ["stories", "bytes"])
def test_logprobs_come_with_their_tokens(
    model: str, search: str, top: int, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decoding.server.served.Served.interval", lambda served: 0.0)
    given: dict[str, Any] = {"model": model, "prompt": ONCE, "max_tokens": 60, "logprobs": top}
    given |= SEARCHES[search]
    plain = client.completions.create(**given)
    events = list(client.completions.create(**given, stream=True))
    together = logprobs_of(events)
    for choice in plain.choices:
        said, expected = together[choice.index], choice.logprobs
        assert said.tokens == expected.tokens and said.text_offset == expected.text_offset
        assert said.token_logprobs == pytest.approx(expected.token_logprobs, abs=1e-4)
        assert (said.top_logprobs is None) == (not top)
        for own, whole in zip(said.top_logprobs or (), expected.top_logprobs or (), strict=True):
            assert sorted(own.values()) == pytest.approx(sorted(whole.values()), abs=1e-4)
    chunks = [choice for event in events for choice in event.choices]
    if model == "stories" and search in ("greedy", "samples", "beams"):
        # Elsewhere a chunk may end within a token: before a stop string, or a part of a character.
        text, tokens = defaultdict[int, str](str), defaultdict[int, str](str)
        for chunk in chunks:
            text[chunk.index] += chunk.text
            tokens[chunk.index] += "".join(chunk.logprobs.tokens if chunk.logprobs else [])
            assert tokens[chunk.index].startswith(text[chunk.index]), "text before its tokens"
        assert tokens == text


@pytest.mark.parametrize("top", [1, 3])
@pytest.mark.parametrize("search", ["greedy", "samples", "beams"])
def test_logprobs_do_not_wait_for_the_end(
    search: str, top: int, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decoding.server.served.Served.interval", lambda served: 0.0)
    given: dict[str, Any] = {"model": "stories", "prompt": ONCE, "max_tokens": 300}
    given |= {"logprobs": top, "stream": True, **SEARCHES[search]}
    for _ in range(10):  # a machine that is busy may hear of all tokens at once
        choices = [event.choices[0] for event in client.completions.create(**given)]
        first = [choice for choice in choices if choice.index == 0 and choice.logprobs]
        if len(first) > 2 and first[0].finish_reason is None:
            return
    raise AssertionError("the log-probabilities came all at once, ten times")


@pytest.mark.parametrize("top", [0, 1, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_an_echo(stream: bool, top: int, live: Live, client: Any) -> None:
    """Are those of the prompt's tokens, too, but for the first."""
    given: dict[str, Any] = {"model": "stories", "prompt": ONCE, "max_tokens": 5, "logprobs": top}
    given |= {"echo": True, "stream": stream}
    found = client.completions.create(**given)
    said = logprobs_of(found)[0] if stream else found.choices[0].logprobs
    text = text_of(client.completions.create(**given | {"stream": True}))[0][0]
    model = live.model("stories")
    [row] = model.generate([model.tokenizer.encode(ONCE)], max_new_tokens=5).tolist()
    assert said.tokens == [shown(live.served("stories").token_text(id)) for id in row]
    scores = model.score([row])
    assert said.token_logprobs[0] is None and len(said.token_logprobs) == len(row)
    logprobs = scores.token_logprobs[0, 1:].tolist()
    assert said.token_logprobs[1:] == pytest.approx(logprobs, abs=1e-4)
    for token, offset in list(zip(said.tokens, said.text_offset, strict=True))[2:]:
        assert text[offset:].startswith(token)
    assert said.text_offset[:2] == [0, 0], "the start token is not shown"
    if not top:
        assert said.top_logprobs is None
        return
    assert said.top_logprobs[0] is None
    assert {len(likely) for likely in said.top_logprobs[1:]} == {top}
    for token, value, likely, rank in list(
        zip(said.tokens, said.token_logprobs, said.top_logprobs, scores.rank[0], strict=True)
    )[1:]:
        assert (max(likely, key=likely.get) == token) == (rank == 1)
        assert rank > top or likely[token] == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("top", [1, 3])
def test_logprobs_of_rows_that_are_read_to_different_places(top: int, live: Live) -> None:
    """As long as the model allows: what is read of one row again makes room for the other."""
    served = live.served("bytes")
    search = read_search({"n": 2, "temperature": 1}, served)
    prompt = Prompt("prompt", [5, 6, 7], [5, 6, 7])
    answers = Answers(served, [prompt], search, time.monotonic(), top)
    whole, parts = answers._choices(0), answers._choices(0)
    for index in range(2):
        whole[index].ids = [(7 * i + index) % 200 for i in range(served.positions - 3)]
    parts[0].ids, parts[1].ids = whole[0].ids[:70], whole[1].ids[:10]
    asyncio.run(answers._find_logprobs(0, parts))
    for part, other in zip(parts, whole, strict=True):
        part.ids = other.ids
    for choices in (parts, whole):
        asyncio.run(answers._find_logprobs(0, choices))
    for part, other in zip(parts, whole, strict=True):
        assert [each.text for each in part.logprobs] == [each.text for each in other.logprobs]
        values = [[each.logprob for each in choice.logprobs] for choice in (part, other)]
        assert len(values[0]) == len(part.ids) and values[0] == pytest.approx(values[1], abs=1e-4)


def test_an_echo_alone_has_no_logprobs(client: Any) -> None:
    given: dict[str, Any] = {"model": "stories", "prompt": ONCE, "max_tokens": 5, "echo": True}
    assert client.completions.create(**given).choices[0].logprobs is None
    events = list(client.completions.create(**given, stream=True))
    assert not logprobs_of(events) and text_of(events)[0][0].startswith(ONCE)


def test_several_likely_tokens(live: Live, client: Any) -> None:
    model, text_of = live.model("stories"), live.served("stories").token_text
    given: dict[str, Any] = {"model": "stories", "prompt": ONCE, "max_tokens": 12, "logprobs": 5}
    said = client.completions.create(**given).choices[0].logprobs
    output: Any = model.generate(
        [model.tokenizer.encode(ONCE)],
        max_new_tokens=12,
        output_logits=True,
        return_dict_in_generate=True,
    )
    for own, likely, [logits] in zip(
        said.token_logprobs, said.top_logprobs, output.logits, strict=True
    ):
        high, ids = logits.log_softmax(-1).topk(5)
        assert own == pytest.approx(float(high[0]), abs=1e-4)
        both = ids.tolist(), high.tolist()
        expected = {shown(text_of(id)): value for id, value in zip(*both, strict=True)}
        assert likely == pytest.approx(expected, abs=1e-4)


def test_several_likely_tokens_of_choices(client: Any) -> None:
    """Of different lengths: what is asked for besides changes no log-probability."""
    given: dict[str, Any] = {"model": "stories", "prompt": ONCE, "max_tokens": 30, "n": 4}
    given |= {"seed": 2, "temperature": 1, "stop": "w"}
    alone, several = (
        {
            choice.index: choice.logprobs
            for choice in client.completions.create(**given, **asked).choices
        }
        for asked in ({"logprobs": 1}, {"logprobs": 3})
    )
    assert len({len(said.tokens) for said in several.values()}) > 1
    for index, said in several.items():
        assert said.tokens == alone[index].tokens
        assert said.token_logprobs == pytest.approx(alone[index].token_logprobs, abs=1e-4)
        for [*three], [best] in zip(
            map(dict.values, said.top_logprobs),
            map(dict.values, alone[index].top_logprobs),
            strict=True,
        ):
            assert three == sorted(three, reverse=True) and three[0] == pytest.approx(
                best, abs=1e-4
            )


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"max_tokns": 3}, 400, "unknown field 'max_tokns'; did you mean 'max_tokens'?"),
        ({"beam_size": 2, "zzz": 1}, 400, "'beam_size'; did you mean 'num_beams'?, 'zzz'"),
        ({"model": "other"}, 404, "there is no model 'other', only stories, bytes"),
        ({"model": "demo"}, 400, "does not go on with texts: use POST /translate"),
        ({"prompt": None}, 400, "prompt must be a string"),
        ({"prompt": [999999]}, 400, "must be from 0 to 511, got 999999"),
        ({"prompt": [5, 10**20], "echo": True}, 400, "ids of a prompt"),
        ({"prompt": [-1]}, 400, "ids of a prompt"),
        ({"prompt": "word " * 2000}, 400, "positions"),
        ({"temperature": -1}, 400, "temperature must be a finite number at least 0"),
        ({"temperature": "hot"}, 400, "temperature must be a number"),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"n": 2, "temperature": 0}, 400, "greedy search finds one sequence"),
        ({"n": 2, "best_of": 1}, 400, "best_of=1 must be at least n=2"),
        ({"best_of": 3, "stream": True, "temperature": 1}, 400, "cannot be streamed"),
        ({"num_beams": 17}, 400, "num_beams=17: this server allows 16"),
        ({"n": 10000}, 400, "num_return_sequences=10000: this server allows 16"),
        ({"presence_penalty": "1"}, 400, "presence_penalty must be a number"),
        ({"stop": ["a"] * 17}, 400, "stop may have 16 strings"),
        ({"stop": ["a" * 129]}, 400, "128 characters"),
        ({"stop": 3}, 400, "stop must be a string or a list of strings"),
        ({"stop_strings": ["a" * 129]}, 400, "128 characters"),
        ({"stop": "", "stop_strings": ["a"]}, 400, "stop_strings is another name of stop"),
        ({"logprobs": 21}, 400, "logprobs must be at most 20"),
        ({"suffix": "end"}, 400, "suffix is not supported"),
        ({"stream_options": {"include_usage": True}}, 400, "needs stream=true"),
        ({"response_format": {"type": "json_object"}}, 400, "by a grammar"),
        ({"penalty_alpha": 0.6}, 400, "top_k=50: this server allows 16"),
        ({"num_beams": 2, "penalty_alpha": 0.6, "force_words_ids": [[2]]}, 400, "the end token"),
        ({"logits_processor": []}, 400, "unknown field 'logits_processor'"),
        ({"prompt": ["a"] * 513}, 400, "this server allows 512"),
        ({"num_beams": 8, "patience": 9.0, "early_stopping": True}, 400, "lower patience"),
        ({"prompt": "half \ud83d"}, 400, "half of a surrogate pair"),
    ],
)
def test_errors(body: dict[str, Any], status: int, says: str, live: Live) -> None:
    said = live.ask("/v1/completions", {"prompt": "The", "max_tokens": 4, **body})
    error = said.json["error"]
    assert (said.status, set(error)) == (status, {"message", "type", "param", "code"})
    assert says in error["message"], error
    assert error["type"] in ("invalid_request_error", "not_found_error")


def test_the_client_knows_our_errors(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="stories", prompt="a", extra_body={"num_beans": 2})
    assert (caught.value.param, caught.value.code) == ("num_beans", "unknown_field")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="stories", prompt="a", max_tokens=0)
    assert caught.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gone", prompt="a")
    assert [model.id for model in client.models.list()][:2] == ["stories", "bytes"]
    assert client.models.retrieve("demo").id == "demo"


def test_one_beam_samples_as_none_does(live: Live) -> None:
    asked = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 1.7, "seed": 1}
    greedy, *found = (
        live.ask("/v1/completions", body).json["choices"][0]["text"]
        for body in ({**asked, "temperature": 0}, asked, {**asked, "num_beams": 1})
    )
    assert found[0] == found[1] != greedy
    searched = live.ask("/v1/completions", {**asked, "use_beam_search": True}).json
    assert searched["choices"][0]["text"] == greedy


def test_a_number_that_is_infinite_is_refused(live: Live) -> None:
    """Also where null was asked for before, as JSON writes it."""
    for value, status in ((b"null", 200), (b"1e999", 400), (b"null", 200)):
        said = live.ask("/v1/completions", b'{"prompt": "a", "temperature": %s}' % value)
        assert said.status == status
    assert "1e999 is too large a number" in live.ask("/v1/completions", b'{"n": 1e999}').body


def test_ends(live: Live) -> None:
    """What ends a text is told by its reason, and may be changed."""
    greedy = {"prompt": ONCE, "max_tokens": 40}
    whole = live.ask("/v1/completions", greedy).json["choices"][0]
    assert whole["finish_reason"] == "length"
    model = live.model("stories")
    end = model.tokenizer.encode(ONCE + whole["text"])[10]
    found = live.ask("/v1/completions", greedy | {"stop_token_ids": [end]}).json["choices"][0]
    assert found["finish_reason"] == "stop" and whole["text"].startswith(found["text"])
    assert len(found["text"]) < len(whole["text"])
    bias = {str(end): -100}
    other = live.ask("/v1/completions", greedy | {"logit_bias": bias}).json["choices"][0]
    assert end not in model.tokenizer.encode(ONCE + other["text"])
    story = {"prompt": "The dog", "temperature": 0.9, "seed": 3, "max_tokens": 250}
    assert live.ask("/v1/completions", story).json["choices"][0]["finish_reason"] == "stop"
    longer = live.ask("/v1/completions", story | {"ignore_eos": True}).json
    assert longer["choices"][0]["finish_reason"] == "length"
    assert longer["usage"]["completion_tokens"] == 250


def test_stop_strings_in_any_parts() -> None:
    """Whatever pieces a text comes in, the same is let through."""
    text = "aabababcabcd and so on"
    for strings in (["abc"], ["abab", "bc"], ["abcd", "b"], ["x"], ["so on!"], ["on", "n"]):
        for include in (False, True):
            found = set()
            for size in range(1, len(text) + 1):
                stops = StopStrings(strings, include)
                parts = [stops.add(text[i : i + size]) for i in range(0, len(text), size)]
                found.add(("".join(parts) + stops.rest(), stops.found))
            assert len(found) == 1, (strings, found)
    stops = StopStrings(["stop"], False)
    assert [stops.add(part) for part in ("one st", "ep, sto")] == ["one ", "step, "]
    assert (stops.rest(), stops.found) == ("sto", False)
