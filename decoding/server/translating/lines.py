"""Translates lines on a model's engine: each line is a request, or several if it is long."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from decoding.server.errors import reading
from decoding.server.options import quietly
from decoding.server.served import Served
from decoding.server.tasks import quickly, together
from decoding.server.translating.languages import Direction
from decoding.text.hypotheses import Hypothesis
from decoding.text.hypotheses import Lines as LineParts
from decoding.text.parts import Window
from decoding.text.rows import Rows
from decoding.text.window_translator import WindowTranslator

PARTS = 1 << 16  # more than a text has, each of which has a seed


@dataclass(frozen=True, eq=False)
class Translation:
    """How texts are translated. wanted: translations of each, no two the same. prefix: what each
    text begins with for the model. translator: each request takes a copy, as it counts."""

    served: Served
    wanted: int
    prefix: str
    translator: WindowTranslator

    @classmethod
    def of(
        cls, served: Served, wanted: int, direction: Direction, options: Mapping[str, Any]
    ) -> Translation:
        """With as many beams as translations are wanted, and all of their results. Raises ApiError
        and what Translator raises."""
        given = {**options, **direction.options}
        own = given.get("num_beams")
        if own is None:
            own = served.model.generation_config.get("num_beams") or 1
        given["n_best"] = wanted
        if wanted > 1 and not given.get("do_sample"):
            beams = max(own if isinstance(own, int) else 1, wanted)
            given |= {"num_beams": beams, "n_best": beams}
        best = {} if wanted > 1 else {"n_best": None}
        with quietly():
            translator = WindowTranslator(served.model, **given | best)
        served.check(translator.config)
        served.check_reads_again(translator.reads_again)
        return cls(served, wanted, direction.prefix, translator)


@dataclass(eq=False)
class Lines:
    """Texts to translate. began: time.monotonic() of the body's arrival."""

    how: Translation
    texts: Sequence[str]
    began: float
    given: int = 0  # tokens
    generated: int = 0

    def __post_init__(self) -> None:
        self._size = sum(map(len, self.texts))
        self._cutting = asyncio.Lock()  # one at a time, since threads are for all bodies
        self._places = self.served.places(self.how.translator.config)

    @property
    def served(self) -> Served:
        return self.how.served

    async def translated(self) -> list[list[Hypothesis]]:
        """The translations of each text, best first."""
        lines = [self._line(self._translator(i), text) for i, text in enumerate(self.texts)]
        found = await together(lines)
        self.served.metrics.answered(self.began, self.given, self.generated, ["stop"] * len(found))
        return [distinct(own)[: self.how.wanted] for own in found]

    def _translator(self, place: int) -> WindowTranslator:
        """For the text of that place, whose draws depend on no other's."""
        translator = copy(self.how.translator)
        translator.calls = place * PARTS
        return translator

    @property
    def _left(self) -> float:
        """Seconds until the deadline."""
        return self.served.settings.deadline - (time.monotonic() - self.began)

    async def _line(self, translator: WindowTranslator, text: str) -> list[Hypothesis]:
        with reading:
            async with self._cutting:
                window = await quickly(self._size, translator.cut, [self.how.prefix + text])
        line = LineParts(window, translator.config, translator.tokenizer)
        parts = list(enumerate(window.parts.lists()))
        if parts:
            found = await together([self._part(translator, window, *part) for part in parts])
            line.add(np.arange(len(parts)), found)
        [hypotheses] = line.finished()
        return translator.best(hypotheses)

    async def _part(
        self, translator: WindowTranslator, window: Window, part: int, ids: Sequence[int]
    ) -> list[Hypothesis]:
        chosen = np.array([part])
        options = translator.options_of(window, chosen)
        length = options["max_new_tokens"]
        options["max_new_tokens"] = self.served.allowed_length(length, translator.options)
        async with (
            self._places,
            self.served.submitted(
                ids, translator.config, stream=False, left=self._left, **options
            ) as request,
        ):
            rows = await request.tokens()
        self.given += len(ids)
        tokens = list(map(len, rows))
        self.generated += sum(tokens)
        shown = Rows.of([[*window.prompts[part][1:], *row] for row in rows])
        scores = [math.nan] * len(rows)  # nobody asks for them
        work = partial(translator.written, window, chosen, shown, tokens, scores)
        [found] = await self.served.read_again(work) if translator.reads_again else work()
        return found


def distinct(found: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Without those whose text a better one has. found: best first."""
    best: dict[str, Hypothesis] = {}
    for each in found:
        best.setdefault(each.text, each)
    return list(best.values())
