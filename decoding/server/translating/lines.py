"""Translates lines on a model's engine: each line is a request, or several if it is long."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from decoding.server.errors import reading
from decoding.server.options import quietly
from decoding.server.served import LARGE, Served, quickly, rows_of, together
from decoding.server.translating.languages import Direction
from decoding.text.hypotheses import Hypothesis
from decoding.text.hypotheses import Lines as LineParts
from decoding.text.parts import Window
from decoding.text.window_translator import WindowTranslator


@dataclass(frozen=True, eq=False)
class Translation:
    """How texts are translated. wanted: translations of each, no two the same. options: of
    Translator. prefix: what each text begins with for the model. translator: each request takes a
    copy, as it counts."""

    served: Served
    wanted: int
    options: Mapping[str, Any]
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
        return cls(served, wanted, given, direction.prefix, translator)


@dataclass(eq=False)
class Lines:
    """Texts to translate. began: time.monotonic() of the body's arrival."""

    how: Translation
    texts: Sequence[str]
    began: float
    given: int = 0  # tokens
    generated: int = 0

    @property
    def served(self) -> Served:
        return self.how.served

    async def translated(self) -> list[list[Hypothesis]]:
        """The translations of each text, best first."""
        translator = copy(self.how.translator)
        found = await together([self._line(translator, text) for text in self.texts])
        self.served.metrics.answered(self.began, self.given, self.generated, ["stop"] * len(found))
        return [distinct(own)[: self.how.wanted] for own in found]

    async def aligned(self) -> list[list[Hypothesis]]:
        """The same with alignments, from the model itself: an engine keeps no attentions."""
        cancel, lines = threading.Event(), [self.how.prefix + text for text in self.texts]
        work: Callable[..., Any] = self.served.model.translate
        try:
            given = {**self.how.options, "alignments": True, "cancel": cancel}
            started = asyncio.to_thread(work, lines, **given)
            with reading:
                found = await asyncio.wait_for(started, self._left)
        except asyncio.TimeoutError:
            raise TimeoutError("the translation was not done within its deadline") from None
        finally:
            cancel.set()
        return [distinct(own)[: self.how.wanted] for own in found]

    @property
    def _left(self) -> float:
        """Seconds until the deadline."""
        return self.served.settings.deadline - (time.monotonic() - self.began)

    async def _line(self, translator: WindowTranslator, text: str) -> list[Hypothesis]:
        with reading:
            window = await quickly(len(text), translator.cut, [self.how.prefix + text])
        line, parts = LineParts(window, translator.config), range(len(window.parts))
        if parts:
            found = await together([self._part(translator, window, part) for part in parts])
            line.add(np.array(parts), found)
        [hypotheses] = line.finished()
        return translator.best(hypotheses)

    async def _part(
        self, translator: WindowTranslator, window: Window, part: int
    ) -> list[Hypothesis]:
        chosen = np.array([part])
        ids = window.parts.select(chosen).lists()[0]
        options = translator.inputs(window, chosen)
        for name in ("input_ids", "attention_mask"):
            del options[name]
        self.served.check_length(options.get("max_new_tokens"))
        async with self.served.submitted(
            ids, translator.config, stream=False, left=self._left, **options
        ) as request:
            rows = await rows_of(request, translator.config.num_return_sequences)
        self.given += len(ids)
        self.generated += sum(map(len, rows))
        output = as_output(window.prompts[part], rows)
        scored = translator.n_best is not None and not translator.beams
        size = LARGE + 1 if scored else 0  # scores are computed, in a thread
        [found] = await quickly(size, translator.hypotheses, window, chosen, output)
        return found


def as_output(prompt: Sequence[int], rows: Sequence[Sequence[int]]) -> SimpleNamespace:
    """What WindowTranslator.hypotheses() reads of the output of generate(), without scores."""
    lengths = np.array(list(map(len, rows)))
    sequences = np.zeros((len(rows), len(prompt) + lengths.max()), np.int64)
    for sequence, row in zip(sequences, rows, strict=True):
        sequence[: len(prompt) + len(row)] = [*prompt, *row]
    return SimpleNamespace(sequences=sequences, lengths=lengths, hypothesis_attentions=None)


def distinct(found: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Without those whose text a better one has. found: best first."""
    best: dict[str, Hypothesis] = {}
    for each in found:
        best.setdefault(each.text, each)
    return list(best.values())
