"""One call's answer in 30 characters: a hash of its tokens, one of its scores, their mean size."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

import decoding
from tests.golden.cases import ROWS, Case
from tests.golden.models import token_rows

WIDTHS = [9, 8, 7, 6, 5]
LEAST = -1e8  # scores below stand for "impossible", and are not part of a mean
DIGITS = 8  # of a hash


def answer(model: decoding.Model, case: Case) -> str:
    """Tokens' hash, scores' hash and the scores' mean size; "-" where a call has no such thing."""
    rows = token_rows(WIDTHS, "input")
    if case.method == "memory_plan":
        return f"{plan_hash(model.memory_plan())} - -"
    if case.method == "encode":
        encoded = model.encode(rows)
        return line([], [encoded.last_hidden_state], also=encoded.pooler_output)
    if case.method == "score":
        labels = None if is_decoder_only(model) else token_rows(WIDTHS[::-1], "labels")
        scored = model.score(rows, labels)
        return line([scored.mask], [scored.token_logprobs])
    if case.method == "stream":
        pieces = list(model.stream(rows, max_new_tokens=10, **one_result(case.options)))
        return f"{digest([repr(pieces).encode()])} - -"
    options: dict[str, Any] = {"input_ids": rows, "max_new_tokens": 10, "output_scores": True}
    if "min_length" in case.options:
        options |= {"max_new_tokens": None, "max_length": 20}
    found = model.generate(**(options | case.options), return_dict_in_generate=True)
    tokens = [found.sequences, found.lengths, getattr(found, "beam_indices", None)]
    return line(tokens, list(scores_of(found)), also=found.token_logprobs)


def is_decoder_only(model: decoding.Model) -> bool:
    return model.spec.encoder is None


def one_result(options: dict[str, Any]) -> dict[str, Any]:
    return options | {"num_return_sequences": 1}


def scores_of(found: Any) -> Iterator[Tensor]:
    """What is defined: of every step the rows that the results went along."""
    if getattr(found, "sequences_scores", None) is not None:
        yield found.sequences_scores
    for steps in (found.scores, found.logits):
        # A beam search may go on behind the end of what it returns.
        for step, values in enumerate((steps or ())[: int(found.lengths.max())]):
            rows = (found.lengths > step).nonzero()[:, 0]
            if getattr(found, "beam_indices", None) is not None:
                rows = found.beam_indices[rows, step].long()
            yield values[rows]
    if getattr(found, "hypothesis_attentions", None) is not None:
        yield found.hypothesis_attentions


def line(tokens: list[Tensor | None], scores: list[Tensor], also: Tensor | None = None) -> str:
    """also: numbers that torch computed from scores, whose last bits are not ours."""
    words = digest(bits(t) for t in tokens if t is not None) if tokens else "-"
    known = [*scores, also] if also is not None else scores
    return f"{words} {digest(bits(t) for t in scores)} {mean_size(known)}" if scores else words


def bits(values: Tensor) -> bytes:
    """With the type and the shape; equal integers of all types have equal bits."""
    values = values.detach().cpu().contiguous()
    kind = str(values.dtype)
    if not values.is_floating_point():
        values, kind = values.long(), "integers"
    head = f"{kind} {list(values.shape)}".encode()
    return head + values.view(torch.uint8).numpy().tobytes()


def digest(parts: Any) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()[:DIGITS]


def mean_size(tensors: list[Tensor]) -> str:
    """Mean of the magnitudes, in four digits, by which a reader judges how far off scores are."""
    every = np.concatenate([t.detach().cpu().double().numpy().ravel() for t in tensors])
    usual = every[np.isfinite(every) & (every > LEAST)]
    return f"{np.abs(usual).mean():.4g}"


def plan_hash(plan: Any) -> str:
    """Of the plan's size and its buffers' sizes; names may change."""
    sizes = sorted(buffer.bytes for buffer in plan.buffers)
    return digest([repr((plan.bytes, sizes)).encode()])


assert len(WIDTHS) == ROWS
