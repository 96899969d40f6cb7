"""Encodes lines and scores them: what `decoding score` does with its input."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import decoding
from decoding.cli.reading import Input
from decoding.cli.records import Record, batches, kept, paired, texts_of
from decoding.common.phases import Phases
from decoding.generation.resolve import resolve
from decoding.text.chunks import Chunks
from decoding.text.languages import between
from decoding.text.pipeline import Pipeline
from decoding.text.scored import begun
from decoding.text.tokenizers import Tokenizer

Pair = tuple[str | None, str]  # a source, None without one, and its target


class Line(NamedTuple):
    """A line's ids: the encoder's input, None without one, and the ids that are scored."""

    source: list[int] | None
    target: list[int]


class Found(NamedTuple):
    logprob: float
    tokens: int  # EOS included, where the model has it

    @property
    def per_token(self) -> float:
        return self.logprob / max(1, self.tokens)


NOTHING = Found(0.0, 0)


@dataclass(frozen=True, eq=False)
class Batch:
    """Successive lines in one call of the model, which gets those that are not empty."""

    model: decoding.Model
    lines: list[Line]

    @property
    def rows(self) -> int:
        return len(self.lines)

    def output(self) -> Any:
        some = [line for line in self.lines if line.target]
        if not some:
            return None
        targets = [line.target for line in some]
        if self.model.spec.encoder is None:
            return self.model.score_arrays(targets)
        return self.model.score_arrays([line.source for line in some], targets)

    def cancel(self) -> None:
        pass  # it is one pass, which ends soon

    def results(self, output: Any) -> list[Found]:
        """Of each line; output: what output() gave."""
        if output is None:
            return [NOTHING] * len(self.lines)
        sums, lengths = output.sums.tolist(), output.lengths.tolist()
        found = map(Found, sums, lengths)
        return [next(found) if line.target else NOTHING for line in self.lines]


def scores(
    model: decoding.Model,
    source: Input | None,
    target: Input,
    pending: deque[Record],
    args: argparse.Namespace,
    phases: Phases,
) -> Generator[list[Found], None, None]:
    """In order; as many lines in one call of the model as have --batch-tokens or a little more.

    source: None where the target's records hold it too, and for a model with a decoder alone.
    pending: gets the target's records. Raises ValueError where an encoder-decoder's source is
    nowhere.
    """
    pipeline: Pipeline[Batch] = Pipeline(model.place.type, phases, apart=not args.line_buffered)
    most = 1 if args.line_buffered else args.batch_tokens
    chunks = Chunks(
        pairs_of(model, source, kept(target, pending), args),
        lambda pair: len(pair[0] or "") + len(pair[1]),
        0 if args.line_buffered else args.batch_tokens,
        Encoder(model, args),
        lambda: pipeline.goes_on(target.ready),
        phases,
    )
    given = (Batch(model, lines) for lines in batches(chunks, tokens_of, most, chunks.ready))
    with closing(pipeline.run(given)) as computed:
        for batch, output in computed:
            with phases("decoding"):
                found = batch.results(output)
            yield found


def tokens_of(line: Line) -> int:
    return len(line.target) + len(line.source or [])


def pairs_of(
    model: decoding.Model,
    source: Input | None,
    target: Iterable[list[Record]],
    args: argparse.Namespace,
) -> Iterator[list[Pair]]:
    if model.spec.encoder is None:
        return ([(None, record.text) for record in records] for records in target)
    if source is not None:
        return ([pair] for pair in paired(texts_of(source), texts_of(target)))
    if args.input_format == "lines":
        raise ValueError("this model translates: say with --source what --target translates")
    return ([(source_of(record), record.text) for record in records] for records in target)


def source_of(record: Record) -> str:
    """The source beside a target: the first column, or the key "source"."""
    source = record.columns[0] if len(record.columns) > 1 else record.fields.get("source")
    if not isinstance(source, str):
        raise ValueError(f"{record.where}: 'source' must be a string, got {source!r}")
    return source


class Encoder:
    """Makes ids of successive pairs. Raises ValueError where a line is too long."""

    def __init__(self, model: decoding.Model, args: argparse.Namespace) -> None:
        config = resolve({}, None, model.generation_config)
        self._tokenizer: Tokenizer
        self._tokenizer, marks = between(model.tokenizer, args.src_lang, args.tgt_lang, config)
        model.generation_config |= marks
        self._spec, self._bos = model.spec, model.generation_config.get("bos_token_id")
        self._done = 0

    def __call__(self, pairs: Sequence[Pair]) -> list[Line]:
        targets = self._tokenizer.encode_target_batch([target for _, target in pairs])
        if self._spec.encoder is None:
            lines = [Line(None, ids) for ids in begun(targets, self._bos)]
        else:
            texts = [source for source, _ in pairs if source is not None]
            sources = self._tokenizer.encode_batch(texts).lists()
            lines = list(map(Line, sources, targets.lists()))
        for line in lines:
            self._done += 1
            self._check(line)
        return lines

    def _check(self, line: Line) -> None:
        encoder, most = self._spec.encoder, self._spec.decoder.positions
        if encoder is None:
            self._check_length(len(line.target) - 1, most)
        else:
            self._check_length(len(line.source or []), encoder.positions)
            self._check_length(len(line.target), most)

    def _check_length(self, tokens: int, most: int) -> None:
        if tokens > most:
            raise ValueError(
                f"line {self._done} has {tokens} tokens, the model has room for {most}: split it"
            )
