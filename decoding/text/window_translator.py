"""How lines become calls of a model, and their outputs translations."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from decoding.common.arrays import Array
from decoding.common.device import Device
from decoding.common.phases import Phases
from decoding.common.progress import Event, check_event
from decoding.common.warn import warn
from decoding.generation.outputs import GenerateBeamDecoderOnlyOutput
from decoding.generation.resolve import as_mapping, ignored, pinned
from decoding.text.alignment import Pieces, alignment
from decoding.text.arguments import refuse, resolve_n_best
from decoding.text.hypotheses import Hypothesis, most_hypotheses, without_repeats
from decoding.text.languages import between
from decoding.text.lengths import Lengths
from decoding.text.parts import Cutter, Window
from decoding.text.prefixes import Line, attentions_of, sums
from decoding.text.rows import Rows
from decoding.text.shortlist import as_shortlist, pop_old_name
from decoding.text.text_model import TextModel


class TranslationModel(TextModel, Protocol):
    """The members of decoding.Model that translation uses."""

    @property
    def place(self) -> Device: ...


class WindowTranslator:
    """Translates lines with one model and one set of options, of which the caller makes windows.

    It says how the model is called for parts of a window, and reads what comes of it.

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
        self.calls = 0  # so far, each of which has a seed
        self._rows = max(self.config.num_beams, self.config.num_return_sequences)
        self._shortlist = as_shortlist(shortlist, model.spec, model.place.type)
        self.phases = Phases()
        lengths = Lengths.of(model.spec, self.options, self.config)
        self._cutter = Cutter(
            self.tokenizer, self.config, lengths, alignments, truncate, self.phases
        )

    def cut(self, lines: Sequence[str]) -> Window:
        """All lines as one window."""
        return self._cutter.cut(1, list(map(Line, lines)))

    def inputs(self, window: Window, chosen: Array) -> dict[str, Any]:
        """The arguments of generate() for parts of a window. chosen: int64 [n]."""
        ids, mask = window.parts.select(chosen).table()
        own = {"input_ids": ids, "attention_mask": mask, "output_attentions": self.alignments}
        return own | self.options_of(window, chosen)

    def options_of(self, window: Window, chosen: Array) -> dict[str, Any]:
        """The same for an engine, which is given ids apart, and keeps no attentions."""
        options = dict(self.options)
        prompts = [window.prompts[i] for i in chosen.tolist()]
        limits = window.max_new[chosen].tolist()
        own = limits if len(set(limits)) > 1 else limits[0]
        options |= {"max_new_tokens": own, "max_length": None}
        if self.config.do_sample and isinstance(self.config.seed, int):
            options["seed"] = (self.config.seed + self.calls) % 2**64  # not the same draws again
        if any(len(prompt) > 1 for prompt in prompts):
            options["decoder_input_ids"] = prompts
        self.calls += 1
        return {
            "return_dict_in_generate": True,
            "output_sequences_scores": self.beams,
            **options,
        }

    @property
    def reads_again(self) -> bool:
        """Whether written(), without attentions, has the model read what it has generated."""
        return self.alignments or (self.n_best is not None and not self.beams)

    def best(self, found: list[Hypothesis]) -> list[Hypothesis]:
        """Of one line."""
        return without_repeats(found)[: self.n_best or 1] if self.unique else found

    def hypotheses(self, window: Window, chosen: Array, output: Any) -> list[list[Hypothesis]]:
        """Those of each part, best first. output: of generate() for inputs(window, chosen)."""
        n = self.config.num_return_sequences
        prompts = np.repeat([len(window.prompts[part]) for part in chosen.tolist()], n)
        sequences, lengths = output.sequences, output.lengths
        columns, ends = np.arange(sequences.shape[1]), (prompts + lengths)[:, None]
        shown = (columns >= np.minimum(prompts, 1)[:, None]) & (columns < ends)  # but the start
        scores = [math.nan] * len(sequences)
        if isinstance(output, GenerateBeamDecoderOnlyOutput) and self.beams:
            scores = np.asarray(output.sequences_scores).tolist()
        rows, attentions = Rows.where(sequences, shown), output.hypothesis_attentions
        return self.written(window, chosen, rows, lengths.tolist(), scores, attentions)

    def written(
        self,
        window: Window,
        chosen: Array,
        rows: Rows,
        tokens: Sequence[int],
        scores: Sequence[float],
        attentions: Any = None,
    ) -> list[list[Hypothesis]]:
        """The same of the rows of each part, one part after the other. rows: their ids but for the
        start token, of which so many `tokens` are new. scores: of beam search; of others any.
        attentions: of the new tokens, float32 [generated, source] of each row; None: where they are
        asked for, the model reads the tokens again."""
        n = self.config.num_return_sequences
        texts = self.tokenizer.decode_batch(rows, skip_special_tokens=True)
        pairs: list[tuple[tuple[int, int], ...]] = [()] * len(texts)
        if self.reads_again:
            new = [row[len(row) - own :] for row, own in zip(rows.lists(), tokens, strict=True)]
            if not self.beams and self.n_best is not None:
                scores = self._sums(window, np.repeat(chosen, n), new)
            if self.alignments:
                pairs = self._alignments(window, np.repeat(chosen, n), new, attentions)
        found = list(map(Hypothesis, texts, scores, pairs, tokens))
        grouped = [found[i : i + n] for i in range(0, len(found), n)]
        if self.n_best is not None and not self.beams:
            grouped = [sorted(own, key=lambda one: one.score, reverse=True) for own in grouped]
        self.tokens += sum(own[0].tokens for own in grouped)
        self._warn_of_cuts(window, chosen, tokens)
        return grouped

    def _warn_of_cuts(self, window: Window, chosen: Array, tokens: Sequence[int]) -> None:
        """tokens: of the rows of each part, one part after the other."""
        lengths, n = self._cutter.lengths, self.config.num_return_sequences
        if lengths.asked:
            return
        for i, part in enumerate(chosen.tolist()):
            own = int(window.max_new[part])
            if own not in tokens[i * n : (i + 1) * n]:
                continue
            source, prompt = int(window.parts.lengths[part]), len(window.prompts[part])
            if own == lengths.max_new_tokens(source, prompt):  # and not a limit of the line's own
                line = window.first + bisect_right(window.ends, part)
                warn(
                    f"line {line}: a translation has reached the model's maximum of {own} tokens "
                    "and may be cut"
                )

    def _sums(self, window: Window, chosen: Array, new: list[list[int]]) -> list[float]:
        """The sums of the log-probabilities of new tokens, each row behind a part of `chosen`."""
        return sums(self.model, self.config, *self._read(window, chosen), new)

    def _alignments(
        self, window: Window, chosen: Array, new: list[list[int]], attentions: Any
    ) -> list[tuple[tuple[int, int], ...]]:
        """Of each row of new tokens, each behind a part of `chosen`."""
        tokenizer = self.tokenizer
        assert isinstance(tokenizer, Pieces)
        if attentions is None:
            attentions = attentions_of(self.model, self.config, *self._read(window, chosen), new)
        texts = [window.texts[part] for part in chosen.tolist()]
        rows = zip(texts, new, attentions, strict=True)
        return [tuple(alignment(tokenizer, *row)) for row in rows]

    def _read(self, window: Window, chosen: Array) -> tuple[list[list[int]], list[list[int]]]:
        """What the encoder and the decoder are given of parts."""
        prompts = [window.prompts[part] for part in chosen.tolist()]
        return window.parts.select(chosen).lists(), prompts
