"""Prompts of successive lines in one call of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from decoding.generation.config import OPTIONS
from decoding.text.complete import Answers, Prompt
from decoding.text.hypotheses import BLANK, Hypothesis

# Options that a line may have of its own: rows of one call may differ in them.
OWN = ("max_new_tokens", "temperature", "top_k", "top_p", "seed")


def own_options(fields: Mapping[str, Any], samples: bool) -> dict[str, Any]:
    """The options of generate() that a JSON line has of its own. Raises ValueError for values that
    are none, and for those of sampling where not `samples`."""
    found = {name: own_option(fields, name) for name in OWN if fields.get(name) is not None}
    if not samples and (sampling := [name for name in found if name != "max_new_tokens"]):
        raise ValueError(f"{sampling[0]!r} is for samples: add --do-sample")
    return found


def own_option(fields: Mapping[str, Any], name: str) -> Any:
    """One of them; None where the line has it not."""
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, (int, float)):
        raise ValueError(f"{name!r} must be a number, got {value!r}")
    try:
        OPTIONS[name]["check"](name, value)
    except TypeError as error:
        raise ValueError(str(error)) from None
    return value


@dataclass(frozen=True, eq=False)
class PromptBatch:
    """Successive prompts with the empty lines among them: a Batch of a Pipeline."""

    prompts: list[Prompt | None]
    answers: Answers

    @property
    def rows(self) -> int:
        return self.answers.rows

    def output(self) -> Any:
        return self.answers.output()

    def cancel(self) -> None:
        self.answers.cancel()

    def results(self, output: Any) -> list[list[Hypothesis]]:
        """Of each line; output: what output() gave."""
        found = iter(self.answers.hypotheses(output))
        return [next(found) if prompt else [BLANK] for prompt in self.prompts]
