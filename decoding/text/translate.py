"""Translates lines of text, in their order, for any number of lines.

A `Translator` reads ahead, sorts the lines by length, and hands the model batches of about equal
lengths. It yields a line's translation as soon as that line and all lines before it are done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Any, overload

import numpy as np

from decoding.common.arrays import Array
from decoding.common.progress import Progress
from decoding.common.warn import warn
from decoding.generation.batching import ROWS
from decoding.generation.call import Started
from decoding.text.hypotheses import Hypothesis, Lines
from decoding.text.parts import Window
from decoding.text.pipeline import Pipeline
from decoding.text.prefixes import Line, paired
from decoding.text.texts import as_texts
from decoding.text.window_translator import TranslationModel, WindowTranslator

AHEAD = {"cpu": 1, "cuda": 4}  # batches of lines that are read and sorted before the model runs


@overload
def translate(
    model: TranslationModel,
    texts: Iterable[str],
    *,
    n_best: int,
    batch_tokens: int = ...,
    **options: Any,
) -> list[list[Hypothesis]]: ...
@overload
def translate(
    model: TranslationModel,
    texts: Iterable[str],
    *,
    n_best: None = None,
    batch_tokens: int = ...,
    **options: Any,
) -> list[str]: ...
def translate(
    model: TranslationModel,
    texts: Iterable[str],
    *,
    n_best: int | None = None,
    batch_tokens: int = 4096,
    target_prefix: str | Iterable[str] = "",
    progress: Any = None,
    **options: Any,
) -> Any:
    """Translates each text; with `n_best` so many translations of each, best first, with scores.

    texts: a str is one text, and has one result. target_prefix: text that each translation begins
    with, or one for each text. progress: True for a bar on standard error, or a function of (done,
    total), in texts. The other arguments and errors are those of Translator.
    """
    if options.get("alignments") and n_best is None:
        raise TypeError("alignments come with hypotheses: pass n_best, too")
    lines, alone = as_texts("texts", texts)
    translator = Translator(model, n_best=n_best, batch_tokens=batch_tokens, **options)
    found: list[list[Hypothesis]] = []
    with Progress(progress, len(lines), "texts") as done:
        pairs = paired(lines, target_prefix)
        for group in translator.groups([list(pairs)], translator.is_many(len(lines))):
            found += group
            done.reach(len(found))
    results: list[Any] = [each[0].text for each in found] if n_best is None else found
    return results[0] if alone else results


@dataclass(frozen=True, eq=False)
class Batch:
    """Parts of a window in one call of the model, which there is none of for no parts."""

    window: Window
    chosen: Array  # int64 [n]
    rows: int
    started: Started | None

    def output(self) -> Any:
        return None if self.started is None else self.started.result()

    def cancel(self) -> None:
        if self.started is not None:
            self.started.cancel()


class Translator(WindowTranslator):
    """Translates any number of lines, in their order: WindowTranslator has the options."""

    def stream(
        self,
        lines: Iterable[str],
        ahead: int | None = None,
        *,
        target_prefix: str | Iterable[str] = "",
        ready: Callable[[], bool] = lambda: True,
    ) -> Iterator[list[Hypothesis]]:
        """The hypotheses of each line, in order; a blank line has one, empty, of score 0.

        Lines are read and encoded in a thread of their own, and computed in another one.

        ahead: batches of lines to read and sort before the model runs; None: on a CPU one, since
        more delay the first line and gained nothing there. 0: line by line, all in this thread.
        target_prefix: text that each translation begins with, or one for each line. ready: says
        whether another line is there; where not, and nothing else is computed, those read so far
        are translated at once.
        """
        ahead = AHEAD[self.model.place.type] if ahead is None else ahead
        pairs = ([pair] for pair in paired(lines, target_prefix))
        return chain.from_iterable(self.groups(pairs, ahead > 0, ahead=ahead, ready=ready))

    def is_many(self, lines: int) -> bool:
        """Whether so many lines are more than the model computes at once."""
        return lines * self._rows > ROWS[self.model.place.type]

    def groups(
        self,
        lines: Iterable[list[Line]],
        apart: bool,
        *,
        ahead: int | None = None,
        ready: Callable[[], bool] = lambda: True,
    ) -> Generator[list[list[Hypothesis]], None, None]:
        """As stream(), the lines that are finished together at a time. lines: in lists of those
        that are there at once. apart: in threads of their own."""
        device = self.model.place.type
        tokens = (AHEAD[device] if ahead is None else ahead) * self.batch_tokens
        pipeline: Pipeline[Batch] = Pipeline(device, self.phases, apart)
        windows = self._cutter.windows(lines, tokens, lambda: pipeline.goes_on(ready))
        with closing(pipeline.run(self._started(windows, tokens > 0))) as computed:
            yield from self._finished(computed)

    def _started(self, windows: Iterable[Window], several: bool) -> Generator[Batch, None, None]:
        """several: windows may follow each other before results are asked for."""
        many = False  # once an engine is there, a small window at the end goes to it, too
        for window in windows:
            many = many or (several and self.is_many(len(window.parts)))
            for chosen in window.batches(self.batch_tokens):
                with self.phases("encoding"):
                    batch = self._start(window, chosen, many)
                yield batch
            if not len(window.parts):
                yield Batch(window, np.zeros(0, np.int64), 0, None)  # blank lines need not wait

    def _start(self, window: Window, chosen: Array, many: bool) -> Batch:
        """One call of the model. many: it is one of many."""
        started = self.model.start(
            **self.inputs(window, chosen),
            shortlist=self._shortlist,
            cancel=self.cancel,
            many=many,
        )
        return Batch(window, chosen, len(chosen) * self._rows, started)

    def _finished(self, computed: Iterable[tuple[Batch, Any]]) -> Iterator[list[list[Hypothesis]]]:
        """The lines that are done with each batch, and all lines before them."""
        lines: Lines | None = None
        for batch, output in computed:
            with self.phases("decoding"):
                if lines is None or lines.window is not batch.window:
                    lines = Lines(batch.window, self.config, self.tokenizer)
                    for message in batch.window.warnings:
                        warn(message)
                if output is not None:
                    found = self.hypotheses(batch.window, batch.chosen, output)
                    lines.add(batch.chosen, found)
                group = list(map(self.best, lines.finished()))
            if group:
                yield group
