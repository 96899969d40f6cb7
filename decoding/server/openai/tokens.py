"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from decoding.generation.checks import flag
from decoding.server.endpoint import Call, Reply
from decoding.server.errors import ApiError, reading
from decoding.server.fields import Fields, check_known, take, text
from decoding.server.openai.chat import TEMPLATE, read_prompt
from decoding.server.options import id_list
from decoding.server.served import Served
from decoding.server.tasks import quickly

NAMES = ("add_special_tokens", "messages", "model", "prompt", *TEMPLATE)


def served_by(call: Call, fields: Fields) -> Served:
    return call.site.named(take(fields, "model", text), lambda _: True, "")


async def tokenize(call: Call) -> Reply:
    """The ids of a text, or of a chat by its template."""
    fields = call.fields()
    check_known(fields, NAMES, {})
    with reading:
        served = served_by(call, fields)
        special = take(fields, "add_special_tokens", flag, True)
        if "messages" in fields:
            ids = (await read_prompt(fields, served, len(call.body))).ids
        else:
            prompt = text("prompt", fields.get("prompt"))
            encode = served.model.tokenizer.encode
            ids = await quickly(len(prompt), encode, prompt, add_special_tokens=special)
    return Reply({"count": len(ids), "max_model_len": served.positions, "tokens": ids})


async def detokenize(call: Call) -> Reply:
    fields = call.fields()
    check_known(fields, ("model", "tokens"), {})
    with reading:
        served = served_by(call, fields)
        ids = id_list("tokens", fields.get("tokens"))
    known = len(served.model.tokenizer)
    if ids and max(ids) >= known:
        raise ApiError(400, f"tokens must be below {known}, got {max(ids)}", param="tokens")
    return Reply({"prompt": await quickly(len(ids), served.model.tokenizer.decode, ids)})
