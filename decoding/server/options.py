"""The fields of OpenAI's API and of vLLM's beside it as options of generate().

What a client does not send is the model's own default, as in generate(). `temperature` asks for
sampling, and 0 for greedy search, unless do_sample or beams say otherwise.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from decoding.generation.checks import flag, number, whole
from decoding.generation.config import OPTIONS, GenerationConfig
from decoding.server.errors import ApiError
from decoding.server.fields import Fields, mapping, take, text
from decoding.server.served import Served
from decoding.text.complete import resolved

# Fields that every endpoint that generates knows, beside the names of generate().
NAMES = (
    "best_of",
    "cache_salt",
    "ignore_eos",
    "include_stop_str_in_output",
    "logit_bias",
    "max_completion_tokens",
    "max_tokens",
    "min_tokens",
    "model",
    "n",
    "priority",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "use_beam_search",
)
# What other servers do with it, and changes no text.
WITHOUT_EFFECT = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
KNOWN = (*NAMES, *WITHOUT_EFFECT)
# Options of generate() that say what its caller gets, or are for one process.
NOT_OVER_HTTP = (
    "max_length",
    "output_attentions",
    "output_logits",
    "output_scores",
    "output_sequences_scores",
    "return_dict_in_generate",
    "use_cache",
)
OURS = tuple(name for name in OPTIONS if name not in NOT_OVER_HTTP)
# Where null is "not said", as in OpenAI's API; elsewhere it switches an option off.
SHARED = ("seed", "temperature", "top_k", "top_p", "min_p", "num_beams", "num_return_sequences")
RENAMED = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens"} | {
    "min_tokens": "min_new_tokens"
}


@dataclass(frozen=True)
class Search:
    """How a request is answered. options: for Engine.submit(), without lengths; config: the same
    resolved. n: results that are wanted, of those that are looked for."""

    options: dict[str, Any]
    config: GenerationConfig
    n: int
    include_stop: bool
    priority: int

    @property
    def looked_for(self) -> int:
        return self.config.num_return_sequences


def read_search(fields: Fields, served: Served) -> Search:
    """Of the fields that are left. Raises ApiError, and what generate() raises."""
    for name in WITHOUT_EFFECT:
        fields.pop(name, None)
    include_stop = take(fields, "include_stop_str_in_output", flag, False)
    priority = take(fields, "priority", whole(), 0)
    salt = salt_of(take(fields, "cache_salt", text, ""))
    options = read_options(fields, served)
    n = options.get("num_return_sequences", 1)
    if (best_of := take(fields, "best_of", whole(1))) is not None:
        options["num_return_sequences"] = checked_best_of(best_of, n, options)
    with quietly():
        given, config = resolved(served.model, options)
    served.check(config)
    return Search(given | {"salt": salt}, config, n, include_stop, priority)


@contextmanager
def quietly() -> Iterator[None]:
    """Without warnings of options that have no effect: they are for who can change them, and Python
    keeps each text. For the loop's thread."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read_options(fields: Fields, served: Served) -> dict[str, Any]:
    """Options of generate()."""
    options = {name: fields.pop(name) for name in OURS if name in fields}
    options = {name: v for name, v in options.items() if v is not None or name not in SHARED}
    for name, ours in RENAMED.items():
        value = take(fields, name, whole(0 if name == "min_tokens" else 1))
        if value is not None:
            options[ours] = value
    n = take(fields, "n", whole(1), options.get("num_return_sequences", 1))
    if n != 1:
        options["num_return_sequences"] = n
    if take(fields, "use_beam_search", flag, False):
        options.setdefault("num_beams", max(n, fields.pop("best_of", None) or n))
        options.setdefault("do_sample", False)
    read_stops(fields, options)
    read_ends(fields, options, served)
    read_bias(fields, options)
    read_sampling(options)
    return options


def read_sampling(options: dict[str, Any]) -> None:
    """Whether to sample, where the client says so by other names."""
    temperature = options.get("temperature")
    if temperature is not None:
        options["temperature"] = number(least=0)("temperature", temperature)
    if options.get("top_k") == -1:
        options["top_k"] = 0
    if isinstance(seed := options.get("seed"), int) and seed < 0:
        options["seed"] = seed % 2**64
    if temperature == 0:
        del options["temperature"]
        options.setdefault("do_sample", False)
    elif options.get("num_beams", 1) == 1 and "do_sample" not in options:
        if temperature is not None or options.get("num_return_sequences", 1) != 1:
            options["do_sample"] = True


def read_stops(fields: Fields, options: dict[str, Any]) -> None:
    both = fields.pop("stop", None), options.pop("stop_strings", None)
    if None not in both:
        raise ApiError(400, "stop_strings is another name of stop: pass one of them", param="stop")
    given = both[0] if both[1] is None else both[1]
    stops = [given] if isinstance(given, str) else given or []
    if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
        raise ApiError(400, "stop must be a string or a list of strings", param="stop")
    stops = [each for each in stops if each]
    if stops:
        options["stop_strings"] = stops


def read_ends(fields: Fields, options: dict[str, Any], served: Served) -> None:
    """stop_token_ids, beside the model's own end, and ignore_eos."""
    own = options.get("eos_token_id", served.model.generation_config.get("eos_token_id"))
    more = take(fields, "stop_token_ids", id_list, [])
    if take(fields, "ignore_eos", flag, False):
        own = None
        options["eos_token_id"] = None
    if more:
        options["eos_token_id"] = [*([own] if isinstance(own, int) else own or []), *more]


def id_list(name: str, value: Any) -> list[int]:
    if not isinstance(value, list):
        raise TypeError(f"{name} must be a list of token ids, got {type(value).__name__}")
    return [whole(0)(name, each) for each in value]


def read_bias(fields: Fields, options: dict[str, Any]) -> None:
    bias = take(fields, "logit_bias", mapping, {})
    if bias:
        try:
            pairs = [[[int(token)], value] for token, value in bias.items()]
        except ValueError:
            raise ApiError(
                400, "logit_bias must map token ids to numbers", param="logit_bias"
            ) from None
        options["sequence_bias"] = [*(options.get("sequence_bias") or ()), *pairs]


def checked_best_of(best_of: int, n: int, options: Mapping[str, Any]) -> int:
    if best_of < n:
        raise ApiError(400, f"best_of={best_of} must be at least n={n}", param="best_of")
    if options.get("num_beams", 1) != 1 and best_of != n:
        raise ApiError(
            400,
            "best_of compares samples, and num_beams compares beams: leave one out",
            param="best_of",
        )
    return best_of


def salt_of(secret: str) -> int:
    """A number of 63 bits."""
    if not secret:
        return 0
    digest = hashlib.blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def streamed_at_once(search: Search) -> bool:
    """Whether several results compete, so that none is certain before the end."""
    return search.config.num_beams > 1 and search.looked_for > 1
