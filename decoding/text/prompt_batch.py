"""Prompts of successive lines in one call of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decoding.text.complete import Answers, Prompt
from decoding.text.hypotheses import BLANK, Hypothesis


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
