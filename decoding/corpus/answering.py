"""The commands of this library as answerers of rows: what a worker does with a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import decoding
from decoding.common.phases import Phases
from decoding.corpus.row_task import Answer, Answerer, Failed, Fields
from decoding.engine.devices import usual_threads
from decoding.generation.batching import as_array
from decoding.text.complete import (
    DEFAULT_NEW,
    Answers,
    Prompt,
    new_tokens,
    read_chats,
    read_texts,
    resolved,
)
from decoding.text.hypotheses import Hypothesis, without_repeats
from decoding.text.pipeline import Pipeline
from decoding.text.prefixes import Line
from decoding.text.prompt_batch import PromptBatch, own_option, own_options
from decoding.text.texts import checked
from decoding.text.translate import Translator

CALL = 512  # rows that are encoded together, and scored or embedded in one call


class Asked(NamedTuple):
    """What a task says of rows: see Task."""

    column: str | None
    key: str
    answers: dict[str, str]
    options: Fields

    def columns(self, *usual: str) -> tuple[str, ...]:
        """Where a text may be: in the column that is named, else in the first of the usual ones.
        Those of TSV without a header are numbers."""
        return usual if self.column is None else (self.column,)


def open_model(name: str, given: Fields, workers: int) -> decoding.Model:
    """given: arguments of load(). workers: that share the CPU's cores."""
    shared = {"threads": max(1, usual_threads() // workers)} if workers > 1 else {}
    return decoding.load(name, **{**shared, **given})


def text_of(row: Fields, *columns: str) -> str:
    """The text in the first of these columns that the row has. Raises ValueError where there is
    none."""
    column = next((name for name in columns if name in row), None)
    if column is None:
        there = ", ".join(map(repr, row)) or "nothing"
        raise ValueError(f"the row has no {columns[0]!r}, but {there}")
    if not isinstance(row[column], str):
        raise ValueError(f"{column!r} must be a string, got {type(row[column]).__name__}")
    return checked(repr(column), row[column])


def slices(count: int) -> Iterator[slice]:
    return (slice(i, i + CALL) for i in range(0, count, CALL))


def written(answers: dict[str, str], found: Sequence[Hypothesis]) -> Answer:
    """The columns of an answer with these hypotheses, the best of which comes first."""
    each = [fields_of(next(iter(answers)), one, "alignment" in answers) for one in found]
    return {**each[0], "n_best": each} if "n_best" in answers else each[0]


def fields_of(name: str, one: Hypothesis, aligned: bool) -> Answer:
    fields: Answer = {name: one.text}
    if not math.isnan(one.score):
        fields["score"] = round(one.score, 6)
    fields["tokens"] = one.tokens
    if aligned:
        fields["alignment"] = [list(pair) for pair in one.alignment]
    return fields


class Translate:
    """Translations, by Translator: see there for the options. target_prefix: of all, where a row
    has no column of this name. own_options: a row may have max_new_tokens, too."""

    is_shared = True

    def __init__(self, task: Asked, model: decoding.Model) -> None:
        self._task, self._model, self._columns = task, model, task.columns(task.key, "1")
        self._options = dict(task.options)
        self._prefix = self._options.pop("target_prefix", None) or ""
        self._has_own = self._options.pop("own_options", False)
        if self._options.get("shortlist") is not None:  # read once
            self._options["shortlist"] = decoding.Shortlist.load(self._options["shortlist"])
        self._translator(0)  # which says what is wrong with the options

    def _translator(self, number: int) -> Translator:
        """For rows from this one on: samples depend on their place, not on what came before."""
        options = dict(self._options)
        if options.get("seed") is not None:
            options["seed"] = (options["seed"] + number) % 2**64
        return Translator(self._model, **options)

    def read(self, row: Fields) -> Line:
        has_prefix = row.get("target_prefix") is not None
        prefix = text_of(row, "target_prefix") if has_prefix else self._prefix
        limit = own_option(row, "max_new_tokens") if self._has_own else None
        return Line(text_of(row, *self._columns), prefix, limit)

    def __call__(self, given: Sequence[Line], numbers: Sequence[int]) -> Iterator[list[Answer]]:
        translator = self._translator(numbers[0])
        with closing(translator.groups([list(given)], translator.is_many(len(given)))) as groups:
            for group in groups:
                yield [written(self._task.answers, found) for found in group]


class Generate:
    """Completions of texts or answers in chats. Each row has a seed of its own."""

    is_shared = True

    def __init__(self, task: Asked, model: decoding.Model) -> None:
        self._task, self._model = task, model
        options = dict(task.options)
        self._is_chat, self._system = options.pop("chat", False), options.pop("system", None)
        template = {"chat_template": options.pop("chat_template", None)}
        self._template = {k: v for k, v in template.items() if v is not None}
        self._n_best, self._unique = options.pop("n_best", None), options.pop("unique", False)
        self._has_own = options.pop("own_options", False)
        self._batch_tokens = options.pop("batch_tokens", 4096)
        options.pop("raw", None)
        if model.spec.encoder is not None:
            raise ValueError("this model has an encoder and rewrites texts: use `translate`")
        self._config = resolved(model, options, self._n_best)[1]  # and warns
        self._seed = options.pop("seed", None) if self._config.do_sample else None
        self._options = {name: value for name, value in options.items() if name != "seed"}

    def read(self, row: Fields) -> Prompt | None:
        columns = self._task.columns(self._task.key, "1")
        given = row.get(self._task.key) if self._is_chat else None
        if not isinstance(given, list):
            given = text_of(row, *columns)
        if given == "":
            prompts = []
        elif self._is_chat:
            messages = given if isinstance(given, list) else self._messages(given)
            template = {"continue_final_message": False, **self._template}
            prompts = read_chats(self._model, [messages], template)[0]
        else:
            prompts = read_texts(self._model, [given], ["the prompt"])
        new_tokens(self._model.spec, self._config, prompts)  # raises for one that is too long
        if not prompts:
            return None
        own = own_options(row, bool(self._config.do_sample)) if self._has_own else {}
        return replace(prompts[0], options=own)

    def _messages(self, text: str) -> list[dict[str, str]]:
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        return [*system, {"role": "user", "content": text}]

    def __call__(
        self, given: Sequence[Prompt | None], numbers: Sequence[int]
    ) -> Iterator[list[Answer]]:
        pipeline: Pipeline[PromptBatch] = Pipeline(self._model.place.type, Phases(), apart=True)
        with closing(pipeline.run(self._batches(given, numbers))) as computed:
            for batch, output in computed:
                yield [self._answer(found) for found in batch.results(output)]

    def _answer(self, found: list[Hypothesis]) -> Answer:
        return written(self._task.answers, without_repeats(found) if self._unique else found)

    def _batches(
        self, given: Sequence[Prompt | None], numbers: Sequence[int]
    ) -> Generator[PromptBatch, None, None]:
        begin = 0
        while begin < len(given):
            end, tokens = begin, 0
            while end < len(given) and tokens < self._batch_tokens:
                prompt = given[end]
                tokens += 1 if prompt is None else len(prompt.ids) + self._new
                end += 1
            prompts, options = list(given[begin:end]), dict(self._options)
            asked = [prompt for prompt in prompts if prompt]
            if self._seed is not None:
                rows = zip(numbers[begin:end], prompts, strict=True)
                seeds = [(self._seed + number) % 2**64 for number, prompt in rows if prompt]
                options["seed"] = seeds
            many = len(given) > len(prompts)
            yield PromptBatch(prompts, Answers(self._model, asked, self._n_best, options, many))
            begin = end

    @property
    def _new(self) -> int:
        found = self._config.max_new_tokens
        return found if isinstance(found, int) else DEFAULT_NEW


class Score:
    """Log-probabilities of targets, or of texts by a model with a decoder alone."""

    is_shared = True

    def __init__(self, task: Asked, model: decoding.Model) -> None:
        self._model, options = model, dict(task.options)
        named = options.pop("source_column", None)
        self._sources = ("source", "1") if named is None else (named,)
        self._languages = options
        self._pairs = model.spec.encoder is not None
        self._columns = (
            task.columns("target", "2") if self._pairs else task.columns("text", "target", "1")
        )

    def read(self, row: Fields) -> tuple[str, str | None]:
        """A text and its target, or a text."""
        if self._pairs:
            return text_of(row, *self._sources), text_of(row, *self._columns)
        return text_of(row, *self._columns), None

    def __call__(
        self, given: Sequence[tuple[str, str | None]], numbers: Sequence[int]
    ) -> Iterator[list[Answer]]:
        for some in slices(len(given)):
            texts = [text for text, _ in given[some]]
            targets = [target for _, target in given[some]] if self._pairs else None
            scores = self._model.score_arrays(texts, targets, **self._languages)
            pairs = zip(scores.sums.tolist(), scores.lengths.tolist(), strict=True)
            yield [
                {
                    "logprob": round(logprob, 6),
                    "per_token": round(logprob / max(1, tokens), 6),
                    "tokens": tokens,
                }
                for logprob, tokens in pairs
            ]


class Embed:
    """Sentence embeddings, float32."""

    is_shared = True

    def __init__(self, task: Asked, model: decoding.Model) -> None:
        if not model.is_encoder:
            raise ValueError("this model generates: embed needs an encoder, such as BERT")
        self._columns, self._embedder = task.columns(task.key, "1"), model.embedder
        self._truncate = bool(task.options.get("truncate"))

    def read(self, row: Fields) -> list[int]:
        """Its ids."""
        text = text_of(row, *self._columns)
        return self._embedder.encode([text], lambda _: "the text", self._truncate)[0]

    def __call__(
        self, given: Sequence[list[int]], numbers: Sequence[int]
    ) -> Iterator[list[Answer | Failed]]:
        for some in slices(len(given)):
            vectors = as_array(self._embedder.vectors(given[some])).tolist()
            yield [{"embedding": [float(f"{x:.9g}") for x in row]} for row in vectors]


KINDS: dict[str, Callable[[Asked, decoding.Model], Answerer]] = {
    "translate": Translate,
    "generate": Generate,
    "score": Score,
    "embed": Embed,
}
