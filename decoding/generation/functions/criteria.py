"""Stopping criteria of transformers' own classes, as generate() makes them of options.

The first of a caller's of exactly such a class takes the place of the option's, as in Hugging Face.
One that can be said by an option is left out, so that the step stays on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from decoding.generation.config import OPTIONS, GenerationConfig
from decoding.generation.functions.hooks import as_list, transformers_class
from decoding.generation.lengths import most_new

if TYPE_CHECKING:
    from decoding.generation.functions.hooks import Criterion

REPLACES = {
    "MaxLengthCriteria": "max_length",
    "MaxTimeCriteria": "max_time",
    "StopStringCriteria": "stop_strings",
    "EosTokenCriteria": "eos_token_id",
}


def replace_options(
    config: GenerationConfig, criteria: Sequence[Criterion] | None, width: int, positions: int
) -> tuple[GenerationConfig, list[Criterion]]:
    """The options that are left, and the criteria. width: of the prompts, padding included;
    positions: of the model's decoder.

    Raises NotImplementedError where the option decides more than when rows end.
    """
    kept: list[Criterion] = []
    replaced: set[str] = set()
    for criterion in as_list("stopping_criteria", criteria):
        option = REPLACES.get(transformers_class(criterion) or "")
        if option is None or option in replaced:
            kept.append(criterion)
            continue
        replaced.add(option)
        if option == "max_length" and config.num_beams == 1 and not config.forced_eos_token_id:
            longest = max(criterion.max_length, width + 1)
            config = replace(config, max_length=longest, max_new_tokens=None)
        elif option == "eos_token_id" and config.eos_token_id:
            check_end_ids(criterion, config)
        else:
            if option == "max_length":
                check_length(criterion, width + int(np.min(most_new(config, width, positions))))
            else:
                config = replace(config, **{option: OPTIONS[option]["default"]})
            kept.append(criterion)
    return config, kept


def check_length(criterion: Any, longest: int) -> None:
    if criterion.max_length > longest:
        raise NotImplementedError(
            f"MaxLengthCriteria({criterion.max_length}) is longer than the {longest} tokens of the "
            "call, by which beams and forced_eos_token_id go: pass max_length"
        )


def check_end_ids(criterion: Any, config: GenerationConfig) -> None:
    if {*criterion.eos_token_id.tolist()} != {*config.eos_token_id}:
        raise NotImplementedError(
            f"EosTokenCriteria has other ids than eos_token_id={config.eos_token_id}, which the "
            "search reads as well: pass them as eos_token_id"
        )
