"""Log-probabilities and attentions of given tokens by teacher forcing, without a search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from decoding.common import html
from decoding.common.arrays import Array
from decoding.engine.request import IGNORED, ScoreRequest
from decoding.engine.session import Session
from decoding.generation.batching import (
    TokenBatch,
    as_table,
    check_ids,
    check_windows,
    common_device,
    source_batch,
    split,
)
from decoding.generation.inputs import decoder_batch
from decoding.generation.resolve import resolve
from decoding.generation.special_tokens import fill_id
from decoding.models.spec import ModelSpec
from decoding.models.weights.dtypes import as_tensor

if TYPE_CHECKING:
    from torch import Tensor

SHOWN = 4  # sums in repr()
ROWS, COLUMNS = 32, 64  # in a notebook
NEEDED = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, repr=False)
class Scores:
    """Log-probabilities of labels, with natural logarithms, and what the model finds more likely.

    token_logprobs: float32 [B, T], 0 where a label does not count. mask: bool [B, T], True where it
    does. rank: int64 [B, T], how many tokens are as probable as the label or more, the label
    itself among them, as vLLM counts: 1 is the most likely token; 0 where a label does not count.
    argmax: int64 [B, T], the most likely token given the same tokens before, the lowest id of
    equals; -100 where a label does not count.
    """

    token_logprobs: Tensor
    mask: Tensor
    rank: Tensor
    argmax: Tensor

    def as_tensors(self, device: str) -> Scores:
        """The same, on `device`, of scores that are arrays still."""
        return Scores(*(as_tensor(numbers).to(device) for numbers in vars(self).values()))

    @property
    def lengths(self) -> Tensor:
        """int64 [B], labels that count."""
        return self.mask.sum(1)

    @property
    def sums(self) -> Tensor:
        """float32 [B], each row's log-probability."""
        return self.token_logprobs.sum(1)

    @property
    def means(self) -> Tensor:
        """float32 [B], per label that counts; 0 where none does."""
        return self.sums / self.lengths.clip(1)

    @property
    def perplexity(self) -> float:
        """The perplexity of all rows together: exp of the negative mean over all labels that count;
        1 for none, infinite beyond a float's range."""
        return perplexity(math.fsum(self.sums.tolist()), int(self.lengths.sum()))

    def __repr__(self) -> str:
        sums = ", ".join(f"{each:.3f}" for each in self.sums[:SHOWN].tolist())
        more = ", ..." if len(self.mask) > SHOWN else ""
        said = f"{len(self.mask)} rows, {int(self.lengths.sum())} labels, sums=[{sums}{more}]"
        return f"Scores({said}, perplexity={self.perplexity:.4g})"

    def _repr_html_(self) -> str:
        """A row for each row of labels; a label's ground is the darker the more probable it is."""
        head = ["row", "sum", "mean", *(str(i) for i in range(self.mask.shape[1])[:COLUMNS])]
        rows = []
        for i in range(min(ROWS, len(self.mask))):
            logprobs, mask = (x[i, :COLUMNS].tolist() for x in (self.token_logprobs, self.mask))
            labels = [
                html.Shaded(f"{logprob:.2f}", math.exp(logprob)) if counts else ""
                for logprob, counts in zip(logprobs, mask, strict=True)
            ]
            rows.append([i, f"{float(self.sums[i]):.3f}", f"{float(self.means[i]):.3f}", *labels])
        return html.table(rows, head, title=repr(self))


def perplexity(logprob: float, tokens: int) -> float:
    """Of so many tokens with this sum of log-probabilities; infinite beyond a float's range."""
    try:
        return math.exp(-logprob / max(1, tokens))
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class Forced:
    """One row, as far as its last label that counts: shapes [n]."""

    ids: Array  # the decoder's input
    labels: Array  # the token after each
    columns: Array  # of the labels in the caller's table


def score(
    session: Session,
    checkpoint: Mapping[str, Any],
    input_ids: Any,
    labels: Any,
    attention_mask: Any,
) -> tuple[Scores, str]:
    """See Model.score. checkpoint: the model's generation_config.json.

    Returns the scores as arrays, and the device that their tensors are to be on.
    """
    given = {"input_ids": input_ids, "labels": labels, "attention_mask": attention_mask}
    device = common_device(session.device, **given)
    source, forced, shape = read(session.spec, checkpoint, input_ids, labels, attention_mask)
    logprobs, mask = np.zeros(shape, np.float32), np.zeros(shape, np.bool_)
    rank, argmax = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
    for request, places in requests(session, source, forced):
        found = session.score(request)
        for b, own in places:
            row = forced[b]
            logprobs[b, row.columns] = found.logprobs[own]
            mask[b, row.columns] = row.labels != IGNORED
            rank[b, row.columns] = found.ranks[own]
            argmax[b, row.columns] = found.argmax[own]
    arrays: Any = logprobs, mask, rank, argmax
    return Scores(*arrays), device


def attentions(
    session: Session, checkpoint: Mapping[str, Any], input_ids: Any, labels: Any
) -> list[Array]:
    """Of an encoder-decoder: of each row float32 [labels, source], how much the decoder attends to
    each token of the source before it says a label, the mean over the heads of the last layer.
    Arguments and errors are those of `score`."""
    source, forced, _ = read(session.spec, checkpoint, input_ids, labels, None)
    assert source is not None, "a decoder alone has no source"
    kept = [np.empty((0, length), np.float32) for length in source.lengths.tolist()]
    for request, places in requests(session, source, forced):
        found = session.attend(replace(request, keep_attentions=True))
        for b, own in places:
            kept[b] = found[own, : kept[b].shape[1]]
    return kept


def requests(
    session: Session, source: TokenBatch | None, forced: Sequence[Forced]
) -> Iterator[tuple[ScoreRequest, list[tuple[int, slice]]]]:
    """All rows in sub-batches, each with the numbers of its rows and where their tokens are."""
    tokens = np.array([max(1, len(row.ids)) for row in forced])
    order_by = tokens if source is None else np.maximum(tokens, source.lengths)
    most = None if session.limits is None else session.limits.batch
    for chosen in split(order_by, 1, most, session.device.type):
        rows = [forced[b] for b in chosen]
        ends = np.cumsum([len(row.ids) for row in rows]).tolist()
        if ends[-1]:
            places = map(slice, [0, *ends], ends)
            yield pack(source, rows, chosen), list(zip(chosen.tolist(), places, strict=True))


def pack(source: TokenBatch | None, rows: Sequence[Forced], chosen: Array) -> ScoreRequest:
    lengths = [len(row.ids) for row in rows]
    ids, labels = (
        np.concatenate([getattr(row, name) for row in rows]).astype(np.int32)
        for name in ("ids", "labels")
    )
    offsets = np.cumsum([0, *lengths]).astype(np.int32)
    if source is None:
        return ScoreRequest(None, None, ids, labels, offsets, max(lengths), chosen)
    first, sources = distinct(source.select(chosen))
    packed = source.select(chosen[first]).pack()
    return ScoreRequest(packed, sources, ids, labels, offsets, max(lengths), chosen)


def distinct(rows: TokenBatch) -> tuple[Array, Array]:
    """The first of equal rows, int64, ascending, and int32 [B], which of them each row equals: the
    hypotheses of a sentence share its source, which is encoded once."""
    masks = rows.ids[:, :0] if rows.mask is None else rows.mask
    keys = [ids.tobytes() + mask.tobytes() for ids, mask in zip(rows.ids, masks, strict=True)]
    first = {key: b for b, key in reversed(list(enumerate(keys)))}
    order = sorted(first.values())
    numbers = {keys[b]: number for number, b in enumerate(order)}
    return np.array(order), np.array([numbers[key] for key in keys], np.int32)


def read(
    spec: ModelSpec, checkpoint: Mapping[str, Any], input_ids: Any, labels: Any, attention_mask: Any
) -> tuple[TokenBatch | None, list[Forced], tuple[int, int]]:
    """The encoder's rows, where there is one, the decoder's, and the shape [B, T] of the labels."""
    given = source_batch(input_ids, attention_mask, (spec.encoder or spec.decoder).vocab)
    if labels is None and spec.encoder is not None:
        raise ValueError("an encoder-decoder needs labels: the tokens whose probability is asked")
    table = given.ids if labels is None else as_labels(labels, spec.decoder.vocab)
    if spec.encoder is None:
        if table.shape != given.ids.shape:
            raise ValueError(
                f"labels must have the shape of input_ids, {list(given.ids.shape)}; "
                f"got {list(table.shape)}"
            )
        check_windows(given, spec.decoder)
        forced = continued(given, table)
    else:
        if len(table) != len(given):
            raise ValueError(f"labels must have {len(given)} rows, as input_ids; got {len(table)}")
        check_positions("input_ids", given.used_width, spec.encoder.positions)
        forced = shifted(checkpoint, table, spec.decoder.vocab)
    longest = max(len(row.ids) for row in forced)
    check_positions("labels" if spec.encoder else "input_ids", longest, spec.decoder.positions)
    return (given if spec.encoder else None), forced, (len(table), table.shape[1])


def as_labels(labels: Any, vocab: int) -> Array:
    table, _ = as_table("labels", labels, fill=IGNORED, pad_left=False)
    check_ids("labels", table[table != IGNORED], vocab)
    return table


def check_positions(name: str, needed: int, positions: int) -> None:
    if needed > positions:
        raise ValueError(
            f"{name} has a row that needs {needed} positions, the model has {positions}: split or "
            "shorten it"
        )


def until_last(ids: Array, labels: Array, columns: Array) -> Forced:
    counting = (labels != IGNORED).nonzero()[0]
    end = int(counting[-1]) + 1 if len(counting) else 0
    return Forced(ids[:end], labels[:end], columns[:end])


def continued(given: TokenBatch, labels: Array) -> list[Forced]:
    """Decoder-only: every token that counts is read, and should be followed by the next one."""
    forced = []
    for b in range(len(given)):
        columns = np.arange(given.width) if given.mask is None else given.mask[b].nonzero()[0]
        read, said = columns[:-1], columns[1:]
        forced.append(until_last(given.ids[b, read], labels[b, said], said))
    return forced


def shifted(checkpoint: Mapping[str, Any], labels: Array, vocab: int) -> list[Forced]:
    """Encoder-decoder: the start token is read, then the labels but for the last."""
    config = resolve({}, None, {name: checkpoint.get(name) for name in NEEDED})
    start = decoder_batch(config, None, len(labels), vocab).ids
    ids = np.concatenate([start, labels[:, :-1]], 1)
    forced = [until_last(*row, np.arange(labels.shape[1])) for row in zip(ids, labels, strict=True)]
    pad = fill_id(config)
    for b, row in enumerate(forced):
        ignored = row.ids == IGNORED
        if pad is None and ignored.any():
            raise ValueError(f"labels of row {b}: -100 before a label needs a pad_token_id")
        row.ids[ignored] = pad
    return forced
