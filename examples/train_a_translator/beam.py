"""A plain beam search without a key-value cache, for choosing checkpoints during training."""

from __future__ import annotations

import numpy as np
import sentencepiece
import torch
from torch import Tensor

from decoding.models.torch.transformer import Transformer
from examples.train_a_translator.corpus import EOS, DevicePacked, Packed

CHUNK = 512  # sentences at once


@torch.inference_mode()
def search(
    model: Transformer,
    source: Tensor,
    source_mask: Tensor,
    pad: int,
    beams: int,
    limit: int,
) -> Tensor:
    """The best row of each sentence by mean log-probability, int64 [B, limit]: `pad`, its tokens,
    EOS to the end. A sentence stops when no live row beats its finished one; one that has none
    within the limit comes back empty."""
    sentences = len(source)
    memory = model.encode(source, source_mask).repeat_interleave(beams, 0)
    memory_mask = source_mask.repeat_interleave(beams, 0)
    rows = source.new_full((sentences, beams, 1), pad)
    sums = torch.full((sentences, beams), -torch.inf, device=source.device)
    sums[:, 0] = 0
    best = torch.full((sentences,), -torch.inf, device=source.device)
    best_row = source.new_full((sentences, limit), EOS)
    best_row[:, 0] = pad
    done = torch.zeros_like(source_mask[:, 0])
    for step in range(1, limit):
        hidden = model.decode(memory, memory_mask, rows.flatten(0, 1))[:, -1]
        logits = model.output(hidden).float()
        logits[:, pad] = -torch.inf
        scores = sums[:, :, None] + logits.log_softmax(-1).unflatten(0, (sentences, beams))
        # Twice as many candidates as beams: at least `beams` of them do not end.
        score, candidate = scores.flatten(1).topk(2 * beams)
        token = candidate % logits.shape[-1]
        parent = (candidate // logits.shape[-1])[:, :, None].expand(-1, -1, step)
        rows = torch.cat([rows.gather(1, parent), token[:, :, None]], 2)
        ended = token == EOS
        finished, place = score.masked_fill(~ended, -torch.inf)[:, :beams].div(step).max(1)
        better = (finished > best) & ~done
        best = torch.where(better, finished, best)
        best_row[better, : step + 1] = rows[torch.arange(sentences), place][better]
        best_row[better, step + 1 :] = EOS
        sums, alive = score.masked_fill(ended, -torch.inf).topk(beams)
        rows = rows.gather(1, alive[:, :, None].expand(-1, -1, step + 1))
        done |= best >= sums[:, 0] / step
        if bool(done.all()):
            break
    return best_row


def translate(
    model: Transformer, pieces: bytes, sources: Packed, pad: int, beams: int = 4
) -> list[str]:
    """Translates packed sentences; a translation has at most twice the source's tokens and ten."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    device = model.output.weight.device
    packed = DevicePacked(sources, pad, device)
    order = np.argsort(-sources.lengths, kind="stable")
    texts = [""] * len(order)
    for begin in range(0, len(order), CHUNK):
        chosen = order[begin : begin + CHUNK]
        width = int(sources.lengths[chosen].max())
        ids, mask = packed.rows(torch.from_numpy(chosen).to(device), width)
        found = search(model, ids, mask, pad, beams, 2 * width + 10)[:, 1:].tolist()
        for sentence, row in zip(chosen.tolist(), found, strict=True):
            texts[sentence] = processor.decode(row[: row.index(EOS)])
    return texts
