"""Calls of generate() whose answers are compared bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.support.random_models import MARIAN, ours


def ragged(name: str, batch: int, width: int = 7, seed: int = 0) -> dict[str, Any]:
    """Rows of all lengths, padded on the family's side."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(12, 40, (batch, width), generator=generator)
    tokens = torch.randint(1, width + 1, (batch, 1), generator=generator)
    columns = torch.arange(width)
    mask = columns < tokens if name in MARIAN else columns >= width - tokens
    return {"input_ids": ids, "attention_mask": mask.long()}


def run(name: str, inputs: dict[str, Tensor], device: str = "cpu", **options: Any) -> Any:
    options = {"max_new_tokens": 12, "return_dict_in_generate": True} | options
    return ours(name, device).generate(**inputs, output_scores=True, **options)


FILL = 5


def item_of(found: Any, item: int, copies: int) -> list[Any]:
    """One item's rows and scores, to compare bit for bit, without the fill behind the rows: there
    is as much of it as the longest row of the batch needs."""
    place = slice(item * copies, (item + 1) * copies)
    scores = getattr(found, "sequences_scores", None)
    return [
        [stripped(row) for row in found.sequences[place].tolist()],
        None if scores is None else scores[place].tolist(),
    ]


def same(a: Any, b: Any, device: str) -> bool:
    """To the bit on the CPU. On a GPU the order of a sum may depend on the number of rows."""
    slack = 0.0 if device == "cpu" else 1e-5
    return torch.allclose(a, b, rtol=slack, atol=slack)


def same_items(a: list[Any], b: list[Any], device: str) -> bool:
    """Lists of item_of()."""
    return all(
        rows == other_rows
        and (scores is None or same(torch.tensor(scores), torch.tensor(other_scores), device))
        for (rows, scores), (other_rows, other_scores) in zip(a, b, strict=True)
    )


def stripped(row: list[int]) -> list[int]:
    while row and row[-1] == FILL:
        row = row[:-1]
    return row
