"""Engines that take and return tensors, by the names of transformers' generate()."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from decoding.compare.engines.base import Answer, Engine
from decoding.compare.task import Ids, Search, Task

if TYPE_CHECKING:
    from torch import Tensor


class TensorEngine(Engine):
    """An engine whose generate() has the arguments and results of transformers'."""

    task: Task
    model: Any
    device: str
    options: ClassVar[dict[str, Any]] = {}

    def prepare(self, ids: Ids, search: Search) -> None:
        left = not self.task.has_encoder
        self.ids, self.mask = (
            rows.to(self.device) for rows in padded(ids, self.task.pad, left=left)
        )
        self.given = self.ids.shape[1] if left else 1  # of a row, besides the new tokens
        self.scored = search.scores and search.beams > 1
        self.call: dict[str, Any] = {
            "num_beams": search.beams,
            "do_sample": search.sample is not None,
            "min_new_tokens": search.least,
            "max_new_tokens": search.most,
            **self.task.options,
            **self.options,
        }
        if search.sample:
            self.call |= dict(zip(("top_k", "top_p"), search.sample, strict=True))
        if self.scored:
            self.call |= {"return_dict_in_generate": True, "output_scores": True}

    def generate(self) -> Answer:
        found = self.model.generate(self.ids, attention_mask=self.mask, **self.call)
        rows = found.sequences if self.scored else found
        scores = found.sequences_scores.tolist() if self.scored else []
        return Answer(rows[:, self.given :].tolist(), scores)


def padded(rows: Ids, pad: int, *, left: bool) -> tuple[Tensor, Tensor]:
    """Ids and mask, int64 [B, W]. left: pad before the tokens."""
    import torch

    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pad)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(len(row))
        ids[i, place] = torch.tensor(row)
        mask[i, place] = 1
    return ids, mask
