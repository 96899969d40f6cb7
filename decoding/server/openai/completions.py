"""POST /v1/completions: text behind prompts, as OpenAI's clients ask for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from random import getrandbits
from typing import Any

from decoding.generation.checks import flag, whole
from decoding.server.endpoint import Call, Events, Reply
from decoding.server.errors import ApiError, reading
from decoding.server.fields import Fields, check_known, mapping, take, text
from decoding.server.openai.answers import Answers, chunks
from decoding.server.openai.choices import Choice, Piece
from decoding.server.openai.logprobs import MOST, shown
from decoding.server.options import KNOWN, OURS, Search, read_search
from decoding.server.served import Served
from decoding.server.site import Site
from decoding.server.tasks import quickly, together
from decoding.text.complete import Prompt, read_texts

NAMES = {*KNOWN, *OURS, "echo", "logprobs", "prompt", "suffix"}
REFUSED = {
    "guided_json": "this server does not constrain texts by a grammar",
    "response_format": "this server does not constrain texts by a grammar",
}


@dataclass(frozen=True)
class Asked:
    """A body but for its prompts. top: as Answers has it."""

    served: Served
    search: Search
    top: int
    stream: bool
    usage: bool  # of a stream, in a last chunk
    echo: bool = False

    def answers(self, call: Call, prompts: Sequence[Prompt]) -> Answers:
        found = Answers(self.served, prompts, self.search, call.began, self.top, self.echo)
        call.said |= {"model": self.served.name, "prompt_tokens": found.given}
        return found


async def complete(call: Call) -> Reply | Events:
    fields = call.fields()
    given = fields.pop("prompt", None)
    asked: Asked = call.kept.once(fields, partial(read, call.site))
    asked.served.check_room(asked.search.config)
    prompts = await read_prompts(given, asked.served)
    answers = asked.answers(call, prompts)
    if asked.stream:
        return stream(call, answers, asked.usage)
    found = await together([answers.of(i) for i in range(len(answers.prompts))])
    pieces = [piece for own in found for piece in own]
    note(call, answers, [piece.choice for piece in pieces])
    written = [as_choice(piece, answers.top) for piece in pieces]
    return Reply(frame(answers) | {"choices": written, "usage": usage(answers)})


def read(site: Site, fields: Fields) -> Asked:
    check_known(fields, NAMES, REFUSED)
    served = site.generator(take(fields, "model", text))
    if fields.pop("suffix", None):
        raise ApiError(400, "suffix is not supported: leave it out", param="suffix")
    stream, with_usage = read_stream(fields)
    echo = take(fields, "echo", flag, False)
    top = take(fields, "logprobs", whole(0), -1)
    check_top("logprobs", top)
    search = read_search(fields, served)
    check_best_of(stream, search.n, search.looked_for)
    served.check_reads_again(top >= 0 or search.n < search.looked_for)
    return Asked(served, search, top, stream, with_usage, echo)


def check_best_of(stream: bool, n: int, looked_for: int) -> None:
    if stream and n < looked_for:
        raise ApiError(400, "best_of above n cannot be streamed", param="best_of")


def read_stream(fields: Fields) -> tuple[bool, bool]:
    """Whether to stream, and whether with a last chunk of usage."""
    stream = take(fields, "stream", flag, False)
    options = take(fields, "stream_options", mapping, {})
    check_known(options, ("include_usage",), {})
    if options and not stream:
        raise ApiError(400, "stream_options needs stream=true", param="stream_options")
    return stream, take(dict(options), "include_usage", flag, False)


def check_top(name: str, top: int) -> None:
    if top > MOST:
        raise ApiError(400, f"{name} must be at most {MOST}, got {top}", param=name)


async def read_prompts(given: Any, served: Served) -> list[Prompt]:
    """A text, ids, or a list of either."""
    several = isinstance(given, list) and bool(given) and isinstance(given[0], (str, list))
    items = given if several else [given]
    if len(items) > served.settings.max_texts:
        raise ApiError(
            400, f"prompt has {len(items)} texts: this server allows {served.settings.max_texts}"
        )
    size = sum(len(item) for item in items if isinstance(item, str))
    return await quickly(size, prompts_of, items, served)


def prompts_of(items: Sequence[Any], served: Served) -> list[Prompt]:
    prompts = list[Prompt]()
    for item in items:
        if isinstance(item, str):
            with reading:
                prompts += read_texts(served.model, item)
        elif isinstance(item, list) and item and all(type(id) is int for id in item):
            vocab = served.model.spec.decoder.vocab
            if not 0 <= min(item) <= max(item) < vocab:
                said = f"ids of a prompt must be from 0 to {vocab - 1}, got"
                raise ApiError(400, f"{said} {min(item)} to {max(item)}", param="prompt")
            prompts.append(Prompt("prompt", item, item))
        else:
            raise ApiError(
                400,
                "prompt must be a string, a list of token ids, or a list of them",
                param="prompt",
            )
    return prompts


async def stream(call: Call, answers: Answers, with_usage: bool) -> AsyncGenerator[Any, None]:
    base = frame(answers) | ({"usage": None} if with_usage else {})
    ended = list[Choice]()
    async with aclosing(chunks(answers)) as pieces:
        async for piece in pieces:
            if piece.finish is not None:
                ended.append(piece.choice)
            yield base | {"choices": [as_choice(piece, answers.top)]}
    note(call, answers, ended)
    if with_usage:
        yield base | {"choices": [], "usage": usage(answers)}


def frame(answers: Answers) -> dict[str, Any]:
    return {
        "id": f"cmpl-{getrandbits(128):032x}",
        "object": "text_completion",
        "created": int(answers.created),
        "model": answers.served.name,
    }


def as_choice(piece: Piece, top: int) -> dict[str, Any]:
    return {
        "index": piece.choice.index,
        "text": piece.text,
        "logprobs": as_logprobs(piece, top) if piece.logprobs else None,
        "finish_reason": piece.finish,
    }


def as_logprobs(piece: Piece, top: int) -> dict[str, Any]:
    found = piece.logprobs
    tokens = [shown(each.text) for each in found]
    offsets = [max(0, at) for at in accumulate(map(len, tokens), initial=piece.at)]
    likely = [{shown(t): value for t, value in each.top} or None for each in found]
    return {
        "tokens": tokens,
        "token_logprobs": [each.logprob for each in found],
        "top_logprobs": likely if top else None,
        "text_offset": offsets[:-1],
    }


def usage(answers: Answers) -> dict[str, int]:
    given, generated = answers.given, answers.generated
    return {
        "prompt_tokens": given,
        "completion_tokens": generated,
        "total_tokens": given + generated,
    }


def note(call: Call, answers: Answers, choices: list[Choice]) -> None:
    """Tells the metrics and the log of an answer."""
    answers.count(choices)
    call.said |= {"completion_tokens": answers.generated}
    call.said |= {"finish": ",".join(choice.finish or "" for choice in choices)}
