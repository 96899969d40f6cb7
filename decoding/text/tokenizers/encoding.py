"""Rows of token ids, cut and filled up to the lengths that a caller asks for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decoding.common.arrays import is_tensor
from decoding.text.tokenizers.settings import UNLIMITED, TokenizerSettings

if TYPE_CHECKING:
    import torch

PADDINGS = ("do_not_pad", "longest", "max_length")
TRUNCATIONS = ("do_not_truncate", "longest_first", "only_first", "only_second")


class BatchEncoding(dict[str, Any]):
    """What a tokenizer returns when it is called: input_ids, attention_mask and, where the model
    reads them, token_type_ids.

    Its keys are attributes, too: `encoding.input_ids`.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this encoding has no {name}, only {', '.join(self)}") from None

    def to(self, device: str | torch.device) -> BatchEncoding:
        """Moves the tensors to a device; returns itself."""
        for name, value in self.items():
            if is_tensor(value):
                self[name] = value.to(device)
        return self


Span = tuple[int, int]  # the characters of a text from the first up to the second


class Row(NamedTuple):
    """A text's ids, special tokens included, and of each token which text of a pair it is of, and,
    where they are wanted, the characters that it stands for."""

    ids: list[int]
    types: list[int]
    offsets: list[Span] | None = None


@dataclass(frozen=True)
class Truncation:
    """The most tokens of a row, and where those beyond are cut.

    strategy: one of TRUNCATIONS; side: "left" or "right", the end that is cut. stride: None, or
    what is cut off becomes further rows, which begin with so many tokens of the row before.
    """

    length: int
    strategy: str
    side: str
    stride: int | None = None

    def lengths(self, first: int, second: int | None, special: int) -> tuple[int, int]:
        """The tokens that remain of each text. special: tokens that come around them.

        Raises ValueError where the text that may be cut is too short for it.
        """
        room = self.length - special
        total = first + (second or 0)
        if total <= room:
            return first, second or 0
        if room < 0:
            raise ValueError(
                f"max_length={self.length} has no room for {special} special tokens: raise it"
            )
        if self.strategy == "longest_first":
            return (room, 0) if second is None else shared(first, second, room)
        cut_first = self.strategy == "only_first"
        if not cut_first and second is None:
            raise ValueError("truncation='only_second' needs a text_pair")
        kept = (first if cut_first else second or 0) - (total - room)
        if kept <= 0:
            raise ValueError(
                f"truncation={self.strategy!r} cannot bring {total + special} tokens down to "
                f"max_length={self.length}: that text is too short"
            )
        return (kept, second or 0) if cut_first else (first, kept)

    def cut(self, ids: list[int], length: int) -> list[int]:
        return ids[:length] if self.side == "right" else ids[len(ids) - length :]


def shared(first: int, second: int, room: int) -> tuple[int, int]:
    """The longer text is cut to the length of the shorter, then both to half of the room; of an odd
    number the text that was longer keeps one more, the second where they were equal."""
    shorter = min(first, second)
    longer = max(shorter, room - shorter)
    if shorter + longer > room:
        shorter, longer = room // 2, room - room // 2
    return (longer, shorter) if first > second else (shorter, longer)


@dataclass(frozen=True)
class Shape:
    """How long the rows of one call shall be.

    padding: one of PADDINGS; length: for "max_length". multiple: rows are filled up to one of it.
    columns: what is wanted beside input_ids. overflow: whether what is cut off becomes rows, too.
    """

    truncation: Truncation | None
    padding: str
    length: int
    multiple: int
    side: str
    columns: Sequence[str]
    overflow: bool

    def width(self, rows: Sequence[Row]) -> int:
        width = max((len(row.ids) for row in rows), default=0)
        if self.padding == "max_length":
            width = self.length
        return -(-width // self.multiple) * self.multiple


def read_shape(
    settings: TokenizerSettings,
    *,
    padding: bool | str,
    truncation: bool | str | None,
    max_length: int | None,
    pad_to_multiple_of: int | None,
    padding_side: str | None,
    stride: int | None,
    columns: Sequence[str],
) -> Shape:
    """The arguments of a tokenizer's call, checked: as transformers reads them. stride: see
    Truncation; columns: see Shape.

    Raises ValueError for values that there are not.
    """
    if max_length is not None and padding is False and truncation is None:
        truncation = True
    pads, cuts = strategy(padding, PADDINGS), strategy(truncation, TRUNCATIONS)
    for name, value, known in (("padding", pads, PADDINGS), ("truncation", cuts, TRUNCATIONS)):
        if value not in known:
            raise ValueError(f"{name} must be a bool or one of {', '.join(known)}, got {value!r}")
    if max_length is not None and max_length < 1:
        raise ValueError(f"max_length must be at least 1, got {max_length}")
    if max_length is not None and pads == "longest" and cuts == "do_not_truncate":
        warnings.warn(
            "max_length has no effect without truncation; padding='max_length' pads to it",
            stacklevel=4,
        )
    most = settings.model_max_length if max_length is None else max_length
    if most >= UNLIMITED and (pads == "max_length" or cuts != "do_not_truncate"):
        raise ValueError("the tokenizer's files name no maximum length: pass max_length")
    side = settings.padding_side if padding_side is None else padding_side
    if side not in ("left", "right"):
        raise ValueError(f"padding_side must be 'left' or 'right', got {side!r}")
    if pads != "do_not_pad" and "pad_token" not in settings.special_tokens:
        raise ValueError(
            "the tokenizer has no pad_token: set one (tokenizer.pad_token = tokenizer.eos_token), "
            "or pass texts of different lengths without padding"
        )
    if stride is not None and stride < 0:
        raise ValueError(f"stride must be at least 0, got {stride}")
    multiple = 1 if pads == "do_not_pad" else pad_to_multiple_of or 1
    cut = None
    if cuts != "do_not_truncate":
        if most % multiple:
            raise ValueError(
                f"max_length={most} must be a multiple of pad_to_multiple_of={multiple}"
            )
        cut = Truncation(most, cuts, settings.truncation_side, stride)
    return Shape(cut, pads, most, multiple, side, columns, stride is not None)


def strategy(asked: bool | str | None, known: Sequence[str]) -> str:
    """The strategy that a bool means, the first or the second of all there are, or a given one."""
    return known[bool(asked)] if asked is None or isinstance(asked, bool) else asked


def batch(rows: Sequence[Row], shape: Shape, pad: int) -> dict[str, list[list[Any]]]:
    """The columns of a BatchEncoding. pad: the id that fills rows up."""
    found: dict[str, list[list[Any]]] = {name: [] for name in ("input_ids", *shape.columns)}
    width = shape.width(rows)
    for row in rows:
        missing = 0 if shape.padding == "do_not_pad" else max(0, width - len(row.ids))
        columns: list[tuple[str, list[Any], Any]] = [
            ("input_ids", row.ids, pad),
            ("token_type_ids", row.types, 0),
            ("attention_mask", [1] * len(row.ids), 0),
            ("offset_mapping", row.offsets or [], (0, 0)),
        ]
        for name, values, fill in columns:
            if name in found:
                filled = [fill] * missing
                found[name].append(filled + values if shape.side == "left" else values + filled)
    return found


def as_tensors(columns: Mapping[str, list[Any]], kind: str) -> dict[str, Any]:
    """int64 of each column: [B, W], of offsets [B, W, 2]. Raises ValueError for rows of different
    lengths."""
    if kind not in ("pt", "np"):
        raise ValueError(f"return_tensors must be 'pt' or 'np', got {kind!r}")
    if len({len(row) for row in columns["input_ids"]}) > 1:
        raise ValueError("the texts have different numbers of tokens: pass padding=True")
    arrays = {name: np.array(rows, np.int64) for name, rows in columns.items()}
    if kind == "np":
        return dict(arrays)
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays.items()}
