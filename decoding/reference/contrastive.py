"""Contrastive search."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from decoding.reference.rules import Rules, Tokens

# From the tokens generated so far to the logits of the next one, float32 [V], and the last hidden
# state of every token that the model has read, the prompt's too, float32 [n, H].
States = Callable[[Tokens], tuple[Tensor, Tensor]]


def contrastive_search(model: States, rules: Rules, *, k: int, alpha: float) -> Tokens:
    """Selects among the k most probable tokens v (Su et al. 2022) the argmax of (1 - alpha) p(v) -
    alpha max_j cos(h(v), h_j) over the hidden states h_j before v; the most probable one among
    equals."""
    tokens: Tokens = ()
    for step in range(1, rules.max_new + 1):
        logits, context = model(tokens)
        probabilities = rules.apply(logits, step).softmax(-1)
        found, ids = probabilities.sort(descending=True, stable=True)
        scores = []
        for probability, id in zip(found[:k].tolist(), ids[:k].tolist(), strict=True):
            state = model((*tokens, id))[1][-1]
            similarity = torch.cosine_similarity(context, state[None], dim=1).max()
            scores.append((1 - alpha) * probability - alpha * float(similarity))
        tokens += (int(ids[max(range(len(scores)), key=scores.__getitem__)]),)
        if tokens[-1] in rules.eos:
            break
    return tokens
