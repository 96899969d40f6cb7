"""Translates lines of text, in their order, for any number of lines.

A `Translator` reads ahead, sorts the lines by length, and hands the model batches of about equal
lengths. It yields a line's translation as soon as that line and all lines before it are done.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

from decoding.common.progress import Event, Progress, check_event
from decoding.common.warn import warn
from decoding.generation.batching import ROWS
from decoding.generation.call import Started
from decoding.generation.outputs import GenerateBeamDecoderOnlyOutput
from decoding.generation.resolve import as_mapping, ignored, pinned
from decoding.text.ahead import started_ahead
from decoding.text.alignment import Pieces, alignment
from decoding.text.arguments import refuse, resolve_n_best
from decoding.text.hypotheses import (
    BLANK,
    Hypothesis,
    Output,
    joined,
    most_hypotheses,
    without_repeats,
)
from decoding.text.languages import between
from decoding.text.lengths import Lengths
from decoding.text.parts import Cutter, Part
from decoding.text.prefixes import paired, sums
from decoding.text.shortlist import as_shortlist, pop_old_name
from decoding.text.text_model import TextModel
from decoding.text.texts import as_texts
from decoding.text.tokenizers import split_language_code

if TYPE_CHECKING:
    import torch
    from torch import Tensor

AHEAD = {"cpu": 1, "cuda": 4}  # batches of lines that are read and sorted before the model runs


class TranslationModel(TextModel, Protocol):
    """The members of decoding.Model that translation uses."""

    @property
    def device(self) -> torch.device: ...


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
    found = []
    with Progress(progress, len(lines), "texts") as done:
        for hypotheses in translator.stream(lines, target_prefix=target_prefix):
            found.append(hypotheses)
            done.reach(len(found))
    results: list[Any] = [each[0].text for each in found] if n_best is None else found
    return results[0] if alone else results


class Batch(NamedTuple):
    """Parts in one call of the model, which there is none of for no parts. max_new: tokens of each
    result; None: the caller's options say."""

    parts: list[Part]
    max_new: int | None
    rows: int
    started: Started | None

    @property
    def waits(self) -> bool:
        return self.started is None or self.started.waits

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
        self._shortlist = as_shortlist(shortlist, model.spec, model.device.type)
        lengths = Lengths.of(model.spec, self.options, self.config)
        self._cutter = Cutter(
            self.tokenizer, self.config, lengths, batch_tokens, alignments, truncate
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

        ahead: batches of lines to read and sort before the model runs; None: on a CPU one, since
        more delay the first line and gained nothing there. 0: line by line. target_prefix: text
        that each translation begins with, or one for each line. ready: says whether another line
        is there; where not, those read so far are translated at once.
        """
        pairs = paired(lines, target_prefix)
        ahead = AHEAD[self.model.device.type] if ahead is None else ahead
        waiting, done = deque[list[Part]](), dict[Part, list[Output]]()

        def batches() -> Iterator[Batch]:
            for window in self._cutter.windows(pairs, ahead * self.batch_tokens, ready):
                waiting.extend(window)
                parts = [part for own in window for part in own]
                many = ahead > 0 and len(parts) * self._rows > ROWS[self.model.device.type]
                for batch in self._cutter.batches(parts):
                    yield self._start(batch, many)
                if not parts:
                    yield Batch([], None, 0, None)  # whose blank lines need not wait

        for batch in started_ahead(batches(), self.model.device.type, ready):
            done.update(zip(batch.parts, self._results(batch), strict=True))
            yield from self._finished(waiting, done)

    def _start(self, parts: list[Part], many: bool) -> Batch:
        """One call of the model. many: it is one of many."""
        options = dict(self.options)
        max_new = self._cutter.max_new(parts[0])
        if max_new is not None:
            options["max_new_tokens"] = max_new
        if self.config.do_sample and isinstance(self.config.seed, int):
            options["seed"] = (self.config.seed + self._calls) % 2**64  # not the same draws again
        if self.alignments:
            options["output_attentions"] = True
        if any(len(part.prompt) > 1 for part in parts):
            options["decoder_input_ids"] = [part.prompt for part in parts]
        self._calls += 1
        started = self.model.start(
            [part.ids for part in parts],
            return_dict_in_generate=True,
            output_sequences_scores=self.beams,
            shortlist=self._shortlist,
            cancel=self.cancel,
            many=many,
            **options,
        )
        return Batch(parts, max_new, len(parts) * self._rows, started)

    def _results(self, batch: Batch) -> list[list[Output]]:
        """The hypotheses of each part."""
        if batch.started is None:
            return []
        found: Any = batch.started.result()
        n = self.config.num_return_sequences
        rows = found.sequences.tolist()
        scores = [math.nan] * len(rows)
        if isinstance(found, GenerateBeamDecoderOnlyOutput) and found.sequences_scores is not None:
            scores = found.sequences_scores.tolist()
        attentions: Iterable[Tensor | None] = [None] * len(rows)
        if found.hypothesis_attentions is not None:
            attentions = found.hypothesis_attentions
        outputs = [
            self._output(batch.parts[i // n], row, score, attention)
            for i, (row, score, attention) in enumerate(zip(rows, scores, attentions, strict=True))
        ]
        hypotheses = [outputs[i : i + n] for i in range(0, len(outputs), n)]
        if self.n_best is not None and not self.beams:
            hypotheses = self._scored(batch.parts, hypotheses)
        for part, best_first in zip(batch.parts, hypotheses, strict=True):
            self.tokens += best_first[0].tokens
            if any(output.tokens == batch.max_new for output in best_first):
                warn(
                    f"line {part.line}: a translation has reached the model's maximum of "
                    f"{batch.max_new} tokens and may be cut"
                )
        return hypotheses

    def _output(self, part: Part, row: list[int], score: float, attention: Tensor | None) -> Output:
        """row: the prompt, the generated tokens, and padding after EOS. attention: float32
        [generated, source]."""
        generated = row[len(part.prompt) :]
        ends = [i for i, token in enumerate(generated) if token in self.config.eos_token_id]
        generated = generated[: ends[0] + 1] if ends else generated
        tokenizer, pairs = self.tokenizer, list[tuple[int, int]]()
        if attention is not None:
            assert isinstance(tokenizer, Pieces)
            pairs = alignment(tokenizer, part.text, generated, attention)
        words = len(split_language_code(part.text)[1].split())
        text = tokenizer.decode([*part.prompt[1:], *generated], skip_special_tokens=True)
        return Output(text, score, generated, words, pairs)

    def _scored(self, batch: list[Part], hypotheses: list[list[Output]]) -> list[list[Output]]:
        """The same with the sums of their log-probabilities, best first."""
        prompts = [part.prompt for part, own in zip(batch, hypotheses, strict=True) for _ in own]
        found = iter(
            sums(
                self.model,
                self.config,
                [part.ids for part, own in zip(batch, hypotheses, strict=True) for _ in own],
                prompts,
                [output.ids for own in hypotheses for output in own],
            )
        )
        scored = [[replace(output, score=next(found)) for output in own] for own in hypotheses]
        return [sorted(own, key=lambda output: output.score, reverse=True) for own in scored]

    def _finished(
        self, waiting: deque[list[Part]], done: dict[Part, list[Output]]
    ) -> Iterator[list[Hypothesis]]:
        """Removes the finished lines at the front of `waiting`, and yields their hypotheses."""
        while waiting and all(part in done for part in waiting[0]):
            parts = [done.pop(part) for part in waiting.popleft()]
            # The best of all parts joined, then the second best, ...
            found = [joined(ranked, self.config) for ranked in zip(*parts, strict=True)] or [BLANK]
            if self.unique:
                found = without_repeats(found)
            yield found[: self.n_best or 1]
