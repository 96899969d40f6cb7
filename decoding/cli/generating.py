"""Makes prompts of records, and answers of prompts: what `decoding generate` does."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import Any

import decoding
from decoding.cli.reading import read_template
from decoding.cli.records import Record, batches
from decoding.cli.report import Report
from decoding.cli.results import WRITINGS, Layout, without_repeats
from decoding.cli.search import search_options
from decoding.cli.writing import Sink
from decoding.common.phases import Phases
from decoding.common.signs import replaced
from decoding.text.chunks import Chunks
from decoding.text.complete import (
    DEFAULT_NEW,
    Answers,
    Prompt,
    new_tokens,
    read_chats,
    read_texts,
    resolved,
)
from decoding.text.hypotheses import Hypothesis
from decoding.text.pipeline import Pipeline
from decoding.text.prompt_batch import PromptBatch, own_options
from decoding.text.stream_text import pieces


class Encoder:
    """Makes prompts of records."""

    def __init__(self, model: decoding.Model, args: argparse.Namespace) -> None:
        self._model, self._args = model, args
        self._template: dict[str, Any] = {"continue_final_message": False}
        if args.chat_template is not None:
            self._template["chat_template"] = read_template(args.chat_template)

    def __call__(self, records: Sequence[Record]) -> list[Prompt | None]:
        """None for an empty line, which is no prompt."""
        given = [record for record in records if record.text != "" or record.where.startswith("--")]
        if self._args.chat and given:
            prompts = self._chats(given)
        else:
            names = [record.where for record in given]
            prompts = read_texts(self._model, [record.text for record in given], names)
        made = {
            id(record): replace(prompt, name=record.where, options=self._own(record))
            for record, prompt in zip(given, prompts, strict=True)
        }
        return [made.get(id(record)) for record in records]

    def _own(self, record: Record) -> dict[str, Any]:
        if self._args.input_format != "json":
            return {}
        try:
            return own_options(record.fields, bool(self._args.do_sample))
        except ValueError as error:
            raise ValueError(f"{record.where}: {error}") from None

    def _chats(self, given: Sequence[Record]) -> list[Prompt]:
        """Raises ValueError with the place of the first that is no chat, or that the template
        refuses."""
        chats = [self._chat(record.text) for record in given]
        try:
            return read_chats(self._model, chats, self._template)[0]
        except (TypeError, ValueError):
            for record, chat in zip(given, chats, strict=True):
                try:
                    read_chats(self._model, [chat], self._template)
                except (TypeError, ValueError) as error:
                    raise ValueError(f"{record.where}: {error}") from None
            raise

    def _chat(self, given: Any) -> Any:
        """Messages; of a text that of a user, and of the system before it."""
        if not isinstance(given, str):
            return given
        system = self._args.system
        before = [] if system is None else [{"role": "system", "content": system}]
        return [*before, {"role": "user", "content": given}]


def answers(
    model: decoding.Model,
    records: Iterable[list[Record]],
    args: argparse.Namespace,
    ready: Callable[[], bool],
    phases: Phases,
) -> Generator[list[list[Hypothesis]], None, None]:
    """The results of the records, batch by batch."""
    pipeline: Pipeline[PromptBatch] = Pipeline(
        model.place.type, phases, apart=not (args.line_buffered or args.prompt)
    )
    most = 1 if args.line_buffered else args.batch_tokens
    chunks = Chunks(
        records,
        lambda record: sum(map(len, record.columns)),  # of messages the whole line
        0 if args.line_buffered else args.batch_tokens,
        Encoder(model, args),
        lambda: pipeline.goes_on(ready),
        phases,
    )
    with closing(pipeline.run(started(model, chunks, args, most, phases))) as computed:
        for batch, output in computed:
            with phases("decoding"):
                found = batch.results(output)
                if args.unique:
                    found = [without_repeats(own) for own in found]
            yield found


def started(
    model: decoding.Model,
    chunks: Chunks[Record, Prompt | None],
    args: argparse.Namespace,
    most: int,
    phases: Phases,
) -> Generator[PromptBatch, None, None]:
    """most: tokens of a batch."""
    new, done = args.max_new_tokens or DEFAULT_NEW, 0
    n_best = args.n_best if args.scores or args.n_best > 1 else None
    options, many = search_options(args), False

    def size(prompt: Prompt | None) -> int:
        return new + len(prompt.ids) if prompt else 1

    for batch in batches(chunks, size, most, chunks.ready):
        rows = [done + i for i, prompt in enumerate(batch) if prompt]
        if args.seed is not None:  # one for each row makes its samples the same in any batch
            options["seed"] = [(args.seed + row) % 2**64 for row in rows]
        done += len(batch)
        # Once an engine is there, a small batch at the end goes to it, too.
        many = many or (not args.line_buffered and sum(map(size, batch)) >= most)
        asked = [prompt for prompt in batch if prompt]
        with phases("encoding"):
            found = Answers(model, asked, n_best, options, many)
        yield PromptBatch(batch, found)


def stream(
    model: decoding.Model,
    records: Iterable[list[Record]],
    args: argparse.Namespace,
    sink: Sink,
    layout: Layout,
    report: Report,
) -> None:
    """Writes each answer as it comes."""
    encode = Encoder(model, args)
    given, config = resolved(model, search_options(args))
    signs, seed = WRITINGS[layout.writing], given.get("seed")
    for line, record in enumerate(chain.from_iterable(records)):
        [prompt], tokens = encode([record]), list[int]()
        if prompt:
            own = {**given, "max_new_tokens": new_tokens(model.spec, config, [prompt])}
            if seed is not None:
                own["seed"] = (seed + line) % 2**64
            own |= prompt.options
            steps = model.stream([prompt.ids], attention_mask=[prompt.mask], **own)
            for piece in pieces(model.tokenizer, prompt.shown, counted(steps, tokens)):
                sink.write(replaced(piece, signs))
        sink.write("\n")
        report.add(1, sum(tokens))


def counted(steps: Iterable[list[list[int]]], tokens: list[int]) -> Iterator[list[list[int]]]:
    """The steps of one row; appends to `tokens` how many each has."""
    for step in steps:
        tokens.append(len(step[0]))
        yield step
