"""The selection of a step's tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.cases.kernel_case import Case, Place, Set
from benchmarks.cases.kernels_rows import SOFTMAX
from decoding import _kernels as kernels


def beam_selection(place: Place, batch: int, beams: int, vocab: int) -> Case:
    """From the logits to the next step's rows. torch does the first part of it alone: the best 2K
    candidates of each sentence."""
    sums = -torch.rand(batch * beams, device=place.device)

    def make() -> Set:
        logits = place.random(batch * beams, vocab)
        state = SelectState(place, batch, beams, vocab, sums)
        select(logits, state, upload=True)
        state.reset()
        return logits, state

    def select(logits: Tensor, state: SelectState, *, upload: bool) -> None:
        more = {"beams": beams, "m": 2 * beams, "upload": upload}
        kernels.select(logits, state.tensors, state.rules, "beam", **more)

    def ours(s: Set) -> Any:
        logits, state = s
        select(logits, state, upload=False)
        return state.tensors["sums"].view(batch, beams)

    def theirs(s: Set) -> Any:
        scores = torch.log_softmax(s[0], -1, dtype=torch.float32) + sums[:, None]
        return scores.view(batch, beams * vocab).topk(2 * beams, -1).values[:, :beams]

    return Case(
        "select",
        f"beam {batch}x{beams} V{vocab}",
        batch * beams * vocab * place.dtype.itemsize,
        make,
        {"ours": ours, "torch": theirs},
        operations=SOFTMAX * batch * beams * vocab,
        comparable={"ours": torch.clone},  # its sums are undone by the next reset
        reset=lambda s: s[1].reset(),
    )


class SelectState:
    """What a search keeps: the fields of SelectParams (csrc/kernels/search/select.h)."""

    TARGET = 512  # steps that it has room for

    def __init__(self, place: Place, batch: int, beams: int, vocab: int, sums: Tensor) -> None:
        rows, groups = batch * beams, -(-vocab // 128)
        ints = {
            **{"prompt_lengths": batch, "stop_now": batch, "finished_count": batch},
            **{"done": batch, "fault": batch, "length": rows, "ids": rows, "positions": rows},
            **{"random_row": rows, "state": 2, "host_state": 2},
            "arrivals": batch * (beams + 1) + 1,
        }
        self.tensors = {name: place.ints([0] * size) for name, size in ints.items()}
        zeros = self.tensors["state"].new_zeros
        self.tensors |= {
            "tokens": zeros(self.TARGET, rows),
            "parents": zeros(self.TARGET, rows),
            "cache_indirection": zeros(2, rows, self.TARGET),
            "finished": zeros(batch, beams, 5),
            "best": zeros(rows, 2 * beams, 2),
            "config": zeros(65536 + 512 * batch, dtype=torch.uint8),
            "lse": zeros(rows, dtype=torch.float32),
            "sums": sums.clone(),
            **{name: torch.zeros(rows, groups, device=place.device)
               for name in ("group_max", "group_sum")},
        }  # fmt: skip
        self.rules = {
            **{"min_new": 0, "pad": 0, "renormalize": False, "length_penalty": 1.0},
            **{"early_stopping": kernels.EarlyStopping.no, "eos": [], "banned": []},
            **{"forced_last": [], "seeds": [0] * batch, "max_news": [self.TARGET] * batch},
            **{"random_firsts": [beams * b for b in range(batch)], "top_ks": [0] * batch},
            **{"forced_firsts": [-1] * batch, "temperatures": [1.0] * batch},
            **{"top_ps": [1.0] * batch},
        }
        self.begin = place.ints([2, batch])  # number, active_count
        self.sentences, self.sums = place.active(batch, 2, 1), sums
        self.tensors["active"] = self.sentences.clone()
        self.reset()

    def reset(self) -> None:
        self.tensors["state"].copy_(self.begin)
        self.tensors["active"].copy_(self.sentences)
        self.tensors["sums"].copy_(self.sums)
