"""Contrastive search against the reference, which equals that of transformers 4."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from decoding.reference import Rules, Tokens, contrastive_search
from tests.support.random_models import ours, reference

NEW = 8


def by_reference(name: str, ids: Tensor, k: int, alpha: float) -> Tokens:
    """ids: int64 [n], of one sentence."""
    model = reference(name)

    @torch.no_grad()
    def states(tokens: Tokens) -> tuple[Tensor, Tensor]:
        if name == "gpt2":
            row = torch.tensor([[*ids.tolist(), *tokens]])
            found = model(row, output_hidden_states=True)
            return found.logits[0, -1], found.hidden_states[-1][0]
        row = torch.tensor([[model.config.decoder_start_token_id, *tokens]])
        found = model(input_ids=ids[None], decoder_input_ids=row, output_hidden_states=True)
        return found.logits[0, -1], found.decoder_hidden_states[-1][0]

    eos = model.generation_config.eos_token_id
    rules = Rules(max_new=NEW, eos=tuple(eos) if isinstance(eos, list) else (eos,))
    return contrastive_search(states, rules, k=k, alpha=alpha)


@pytest.mark.parametrize("name", ["gpt2", "marian"])
@pytest.mark.parametrize(("k", "alpha"), [(2, 0.5), (4, 0.6), (5, 0.9), (3, 1.0)])
def test_equals_the_reference(name: str, k: int, alpha: float, device: str) -> None:
    ids = torch.randint(12, 50, (3, 5), generator=torch.Generator().manual_seed(k))
    call: dict[str, Any] = {"penalty_alpha": alpha, "top_k": k, "max_new_tokens": NEW}
    found = ours(name, device).generate(ids, **call)
    start = 5 if name == "gpt2" else 1
    for row, got in zip(ids, found.tolist(), strict=True):
        want = by_reference(name, row, k, alpha)
        assert tuple(got[start : start + len(want)]) == want


@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_a_row_alone_and_among_others(name: str, device: str) -> None:
    """Prompts of several lengths, for an encoder-decoder of several tokens."""
    ids = torch.randint(12, 50, (4, 6), generator=torch.Generator().manual_seed(1))
    call: dict[str, Any] = {"penalty_alpha": 0.6, "top_k": 3, "max_new_tokens": NEW}
    together: dict[str, Any]
    rows: list[dict[str, Any]]
    if name == "gpt2":
        rows = [{"input_ids": row[i:][None]} for i, row in enumerate(ids)]
        together = {"input_ids": [row[i:].tolist() for i, row in enumerate(ids)]}
        width = 6
    else:
        prompt = torch.tensor([[20, 30 + i] for i in range(4)])
        together = {"input_ids": ids, "decoder_input_ids": prompt}
        rows = [{key: value[i : i + 1] for key, value in together.items()} for i in range(4)]
        width = 3
    found = ours(name, device).generate(**together, **call)[:, width:]
    for i, row in enumerate(rows):
        alone = ours(name, device).generate(**row, **call)
        alone = alone[0, width - i if name == "gpt2" else width :]
        assert torch.equal(found[i, : len(alone)], alone)


def test_processors_and_end_tokens(device: str) -> None:
    ids = torch.randint(12, 50, (2, 5), generator=torch.Generator().manual_seed(2))
    call: dict[str, Any] = {"penalty_alpha": 0.6, "top_k": 4, "max_new_tokens": NEW}
    plain = ours("gpt2", device).generate(ids, **call)
    first = int(plain[0, 5])
    banned = ours("gpt2", device).generate(ids, suppress_tokens=[first], **call)
    assert first not in banned[0, 5:].tolist()
    eos = int(plain[0, 7])
    ended = ours("gpt2", device).generate(ids[:1], eos_token_id=eos, **call)
    assert ended[0, 5:].tolist() == plain[0, 5 : 6 + plain[0, 5:].tolist().index(eos)].tolist()


def test_criteria_are_refused(device: str) -> None:
    with pytest.raises(ValueError, match="stopping_criteria"):
        ours("gpt2", device).generate(
            [[12, 13]], penalty_alpha=0.6, top_k=4, stopping_criteria=[lambda ids, scores: False]
        )
