"""Token ids are checked, packed without masked tokens, and split into sub-batches.

It is done in NumPy: a GPU waits for it, and on arrays this small an operation of torch's takes
several times as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from decoding.common.arrays import Array, is_tensor
from decoding.common.device import Device
from decoding.engine.request import PackedTokens
from decoding.models.spec import StackSpec

# Rows that a sub-batch has at most: enough for the matrix products to run at full speed, few enough
# that sentences of about one length stay together and that memory is bounded.
ROWS = {"cpu": 128, "cuda": 512}
# Source or prompt tokens that it has at most (sentences times the longest of them): this bounds the
# memory of the packed pass.
TOKENS = 16384


@dataclass(frozen=True)
class TokenBatch:
    """A call's token ids as given, and which of them count."""

    ids: Array  # int64 [B, W]
    mask: Array | None  # bool [B, W]; None: all count, which most calls have, so it is fast

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        return int(self.ids.shape[1])

    @cached_property
    def lengths(self) -> Array:
        """int64 [B], tokens that count."""
        return np.full(len(self), self.width) if self.mask is None else self.mask.sum(1)

    @property
    def longest(self) -> int:
        """Tokens that count, of the sentence that has most."""
        return self.width if self.mask is None else int(self.lengths.max())

    @cached_property
    def first_columns(self) -> Array:
        """int64 [B], of the first token that counts in each row."""
        return np.zeros(len(self), np.int64) if self.mask is None else self.mask.argmax(1)

    @property
    def used_width(self) -> int:
        """Columns up to the last one in which a token counts."""
        return self.width if self.mask is None else int(self.mask.nonzero()[1].max()) + 1

    def select(self, chosen: Array) -> TokenBatch:
        """The sentences `chosen`, int64 [n], in that order."""
        return TokenBatch(self.ids[chosen], None if self.mask is None else self.mask[chosen])

    def pack(self) -> PackedTokens:
        ids = self.ids.astype(np.int32)
        positions = np.arange(self.width, dtype=np.int32)[None].repeat(len(ids), 0)
        if self.mask is None:
            offsets = np.arange(0, ids.size + 1, self.width, dtype=np.int32)
            return PackedTokens(ids.reshape(-1), offsets, positions.reshape(-1), self.width)
        offsets = np.zeros(len(ids) + 1, np.int32)
        np.cumsum(self.lengths, out=offsets[1:])
        return PackedTokens(ids[self.mask], offsets, positions[self.mask], self.longest)


def common_device(model: Device, **given: Any) -> str:
    """Where results go: to the device of the tensors among `given`, the CPU where there are none.

    Raises ValueError for tensors of several devices, or of another GPU than the model's.
    """
    devices = {name: str(value.device) for name, value in given.items() if is_tensor(value)}
    if len(set(devices.values())) > 1:
        listed = ", ".join(f"{name} is on {device}" for name, device in devices.items())
        raise ValueError(f"the inputs must be on one device, but {listed}")
    for name, device in devices.items():
        if device not in ("cpu", str(model)):
            raise ValueError(f"{name} is on {device}, but the model on {model}: move one of them")
        return device
    return "cpu"


def source_batch(ids: Any, mask: Any, vocab: int) -> TokenBatch:
    """Encoder input. Without a mask every token counts, padding too, as in Hugging Face.

    ids: integers [B, W], a tensor or array, or lists of any lengths. mask: the same shape, 1 where
    the token counts. Raises ValueError for anything else.
    """
    table, given = as_table("input_ids", ids, fill=0, pad_left=False)
    batch = TokenBatch(table, both(given, as_mask(mask, table, pad_left=False)))
    check_batch("input_ids", batch, vocab)
    return batch


def prompt_batch(
    ids: Any, mask: Any, vocab: int, *, pad: int | None, eos: Sequence[int], name: str = "input_ids"
) -> TokenBatch:
    """Decoder input, padded on the left. Shapes and errors as in `source_batch`.

    Without a mask, `pad` does not count if it occurs and is no EOS, as in Hugging Face.
    """
    ragged = isinstance(ids, (list, tuple)) and len({size(row) for row in ids}) > 1
    if ragged and pad is None:
        raise ValueError(f"{name}: rows of different lengths need a pad_token_id or eos_token_id")
    table, given = as_table(name, ids, fill=0 if pad is None else pad, pad_left=True)
    if mask is None and pad is not None and pad not in eos:
        given = both(given, unless_all(table != pad))
    batch = TokenBatch(table, both(given, as_mask(mask, table, pad_left=True)))
    check_batch(name, batch, vocab)
    if batch.mask is None:
        return batch
    ends_in_padding = ~batch.mask[:, -1]
    if ends_in_padding.any():
        raise ValueError(
            f"{name}: row {ends_in_padding.argmax()} ends with padding, and generation goes on "
            "behind its last token; pad on the left"
        )
    return batch


def size(row: Any) -> int:
    return len(row) if hasattr(row, "__len__") else -1


def unless_all(mask: Array) -> Array | None:
    """None where all is True."""
    return None if bool(mask.all()) else mask


def both(a: Array | None, b: Array | None) -> Array | None:
    """a & b, None being all True."""
    return b if a is None else a if b is None else a & b


def check_windows(batch: TokenBatch, decoder: StackSpec) -> None:
    """Raises ValueError for a prompt with masked tokens between others where the decoder sees no
    more than some of the last tokens: transformers counts masked ones, and here they are gone."""
    if batch.mask is None or not any(decoder.window):
        return
    ends = batch.width - batch.mask[:, ::-1].argmax(1)
    holed = ends - batch.first_columns > batch.lengths
    if holed.any():
        raise ValueError(
            f"input_ids: row {holed.argmax()} has masked tokens between others, which this model's "
            "sliding windows would count: mask ends alone. Without an attention_mask pad_token_id "
            "is masked: where it is a token of the text, pass a mask of ones"
        )


def as_table(name: str, value: Any, *, fill: int, pad_left: bool) -> tuple[Array, Array | None]:
    """A copy, int64 [B, W], and bool [B, W], False where a row of a ragged list is filled up; None
    where none is."""
    if isinstance(value, Mapping):
        raise TypeError(
            f"{name} must be integers, got a mapping, such as a tokenizer returns: pass its "
            "entries, as in generate(**batch)"
        )
    if isinstance(value, (list, tuple)) and all(size(row) >= 0 for row in value):
        if not value or any(size(row) == 0 for row in value):
            raise ValueError(f"{name} must have at least one row, and no row may be empty")
        return as_padded(name, [as_integers(name, row) for row in value], fill, pad_left)
    table = as_integers(name, value).copy()  # a caller may change theirs while it is needed
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(
            f"{name} must have two dimensions, [batch, tokens], neither of them 0; "
            f"got shape {list(table.shape)}"
        )
    return table, None


def as_array(value: Any) -> Array:
    if is_tensor(value):
        # NumPy has no such type.
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        value = value.numpy(force=True)
    return np.asarray(value)


def as_integers(name: str, value: Any) -> Array:
    try:
        array = as_array(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be integers, [batch, tokens]: {error}") from error
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, got {array.dtype}")
    return array.astype(np.int64, copy=False)


def as_padded(
    name: str, rows: list[Array], fill: int, pad_left: bool
) -> tuple[Array, Array | None]:
    if any(row.ndim != 1 for row in rows):
        raise ValueError(f"{name} must have two dimensions, [batch, tokens]")
    width = max(len(row) for row in rows)
    table = np.full((len(rows), width), fill, np.int64)
    given = np.zeros((len(rows), width), np.bool_)
    for i, row in enumerate(rows):
        columns = slice(width - len(row), width) if pad_left else slice(0, len(row))
        table[i, columns] = row
        given[i, columns] = True
    return table, unless_all(given)


def as_mask(mask: Any, table: Array, *, pad_left: bool) -> Array | None:
    """bool [B, W]; None where all is True."""
    if mask is None:
        return None
    if isinstance(mask, (list, tuple)):
        mask = [[int(counts) for counts in row] for row in mask]
        mask = as_table("attention_mask", mask, fill=0, pad_left=pad_left)[0]
    given = as_array(mask)
    if given.shape != table.shape:
        raise ValueError(
            f"attention_mask must have the shape of the ids, {list(table.shape)}; "
            f"got {list(given.shape)}"
        )
    counts: Array = given == 1
    if given.dtype != np.bool_ and not (counts | (given == 0)).all():
        raise ValueError("attention_mask must hold 1 for tokens that count and 0 for the others")
    return unless_all(counts)


def check_batch(name: str, batch: TokenBatch, vocab: int) -> None:
    """Raises ValueError for a row without tokens, and for ids that the model has no token for."""
    if batch.mask is None:
        return check_ids(name, batch.ids, vocab)
    empty = batch.lengths == 0
    if empty.any():
        raise ValueError(f"{name}: every token of row {empty.argmax()} is masked")
    check_ids(name, batch.ids[batch.mask], vocab)


def check_ids(name: str, ids: Array | Sequence[int], vocab: int) -> None:
    """Raises ValueError for an id that the model has no token for."""
    if len(ids) == 0:
        return
    for id in (ids.min(), ids.max()) if isinstance(ids, np.ndarray) else (min(ids), max(ids)):
        if not 0 <= id < vocab:
            raise ValueError(f"{name} holds {id}, the model's ids are 0 to {vocab - 1}")


def split(lengths: Array, rows: int, batch: int | None, device: str) -> list[Array]:
    """Sub-batches of a call, int64 indices of its sentences: longest first, or one as it is.

    lengths: int64 [B], tokens of each sentence. rows: of each sentence while it runs. batch:
    sentences that explicit limits allow at once; None: ROWS and TOKENS decide. device: its type.
    """

    def most(longest: int) -> int:
        return batch or max(1, min(ROWS[device] // rows, TOKENS // longest))

    if len(lengths) <= most(int(lengths.max())):
        return [np.arange(len(lengths))]
    order = (-lengths).argsort(kind="stable")
    chosen = []
    while len(order):
        size = most(int(lengths[order[0]]))
        chosen.append(order[:size])
        order = order[size:]
    return chosen
