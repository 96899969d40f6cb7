"""guidance_scale: the unconditional pass runs in the engine's step, beside the sentences' own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from decoding import reference
from tests.support import random_models
from tests.support.random_models import ours


def prompts(seed: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(12, 50, (3, 6), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    return ids, mask


@pytest.mark.parametrize("scale", [0.5, 1.5, 3.0])
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2}])
def test_greedy_equals_transformers(scale: float, options: dict[str, Any], device: str) -> None:
    for seed in range(4):
        ids, mask = prompts(seed)
        call = {"attention_mask": mask, "max_new_tokens": 9, "guidance_scale": scale, **options}
        with torch.no_grad():
            theirs = random_models.reference("gpt2").generate(ids, **call)
        assert torch.equal(ours("gpt2", device).generate(ids, **call), theirs)


def test_beams_equal_the_reference(device: str) -> None:
    """Hugging Face does not reorder the unconditional pass with the beams, so it is no oracle."""
    ids, _ = prompts(0)
    model = random_models.reference("gpt2")

    def logits(prompt: list[int], tokens: tuple[int, ...]) -> Tensor:
        with torch.no_grad():
            return model(torch.tensor([[*prompt, *tokens]])).logits[0, -1].log_softmax(-1)

    for row in ids.tolist():

        def guided(tokens: tuple[int, ...], row: list[int] = row) -> Tensor:
            with_all, with_last = logits(row, tokens), logits(row[-1:], tokens)
            return 2.0 * (with_all - with_last) + with_last

        found = ours("gpt2", device).generate(
            [row], num_beams=3, guidance_scale=2.0, max_new_tokens=6, eos_token_id=None
        )
        best = beam_search_of_scores(guided, beams=3, steps=6)
        assert found[0, len(row) :].tolist() == list(best)


def beam_search_of_scores(scores: reference.Logits, beams: int, steps: int) -> tuple[int, ...]:
    """Plain beam search, by scores that are no log-probabilities and are taken as they are."""
    alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for _ in range(steps):
        grown = [
            (total + float(x), (*tokens, id))
            for total, tokens in alive
            for id, x in enumerate(scores(tokens).tolist())
        ]
        alive = sorted(grown, reverse=True)[:beams]
    return alive[0][1]


def test_an_encoder_decoder_has_no_guidance(device: str) -> None:
    with pytest.raises(ValueError, match="decoder-only"):
        ours("marian", device).generate([[12, 13]], guidance_scale=2.0)
