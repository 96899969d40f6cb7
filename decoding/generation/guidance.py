"""Guidance: each sentence is followed by a shadow, the same text behind a shorter prompt."""

from __future__ import annotations

from dataclasses import replace

import torch

from decoding.engine.session import Work
from decoding.generation.batching import Packed


def with_shadows(work: Work) -> Work:
    """The same call with a shadow for each sentence, whose prompt is its prompt's last token, as in
    Hugging Face. Raises ValueError for an encoder-decoder."""
    if work.source is not None:
        raise ValueError(
            "guidance_scale is for decoder-only models: an encoder-decoder has no shorter prompt"
        )
    prompt = work.prompt
    last, count = prompt.offsets[1:] - 1, len(prompt)
    offsets = prompt.offsets[-1] + torch.arange(1, count + 1, dtype=torch.int32)
    return replace(
        work,
        prompt=Packed(
            torch.cat([prompt.ids, prompt.ids[last.long()]]),
            torch.cat([prompt.offsets, offsets]),
            torch.cat([prompt.at, torch.zeros(count, dtype=torch.int32)]),
            prompt.longest,
        ),
        items=work.items.repeat(2),
        sentences=work.sentences.repeat(2),
        shadows=count,
    )
