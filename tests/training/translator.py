"""A small translation model, and random pairs for it."""

from __future__ import annotations

import numpy as np
import torch

from decoding.models.torch.blocks import Dropout
from decoding.models.torch.transformer import Transformer
from examples.train_a_translator import trainer
from examples.train_a_translator.corpus import EOS, Batch, Packed, batches

PAD = 59


def random_packed(sentences: int, seed: int) -> Packed:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 12, sentences)
    ids = random.integers(2, PAD, lengths.sum()).astype(np.int16)
    offsets = np.concatenate([[0], lengths.cumsum()])
    ids[offsets[1:] - 1] = EOS
    return Packed(ids, offsets)


def row(packed: Packed, sentence: int) -> tuple[int, ...]:
    begin, end = packed.offsets[sentence : sentence + 2]
    return tuple(packed.ids[begin:end].tolist())


def epoch(pairs: int, tokens: int, seed: int = 0, device: str = "cpu") -> list[Batch]:
    """The batches of random pairs."""
    pair = random_packed(pairs, 3), random_packed(pairs, 4)
    return [*batches(pair, PAD, tokens, np.random.default_rng(seed), torch.device(device))]


def small_model(
    dropout: Dropout = Dropout(),  # noqa: B008, frozen
    plain: bool = False,
) -> Transformer:
    torch.manual_seed(0)
    spec = trainer.make_spec(1, 1, 16, 2, 24, vocab=PAD + 1)
    return trainer.make_model(spec, dropout, plain)
