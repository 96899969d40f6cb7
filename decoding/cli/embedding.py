"""Encodes lines and makes vectors of them: what `decoding embed` does with its input."""

from __future__ import annotations

import argparse
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

import decoding
from decoding.cli.reading import Input
from decoding.cli.records import Record, batches
from decoding.common.arrays import Array
from decoding.common.phases import Phases
from decoding.generation.batching import as_array
from decoding.text.chunks import Chunks
from decoding.text.embed import Embedder
from decoding.text.pipeline import Pipeline

Encoded = tuple[Record, list[int]]


@dataclass(frozen=True, eq=False)
class Batch:
    """Successive records in one call of the model."""

    embedder: Embedder
    records: list[Record]
    ids: list[list[int]]

    @property
    def rows(self) -> int:
        return len(self.records)

    def output(self) -> Array:
        """float32 [batch, H]"""
        return as_array(self.embedder.vectors(self.ids))

    def cancel(self) -> None:
        pass  # it is one pass, which ends soon


def vectors(
    model: decoding.Model,
    embedder: Embedder,
    records: Input,
    args: argparse.Namespace,
    phases: Phases,
) -> Generator[tuple[list[Record], Array, int], None, None]:
    """Records, their vectors float32 [batch, H], and the tokens that they have. Raises ValueError
    with the place of a text that is too long."""
    pipeline: Pipeline[Batch] = Pipeline(model.place.type, phases, apart=not args.line_buffered)
    most = 1 if args.line_buffered else args.batch_tokens

    def encode(chunk: Sequence[Record]) -> list[Encoded]:
        texts = [record.text for record in chunk]
        ids = embedder.encode(texts, lambda i: f"{chunk[i].where}: the text", args.truncate)
        return list(zip(chunk, ids, strict=True))

    chunks = Chunks(
        records,
        lambda record: len(record.text),
        0 if args.line_buffered else args.batch_tokens,
        encode,
        lambda: pipeline.goes_on(records.ready),
        phases,
    )
    given = (
        Batch(embedder, [record for record, _ in batch], [ids for _, ids in batch])
        for batch in batches(chunks, lambda pair: len(pair[1]), most, chunks.ready)
    )
    with closing(pipeline.run(given)) as computed:
        for batch, found in computed:
            yield batch.records, found, sum(map(len, batch.ids))
