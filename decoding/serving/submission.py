"""What Engine.submit() is given: one sentence, and the options that an engine takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from decoding import _C
from decoding.engine.limits import EngineLimits
from decoding.engine.request import EngineRequest
from decoding.generation.call import Call
from decoding.generation.config import GenerationConfig
from decoding.generation.resolved import KEPT, ResolvedOptions, keeps_attentions

# All that generate() takes and an engine does not: the names, whether a call or its options use
# them, and why not or what does the same.
REFUSED_ARGUMENTS: tuple[tuple[str, Callable[[Call], bool], str], ...] = (
    (
        "logits_processor, prefix_allowed_tokens_fn and stopping_criteria",
        lambda call: bool(call.hooks),
        "they run in Python between the parts of a step, and other requests would wait for them",
    ),
    (
        "streamer",
        lambda call: call.listener is not None,
        "pass stream=True and read the request's tokens",
    ),
    ("cancel", lambda call: call.cancel is not None, "use the request's cancel()"),
    ("progress", lambda call: bool(call.progress), "an engine tells tokens, not steps"),
    ("shortlist", lambda call: call.shortlist is not None, "requests have one vocabulary"),
)
REFUSED_OPTIONS: tuple[tuple[str, Callable[[GenerationConfig], bool], str], ...] = (
    (
        "max_time",
        lambda config: config.max_time is not None,
        "deadline= ends a request with an error",
    ),
    (
        "guidance_scale",
        lambda config: config.guidance_scale != 1,
        "its unconditional rows have no place there yet",
    ),
    (
        "penalty_alpha",
        lambda config: config.contrastive,
        "contrastive search has no place there yet",
    ),
    (
        "force_words_ids",
        lambda config: bool(config.force_words_ids),
        "constrained search has no place there yet",
    ),
    (
        "output_scores",
        lambda config: config.return_dict_in_generate and config.output_scores,
        "the scores of the steps are not kept; output_sequences_scores is there",
    ),
    (
        "output_logits",
        lambda config: config.return_dict_in_generate and config.output_logits,
        "the logits of the steps are not kept",
    ),
    (
        "output_attentions and coverage_penalty",
        keeps_attentions,
        "the attentions of the steps are not kept",
    ),
)

# Limits of one request, and what makes it smaller.
SMALLER = {
    "beams": "lower num_beams or num_return_sequences",
    "source": "shorten or split the text",
    "prompt": "shorten the prompt",
    "target": "lower max_new_tokens",
    "candidates": "lower num_beams, or pass fewer ids as eos_token_id",
    "finished": "lower patience",
    "words": "pass fewer ids in lists such as bad_words_ids",
}


def check_submitted(call: Call) -> None:
    """Raises ValueError for several sentences, NotImplementedError for what an engine does not
    take."""
    if len(call.prompt) != 1:
        raise ValueError(
            f"submit() takes one sentence, and these are {len(call.prompt)}: submit each of them, "
            "or call the engine's generate()"
        )
    check_options(call)


def check_options(call: Call, *taken: str) -> None:
    """Raises NotImplementedError for options that an engine does not take, but for those named."""
    for names, reason in refused(call, *taken):
        raise NotImplementedError(
            f"an engine does not take {names} ({reason}): leave it out, or call model.generate() "
            "instead"
        )


def refused(call: Call, *taken: str) -> list[tuple[str, str]]:
    """What an engine does not take of a call, but for the arguments named, and why not."""
    arguments = [
        (names, reason)
        for names, used, reason in REFUSED_ARGUMENTS
        if names not in taken and used(call)
    ]
    return [*arguments, *refused_options(call.options)]


@lru_cache(KEPT)
def refused_options(options: ResolvedOptions) -> list[tuple[str, str]]:
    return [(names, reason) for names, used, reason in REFUSED_OPTIONS if used(options.config)]


def check_fits(request: EngineRequest, limits: EngineLimits) -> None:
    """Raises decoding.Error for a sentence that is larger than an engine plans for any."""
    for name, smaller in SMALLER.items():
        asked = request.options.most_words if name == "words" else getattr(request.limits, name)
        most = limits.requests if name == "finished" else getattr(limits, name)  # a row's memory
        if asked > most:
            raise _C.Error(
                f"this request needs {name}={asked}, and the engine has room for {most}: "
                f"{smaller}, or give the engine more memory and max_requests"
            )


def as_batch(given: Any) -> Any:
    """A sentence's ids or mask, [n], as a batch of one; anything else as it is."""
    if getattr(given, "ndim", 2) == 1:
        return given[None]
    if not isinstance(given, (list, tuple)):
        return given
    ids = {type(item) for item in given} == {int}  # as nearly always
    return [given] if ids or not any(map(is_row, given)) else given


def is_row(item: Any) -> bool:
    """Whether an item of a list is a row of ids, or a text, and no id."""
    return item.ndim > 0 if hasattr(item, "ndim") else hasattr(item, "__len__")
