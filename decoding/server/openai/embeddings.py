"""POST /v1/embeddings: sentence embeddings of an encoder."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from decoding.server.endpoint import Call, Reply
from decoding.server.errors import ApiError, reading
from decoding.server.fields import check_known, take, text
from decoding.server.tasks import quickly
from decoding.server.translating.libretranslate import read_texts
from decoding.text.tokenizers import Tokenizer

NAMES = ("dimensions", "encoding_format", "input", "model", "user")
FORMATS = ("float", "base64")


async def embed(call: Call) -> Reply:
    fields = call.fields()
    check_known(fields, NAMES, {})
    with reading:
        served = call.site.embedder(take(fields, "model", text))
        form = take(fields, "encoding_format", text, "float")
    if form not in FORMATS:
        raise ApiError(400, "encoding_format must be float or base64", param="encoding_format")
    texts, _ = read_texts("input", fields.get("input"), served)
    if not texts:
        raise ApiError(400, "input must hold at least one text", param="input")
    width = served.model.encoder_spec.encoder.hidden
    if fields.get("dimensions") not in (None, width):
        raise ApiError(400, f"dimensions must be {width}, the model's own", param="dimensions")
    found = await served.embedded(texts)
    tokens = await quickly(sum(map(len, texts)), count, served.model.tokenizer, texts)
    call.said |= {"model": served.name, "texts": len(texts), "prompt_tokens": tokens}
    served.metrics.answered(call.began, tokens, 0, ["stop"])
    data = [
        {"object": "embedding", "index": i, "embedding": as_embedding(row, form)}
        for i, row in enumerate(found)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return Reply({"object": "list", "data": data, "model": served.name, "usage": usage})


def count(tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    """Tokens of all texts."""
    return sum([len(tokenizer.encode(each)) for each in texts])


def as_embedding(row: Any, form: str) -> Any:
    if form == "base64":
        return base64.b64encode(row.astype(np.float32).tobytes()).decode()
    return row.tolist()
