"""POST /v1/chat/completions: the answer in a chat, by the model's own chat template."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from random import getrandbits
from typing import Any

from decoding.generation.checks import flag, whole
from decoding.server.endpoint import Call, Events, Reply
from decoding.server.errors import ApiError, reading
from decoding.server.fields import Fields, check_known, mapping, take, text
from decoding.server.openai.answers import Answers, chunks
from decoding.server.openai.choices import Choice, Piece
from decoding.server.openai.completions import (
    Asked,
    check_best_of,
    check_top,
    note,
    read_stream,
    usage,
)
from decoding.server.openai.logprobs import shown
from decoding.server.options import KNOWN, OURS, read_search
from decoding.server.served import Served
from decoding.server.site import Site
from decoding.server.tasks import quickly
from decoding.text.complete import Prompt, read_chats

TEMPLATE = ("chat_template_kwargs", "continue_final_message", "documents", "tools")
PROMPT = ("messages", *TEMPLATE)
OTHERS = ("logprobs", "messages", "response_format", "tool_choice", "top_logprobs")
NAMES = {*KNOWN, *OURS, *TEMPLATE, *OTHERS}
REFUSED = {
    "audio": "this server answers with text",
    "chat_template": "the model's own is used",
    "function_call": "pass tools; the answer's text is returned as it is",
    "functions": "pass tools; the answer's text is returned as it is",
    "modalities": "this server answers with text",
    "parallel_tool_calls": "the answer's text is returned as it is",
}


async def chat(call: Call) -> Reply | Events:
    fields = call.fields()
    own = {name: fields.pop(name) for name in PROMPT if name in fields}
    asked: Asked = call.kept.once(fields, partial(read, call.site))
    asked.served.check_room(asked.search.config)
    with reading:
        prompt = await read_prompt(own, asked.served, len(call.body))
    answers = asked.answers(call, [prompt])
    if asked.stream:
        return stream(call, answers, asked.usage)
    pieces = await answers.of(0)
    note(call, answers, [piece.choice for piece in pieces])
    choices = [
        as_choice(piece) | {"message": {"role": "assistant", "content": piece.text}}
        for piece in pieces
    ]
    written = frame(answers, "chat.completion")
    return Reply(written | {"choices": choices, "usage": usage(answers)})


def read(site: Site, fields: Fields) -> Asked:
    check_known(fields, NAMES, REFUSED)
    served = site.generator(take(fields, "model", text))
    stream, with_usage = read_stream(fields)
    check_text(fields)
    logprobs = take(fields, "logprobs", flag, False)
    top = take(fields, "top_logprobs", whole(0), 0)
    check_top("top_logprobs", top)
    search = read_search(fields, served)
    check_best_of(stream, search.n, search.looked_for)
    served.check_reads_again(logprobs or search.n < search.looked_for)
    return Asked(served, search, top if logprobs else -1, stream, with_usage)


def check_text(fields: Fields) -> None:
    """Raises ApiError where the client wants more than text."""
    form = take(fields, "response_format", mapping, {"type": "text"})
    if form.get("type") != "text":
        raise ApiError(
            400,
            "response_format must be text: this server constrains nothing by a grammar",
            param="response_format",
        )
    choice = fields.pop("tool_choice", None)
    if choice not in (None, "none", "auto"):
        raise ApiError(400, "tool_choice must be none or auto", param="tool_choice")


async def read_prompt(fields: Fields, served: Served, size: int) -> Prompt:
    """size: of the body."""
    if not served.model.tokenizer.chat_template:
        raise ApiError(
            400, f"the model {served.name!r} has no chat template: POST a text to /v1/completions"
        )
    messages = fields.pop("messages", None)
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list of at least one message", param="messages")
    if isinstance(messages[0], list):
        raise ApiError(400, "messages must be those of one chat", param="messages")
    messages = [with_text(message) for message in messages]
    template = {name: fields.pop(name, None) for name in ("tools", "documents")}
    for name, value in template.items():
        if value is not None and not isinstance(value, list):
            raise ApiError(400, f"{name} must be a list", param=name)
    template["continue_final_message"] = take(fields, "continue_final_message", flag, False)
    variables = take(fields, "chat_template_kwargs", mapping, {})
    if wrong := variables.keys() & {*template, "chat_template"}:
        raise ApiError(400, f"chat_template_kwargs must not set {min(wrong)}")
    prompts, _ = await quickly(size, read_chats, served.model, messages, template | variables)
    return prompts[0]


def with_text(message: Any) -> Any:
    """A message whose content is one text. A client may send that in parts, which most templates
    would write as Python writes a list; as in vLLM, each is a line. Raises ApiError for a part that
    is no text."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    texts = []
    for part in content:
        if not (isinstance(part, dict) and part.get("type") == "text"):
            raise ApiError(400, "a part of a message must be of type text", param="messages")
        if not isinstance(part.get("text"), str):
            raise ApiError(400, "a part of type text must have a text", param="messages")
        texts.append(part["text"])
    return {**message, "content": "\n".join(texts)}


async def stream(call: Call, answers: Answers, with_usage: bool) -> AsyncGenerator[Any, None]:
    """The first chunk of each choice has the role, and no text."""
    base = frame(answers, "chat.completion.chunk")
    base |= {"usage": None} if with_usage else {}
    begun, ended = set[int](), list[Choice]()
    async with aclosing(chunks(answers)) as pieces:
        async for piece in pieces:
            choice = piece.choice
            if choice.index not in begun:
                begun.add(choice.index)
                role = {"role": "assistant", "content": ""}
                first = {"index": choice.index, "delta": role}
                yield base | {"choices": [first | {"logprobs": None, "finish_reason": None}]}
            if piece.finish is not None:
                ended.append(choice)
            delta = {"content": piece.text} if piece.text else {}
            yield base | {"choices": [as_choice(piece) | {"delta": delta}]}
    note(call, answers, ended)
    if with_usage:
        yield base | {"choices": [], "usage": usage(answers)}


def as_choice(piece: Piece) -> dict[str, Any]:
    """Without its text."""
    logprobs = None
    if piece.logprobs:
        logprobs = {
            "content": [
                as_token(each.text, each.logprob)
                | {"top_logprobs": [as_token(*likely) for likely in each.top]}
                for each in piece.logprobs
            ]
        }
    return {"index": piece.choice.index, "logprobs": logprobs, "finish_reason": piece.finish}


def as_token(text: str | bytes, logprob: float | None) -> dict[str, Any]:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
    return {"token": shown(text), "logprob": logprob, "bytes": list(raw)}


def frame(answers: Answers, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{getrandbits(128):032x}",
        "object": kind,
        "created": int(answers.created),
        "model": answers.served.name,
    }
