"""Bodies that no client should send, and a server that must answer each with 2xx or 4xx.

    python -m tests.server.bodies --cases 10000 --seed 1

is the longer run; a failure prints the body.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from tests.server.live import Live
from tests.server.models import all_models

SOUND: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "model": "stories",
        "prompt": "Once upon",
        "max_tokens": 4,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "n": 2,
        "best_of": 2,
        "stop": ["a", "b"],
        "seed": 1,
        "logprobs": 1,
        "echo": True,
        "stream": False,
        "logit_bias": {"5": 1.5},
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "stop_token_ids": [3],
        "user": "me",
    },
    "/v1/chat/completions": {
        "model": "bytes",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_completion_tokens": 4,
        "logprobs": True,
        "top_logprobs": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [],
        "chat_template_kwargs": {"a": 1},
        "response_format": {"type": "text"},
    },
    "/translate": {
        "q": ["Guten Morgen!", "Danke!"],
        "source": "de",
        "target": "en",
        "format": "text",
        "alternatives": 1,
        "max_new_tokens": 8,
        "num_beams": 2,
        "length_penalty": 1.0,
        "early_stopping": True,
    },
    "/v2/translate": {"text": ["Danke!"], "source_lang": "DE", "target_lang": "EN-US"},
    "/v1/embeddings": {"model": "sentences", "input": ["A text"], "encoding_format": "float"},
    "/tokenize": {"prompt": "a b c", "add_special_tokens": True},
    "/detokenize": {"tokens": [1, 2, 3]},
}
# Options of generate() of all kinds.
OPTIONS: dict[str, Any] = {
    "num_beams": 3,
    "num_beam_groups": 3,
    "diversity_penalty": 0.5,
    "do_sample": True,
    "repetition_penalty": 1.2,
    "no_repeat_ngram_size": 2,
    "bad_words_ids": [[5, 6]],
    "force_words_ids": [[5]],
    "sequence_bias": [[[5], 1.0]],
    "suppress_tokens": [7],
    "eos_token_id": [2],
    "min_new_tokens": 2,
    "exponential_decay_length_penalty": [1, 1.1],
    "forced_bos_token_id": 5,
    "typical_p": 0.9,
    "min_p": 0.1,
    "guidance_scale": 1.5,
    "penalty_alpha": 0.6,
    "priority": 3,
    "cache_salt": "mine",
    "stop_strings": "x",
    "ignore_eos": True,
    "use_beam_search": True,
    "patience": 2.0,
    "decoder_start_token_id": 1,
}
ODD: tuple[Any, ...] = (
    None,
    True,
    "",
    "auto",
    "\x00",
    "\ud800",
    "é" * 50,
    0,
    -1,
    1,
    2,
    7,
    100,
    2**31,
    2**64,
    10**40,
    -(2**63),
    0.0,
    -0.5,
    1e308,
    [],
    [None],
    [[]],
    [[1, 2], [3]],
    [1, 2],
    [-5],
    [10**20],
    ["a", 1],
    [[[1], 2.0]],
    {},
    {"a": None},
    {"type": "json_object"},
    [{"role": "user"}],
    [{"role": 3, "content": {"x": 1}}],
    [[{"role": "user", "content": "a"}]],
)
BYTES = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"\xff\xfe{}",
    b'{"prompt": NaN}',
    b'{"prompt": Infinity}',
    b'{"prompt": "\\ud800"}',
    b'{"max_tokens": 1' + b"0" * 5000 + b"}",
    b"[" * 100_000,
    b'{"prompt":' * 5000,
    b'{"q":"a","q":["b"]}',
    b"q=%ff%fe&source=de",
    b"text=a&text=b&text=c&target_lang=EN",
)


class Bodies:
    """Draws a path, the type of a body, and the body."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def draw(self) -> tuple[str, str, bytes]:
        rng = self._rng
        path = rng.choice(list(SOUND))
        kind = "application/json"
        if rng.random() < 0.1:
            forms = ("application/x-www-form-urlencoded", "text/plain", kind)
            return path, rng.choice(forms), rng.choice(BYTES)
        body = json.dumps(self._fields(path)).encode()
        if rng.random() < 0.1:
            at = rng.randrange(len(body))
            body = body[:at] + bytes([rng.randrange(256)]) + body[at + rng.randrange(2) :]
        return path, kind, body

    def _fields(self, path: str) -> dict[str, Any]:
        rng = self._rng
        fields = {name: v for name, v in SOUND[path].items() if rng.random() < 0.8}
        for name in rng.sample(list(OPTIONS), rng.choice((0, 0, 0, 1, 2))):
            fields[name] = OPTIONS[name]
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            names = [*SOUND[path], *fields, *OPTIONS] if rng.random() < 0.9 else ["strange", ""]
            fields[rng.choice(names)] = rng.choice(ODD)
        return fields


def check(live: Live, cases: int, seed: int) -> dict[int, int]:
    """How often each status came. Raises AssertionError with the body of a wrong one."""
    bodies, statuses = Bodies(seed), dict[int, int]()
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=60)
    for _ in range(cases):
        path, kind, body = bodies.draw()
        connection.request("POST", path, body, {"Content-Type": kind})
        reply = connection.getresponse()
        said = reply.read().decode()
        faults = '"code":"internal"' in said or '"type":"server_error"' in said
        assert reply.status < 500 and not faults, (path, kind, body[:2000], said[:500])
        if reply.status == 200 and "text/event-stream" not in reply.headers["content-type"]:
            json.loads(said)
        statuses[reply.status] = statuses.get(reply.status, 0) + 1
    return statuses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Live(all_models(Path(folder))) as live:
        print(check(live, options.cases, options.seed))
        live.assert_idle()


if __name__ == "__main__":
    main()
