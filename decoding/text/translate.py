"""Translates lines of text, in their order, for any number of lines.

A `Translator` reads ahead, sorts the lines by length, and hands the model batches of about equal
lengths. It yields a line's translation as soon as that line and all lines before it are done.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, overload

import numpy as np

from decoding.common.arrays import Array
from decoding.common.device import Device
from decoding.common.phases import Phases
from decoding.common.progress import Event, Progress, check_event
from decoding.common.warn import warn
from decoding.generation.batching import ROWS
from decoding.generation.call import Started
from decoding.generation.outputs import GenerateBeamDecoderOnlyOutput
from decoding.generation.resolve import as_mapping, ignored, pinned
from decoding.text.alignment import Pieces, alignment
from decoding.text.arguments import refuse, resolve_n_best
from decoding.text.hypotheses import (
    Hypothesis,
    Lines,
    most_hypotheses,
    without_repeats,
)
from decoding.text.languages import between
from decoding.text.lengths import Lengths
from decoding.text.parts import Cutter, Window
from decoding.text.pipeline import Pipeline
from decoding.text.prefixes import paired, sums
from decoding.text.rows import Rows
from decoding.text.shortlist import as_shortlist, pop_old_name
from decoding.text.text_model import TextModel
from decoding.text.texts import as_texts

AHEAD = {"cpu": 1, "cuda": 4}  # batches of lines that are read and sorted before the model runs


class TranslationModel(TextModel, Protocol):
    """The members of decoding.Model that translation uses."""

    @property
    def place(self) -> Device: ...


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
        for group in translator.groups(pairs, translator.is_many(len(lines))):
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


class Translator:
    """Translates lines with one model and one set of options.

    n_best: hypotheses of each line with scores, of beam search or sampling, best first; greedy
    search has one. None: the best alone.
    unique: leaves out hypotheses with the text of a better one. Beam search then looks among all
    beams; a line may still have fewer than n_best.
    batch_tokens: source tokens in one call of the model.
    alignments: fills in Hypothesis.alignment, from the attention of the last layer.
    truncate: cuts the end of a line that is too long for the model, as its tokenizer truncates,
    instead of translating it in parts.
    src_lang, tgt_lang: languages of a multilingual model, as its tokenizer names them; None: those
    of the model's own files.
    shortlist: as in Model.generate(); a file is read once. cancel, too.
    options: those of Model.generate(). Where they set no length it is the model's own max_length,
    else 2 * source + 50. A line that is too long for the model is cut at a sentence's or
    clause's end; its parts are translated and joined, with a warning. With `seed`, samples repeat
    as long as the lines and batch_tokens are the same.

    Raises ValueError for a model without an encoder, for languages that it does not have or lacks,
    and the errors of generate() for its options.
    """

    def __init__(
        self,
        model: TranslationModel,
        *,
        n_best: int | None = None,
        batch_tokens: int = 4096,
        alignments: bool = False,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        shortlist: Any = None,
        unique: bool = False,
        truncate: bool = False,
        cancel: Event | None = None,
        **options: Any,
    ) -> None:
        check_event(cancel)
        self.cancel = cancel
        if alignments and truncate:
            raise ValueError("alignments and truncate do not go together: leave one out")
        if batch_tokens < 1:
            raise ValueError(f"batch_tokens must be at least 1, got {batch_tokens}")
        refuse("translation", options)
        if "num_return_sequences" in options:
            raise TypeError("translation takes n_best in place of num_return_sequences")
        shortlist = pop_old_name(options, shortlist)
        base = as_mapping(options.pop("generation_config", None))
        self.model, self.n_best = model, n_best
        self.options = {**base, **options, "num_return_sequences": 1 if n_best is None else n_best}
        self.config = resolve_n_best(self.options, model.generation_config)
        for name in ignored(self.config, self.options):  # warned of, once and not in every batch
            del self.options[name]
        self.options |= pinned(self.config)
        self.tokenizer, marks = between(model.tokenizer, src_lang, tgt_lang, self.config)
        if alignments and not isinstance(self.tokenizer, Pieces):
            raise ValueError("this model's tokenizer cannot tell words: leave alignments out")
        if unique and self.config.num_beams > 1:
            self.options["num_return_sequences"] = most_hypotheses(self.config)
        if marks or unique:
            self.options = marks | self.options
            self.config = resolve_n_best(self.options, model.generation_config)
        self.unique, self.beams = unique, self.config.num_beams > 1
        self.batch_tokens, self.alignments = batch_tokens, alignments
        self.tokens = 0  # in the best hypotheses so far
        self._calls = 0
        self._rows = max(self.config.num_beams, self.config.num_return_sequences)
        self._shortlist = as_shortlist(shortlist, model.spec, model.place.type)
        self.phases = Phases()
        lengths = Lengths.of(model.spec, self.options, self.config)
        self._cutter = Cutter(
            self.tokenizer, self.config, lengths, alignments, truncate, self.phases
        )

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
        pairs = paired(lines, target_prefix)
        return chain.from_iterable(self.groups(pairs, ahead > 0, ahead=ahead, ready=ready))

    def is_many(self, lines: int) -> bool:
        """Whether so many lines are more than the model computes at once."""
        return lines * self._rows > ROWS[self.model.place.type]

    def groups(
        self,
        lines: Iterable[tuple[str, str]],
        apart: bool,
        *,
        ahead: int | None = None,
        ready: Callable[[], bool] = lambda: True,
    ) -> Generator[list[list[Hypothesis]], None, None]:
        """As stream(), the lines that are finished together at a time. lines: with their targets'
        prefixes. apart: in threads of their own."""
        device = self.model.place.type
        tokens = (AHEAD[device] if ahead is None else ahead) * self.batch_tokens
        pipeline: Pipeline[Batch] = Pipeline(device, self.phases, apart)
        windows = self._cutter.windows(lines, tokens, lambda: pipeline.goes_on(ready))
        with closing(pipeline.run(self._started(windows, tokens > 0))) as computed:
            yield from self._finished(computed)

    def cut(self, lines: Sequence[str]) -> Window:
        """All lines as one window, for who calls the model himself: with what inputs() gives for
        parts, whose outputs hypotheses() reads."""
        return self._cutter.cut(1, [(line, "") for line in lines])

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

    def inputs(self, window: Window, chosen: Array) -> dict[str, Any]:
        """The arguments of generate() for parts of a window that share a limit of length. chosen:
        int64 [n]."""
        options = dict(self.options)
        prompts = [window.prompts[i] for i in chosen.tolist()]
        ids, mask = window.parts.select(chosen).table()
        if window.max_new[chosen[0]]:
            options["max_new_tokens"] = int(window.max_new[chosen[0]])
        if self.config.do_sample and isinstance(self.config.seed, int):
            options["seed"] = (self.config.seed + self._calls) % 2**64  # not the same draws again
        if self.alignments:
            options["output_attentions"] = True
        if any(len(prompt) > 1 for prompt in prompts):
            options["decoder_input_ids"] = prompts
        self._calls += 1
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "return_dict_in_generate": True,
            "output_sequences_scores": self.beams,
            **options,
        }

    def _finished(self, computed: Iterable[tuple[Batch, Any]]) -> Iterator[list[list[Hypothesis]]]:
        """The lines that are done with each batch, and all lines before them."""
        lines: Lines | None = None
        for batch, output in computed:
            with self.phases("decoding"):
                if lines is None or lines.window is not batch.window:
                    lines = Lines(batch.window, self.config)
                    for message in batch.window.warnings:
                        warn(message)
                if output is not None:
                    found = self.hypotheses(batch.window, batch.chosen, output)
                    lines.add(batch.chosen, found)
                group = [self.best(line) for line in lines.finished()]
            if group:
                yield group

    def best(self, found: list[Hypothesis]) -> list[Hypothesis]:
        """Of one line."""
        return (without_repeats(found) if self.unique else found)[: self.n_best or 1]

    def hypotheses(self, window: Window, chosen: Array, output: Any) -> list[list[Hypothesis]]:
        """Those of each part, best first. output: of generate() for inputs(window, chosen)."""
        n = self.config.num_return_sequences
        prompts = np.repeat([len(window.prompts[part]) for part in chosen.tolist()], n)
        sequences, lengths = output.sequences, output.lengths
        columns, ends = np.arange(sequences.shape[1]), (prompts + lengths)[:, None]
        shown = (columns >= np.minimum(prompts, 1)[:, None]) & (columns < ends)  # but the start
        texts = self.tokenizer.decode_batch(Rows.where(sequences, shown), skip_special_tokens=True)
        scores = np.full(len(texts), math.nan)
        if isinstance(output, GenerateBeamDecoderOnlyOutput) and self.beams:
            scores = np.asarray(output.sequences_scores)
        pairs: list[tuple[tuple[int, int], ...]] = [()] * len(texts)
        if not self.beams and self.n_best is not None or output.hypothesis_attentions is not None:
            new = Rows.where(sequences, shown & (columns >= prompts[:, None])).lists()
            if not self.beams and self.n_best is not None:
                scores = self._sums(window, np.repeat(chosen, n), new)
            if output.hypothesis_attentions is not None:
                pairs = self._alignments(window, np.repeat(chosen, n), new, output)
        found = list(map(Hypothesis, texts, scores.tolist(), pairs, lengths.tolist()))
        grouped = [found[i : i + n] for i in range(0, len(found), n)]
        if self.n_best is not None and not self.beams:
            grouped = [sorted(own, key=lambda one: one.score, reverse=True) for own in grouped]
        self._count(window, chosen, grouped)
        return grouped

    def _count(self, window: Window, chosen: Array, found: Sequence[Sequence[Hypothesis]]) -> None:
        """Counts tokens, and warns of translations that may be cut."""
        most = int(window.max_new[chosen[0]])
        self.tokens += sum(own[0].tokens for own in found)
        for part, own in zip(chosen.tolist(), found, strict=True):
            if most and any(one.tokens == most for one in own):
                line = window.first + bisect_right(window.ends, part)
                warn(
                    f"line {line}: a translation has reached the model's maximum of {most} tokens "
                    "and may be cut"
                )

    def _sums(self, window: Window, chosen: Array, new: list[list[int]]) -> Array:
        """The sums of the log-probabilities of new tokens, each row behind a part of `chosen`."""
        prompts = [window.prompts[part] for part in chosen.tolist()]
        sources = window.parts.select(chosen).lists()
        return np.array(sums(self.model, self.config, sources, prompts, new))

    def _alignments(
        self, window: Window, chosen: Array, new: list[list[int]], output: Any
    ) -> list[tuple[tuple[int, int], ...]]:
        """Of each row of new tokens, with the attentions float32 [generated, source]."""
        tokenizer = self.tokenizer
        assert isinstance(tokenizer, Pieces)
        attentions = output.hypothesis_attentions
        texts = [window.texts[part] for part in chosen.tolist()]
        return [
            tuple(alignment(tokenizer, *row)) for row in zip(texts, new, attentions, strict=True)
        ]
