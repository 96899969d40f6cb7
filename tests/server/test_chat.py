"""/v1/chat/completions, asked by OpenAI's own client; and the ids of chats."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.live import Live
from tests.server.models import TEMPLATE

MESSAGES: Any = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello!"}]
PROMPT = "system: Be kind.\nuser: Hello!\nassistant:"
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "samples": {"temperature": 1, "seed": 1, "n": 3},
    "beams": {"n": 2, "extra_body": {"num_beams": 3}},
    "stop": {"stop": ["e", "a"]},
}


def deltas(events: Any) -> dict[int, str]:
    """The text of each choice, whose first chunk has its role and no text."""
    texts: dict[int, str] = {}
    for event in events:
        for choice in event.choices:
            if choice.index not in texts:
                assert (choice.delta.role, choice.delta.content) == ("assistant", "")
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    return texts


@pytest.mark.parametrize("search", SEARCHES)
def test_a_stream_is_the_plain_reply(search: str, client: Any, live: Live) -> None:
    given: dict[str, Any] = {"model": "bytes", "messages": MESSAGES, "max_completion_tokens": 30}
    given |= SEARCHES[search]
    plain = client.chat.completions.create(**given)
    usage = {"include_usage": True}
    events = list(client.chat.completions.create(**given, stream=True, stream_options=usage))
    texts = {choice.index: choice.message.content for choice in plain.choices}
    assert deltas(events) == texts and len(texts) == given.get("n", 1)
    assert events[-1].usage == plain.usage and plain.usage
    assert plain.usage.prompt_tokens == len(live.model("bytes").tokenizer.encode(PROMPT))
    if search == "greedy":
        model = live.model("bytes")
        assert texts[0] == model.chat(MESSAGES, max_new_tokens=30)


def test_logprobs(client: Any) -> None:
    found = client.chat.completions.create(
        model="bytes", messages=MESSAGES, max_tokens=5, logprobs=True, top_logprobs=3
    )
    said = found.choices[0].logprobs
    assert said and said.content and len(said.content) == 5
    for token in said.content:
        assert bytes(token.bytes or []).decode("utf-8", "replace") == token.token
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == token.logprob, "greedy search takes the likeliest"


def test_logprobs_of_a_stream(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decoding.server.served.Served.interval", lambda served: 0.0)
    given: dict[str, Any] = {"model": "bytes", "messages": MESSAGES, "max_tokens": 60}
    given |= {"logprobs": True, "top_logprobs": 2, "temperature": 1, "seed": 1, "n": 2}
    plain = client.chat.completions.create(**given)
    chunks = [e.choices[0] for e in client.chat.completions.create(**given, stream=True)]
    assert all(chunk.logprobs is None for chunk in chunks if chunk.delta.role)
    for choice in plain.choices:
        said = [c.logprobs.content for c in chunks if c.index == choice.index and c.logprobs]
        found = [token for content in said for token in content]
        expected = choice.logprobs.content
        assert [token.bytes for token in found] == [token.bytes for token in expected]
        both = [[token.logprob for token in tokens] for tokens in (found, expected)]
        assert both[0] == pytest.approx(both[1], abs=1e-4)
        assert {len(token.top_logprobs) for token in found} == {2}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"messages": []}, "messages must be a list of at least one"),
        ({"messages": [[{"role": "user", "content": "a"}]]}, "those of one chat"),
        ({"messages": ["a"]}, "messages[0] must be a mapping"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "be of type text"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "must have a text"),
        ({"response_format": {"type": "json_object"}}, "response_format must be text"),
        ({"tool_choice": "required"}, "tool_choice must be none or auto"),
        ({"functions": []}, "functions is not supported: pass tools"),
        ({"chat_template_kwargs": {"tokenize": False}}, "must not set tokenize"),
        ({"model": "stories"}, "'stories' has no chat template: POST a text to /v1/completions"),
    ],
)
def test_errors(body: dict[str, Any], says: str, live: Live) -> None:
    given = {"model": "bytes", "messages": MESSAGES, "max_tokens": 3, **body}
    said = live.ask("/v1/chat/completions", given)
    assert said.status == 400 and says in said.json["error"]["message"]


def test_the_text_of_a_message_may_come_in_parts(live: Live) -> None:
    def tokens(content: object) -> object:
        messages = [*MESSAGES[:-1], {"role": "user", "content": content}]
        return live.ask("/tokenize", {"model": "bytes", "messages": messages}).json["tokens"]

    parts = [{"type": "text", "text": text} for text in ("Hi", "you")]
    assert tokens(parts[:1]) == tokens("Hi") and tokens(parts) == tokens("Hi\nyou")


def test_tokens(live: Live) -> None:
    tokenizer = live.model("bytes").tokenizer
    found = live.ask("/tokenize", {"model": "bytes", "messages": MESSAGES}).json
    expected = tokenizer.apply_chat_template(MESSAGES, return_dict=False, chat_template=TEMPLATE)
    assert found == {"count": len(expected), "max_model_len": 96, "tokens": expected}
    assert live.ask("/detokenize", {"model": "bytes", "tokens": expected}).json == {
        "prompt": PROMPT
    }
    ids = live.ask("/tokenize", {"prompt": "The dog", "add_special_tokens": False}).json["tokens"]
    assert ids == live.model("stories").tokenizer.encode("The dog", add_special_tokens=False)
    said = live.ask("/detokenize", {"model": "bytes", "tokens": [10**9]})
    assert said.status == 400 and "tokens must be below" in said.json["error"]["message"]
