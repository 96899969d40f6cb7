"""What Engine.submit() is given: one sentence, and options with which steps are shared or not."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from decoding import _C
from decoding.engine.limits import EngineLimits
from decoding.engine.request import EngineRequest
from decoding.generation.call import Call
from decoding.generation.config import GenerationConfig
from decoding.generation.resolved import KEPT, ResolvedOptions, keeps_attentions
from decoding.generation.streaming import check_streamed

# Limits of one request, and what makes it smaller.
SMALLER = {
    "beams": "lower num_beams, num_return_sequences or, with penalty_alpha, top_k",
    "source": "shorten or split the text",
    "prompt": "shorten the prompt",
    "target": "lower max_new_tokens",
    "candidates": "lower num_beams, or pass fewer ids as eos_token_id",
    "finished": "lower patience",
    "words": "pass fewer ids in lists such as bad_words_ids",
}


def check_submitted(call: Call, stream: bool) -> None:
    """Raises ValueError for several sentences, and where tokens cannot be delivered as they come.
    stream: to who iterates over the request."""
    if len(call.prompt) != 1:
        raise ValueError(
            f"submit() takes one sentence, and these are {len(call.prompt)}: submit each of them, "
            "or call the engine's generate()"
        )
    if stream:
        check_streamed(call.config)
        if call.listener is not None:
            raise ValueError("streamer and stream=True both deliver tokens: pass one of them")


def steps_alone(call: Call) -> bool:
    """Whether nobody can share its steps, so that it goes generate()'s way. Its `cancel` does not
    count."""
    watched = bool(call.hooks) or call.listener is not None or bool(call.progress)
    return watched or call.shortlist is not None or options_alone(call.options)


@lru_cache(KEPT)
def options_alone(options: ResolvedOptions) -> bool:
    return config_alone(options.config)


def config_alone(config: GenerationConfig) -> bool:
    """Whether steps with these options cannot be shared: their searches need rows, scores or
    attentions that an engine has no memory for."""
    searched = config.guidance_scale != 1 or config.contrastive or bool(config.force_words_ids)
    kept = config.return_dict_in_generate and (config.output_scores or config.output_logits)
    return searched or kept or keeps_attentions(config)


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
