"""The encoder-decoder Transformer in plain torch: what is trained, and the oracle of the engine."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from decoding.models.layouts.positions import sinusoids
from decoding.models.spec import ModelSpec, StackSpec
from decoding.models.torch.blocks import (
    Dropout,
    initialise_linear,
    keep_biases,
    soft_cap,
)
from decoding.models.torch.stack import Embedding, Stack
from decoding.models.weights.shapes import Biases, all_but_output


class Transformer(nn.Module):
    """Vaswani et al. 2017, with sinusoidal positions, or the blocks that its spec names instead.

    tied: one token table for encoder, decoder and output, which then need equal shapes. biases:
    which products and norms have one.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        tied: bool = False,
        biases: Biases = all_but_output,
        dropout: Dropout = Dropout(),  # noqa: B008, frozen
    ) -> None:
        super().__init__()
        if spec.encoder is None:
            raise ValueError("a Transformer has an encoder; a decoder alone is a GPT")
        self.spec = spec
        source = token_table(spec.encoder)
        target = source if tied else token_table(spec.decoder)
        self.encoder = Stack(spec.encoder, embedding(spec.encoder, source, dropout), dropout)
        self.decoder = Stack(
            spec.decoder,
            embedding(spec.decoder, target, dropout),
            dropout,
            spec.encoder.hidden,
        )
        self.output = nn.Linear(spec.decoder.hidden, spec.decoder.vocab)
        keep_biases(self, biases)
        initialise_linear(self)
        if tied:
            self.output.weight = target

    def encode(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """source: int64 [B, S]; source_mask: bool [B, S], True for tokens. Returns [B, S, H]."""
        position = torch.arange(source.shape[1], device=source.device)
        memory: Tensor = self.encoder(source, position, source_mask[:, None, None])
        return memory

    def decode(self, memory: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """memory: [B, S, H of the encoder]; target: int64 [B, T]. Returns [B, T, H].

        Padding behind a target is harmless: the mask is causal.
        """
        position = torch.arange(target.shape[1], device=target.device)
        hidden: Tensor = self.decoder(target, position, None, memory, source_mask[:, None, None])
        return hidden

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Logits [B, T, V] of the token behind each target token; arguments as above."""
        memory = self.encode(source, source_mask)
        logits: Tensor = self.output(self.decode(memory, source_mask, target))
        return soft_cap(logits, self.spec.logits_cap)


def token_table(spec: StackSpec) -> nn.Parameter:
    """Rows of unit length on average: scaled by sqrt(hidden) they match the positions, and as the
    output's weights they give logits of deviation 1."""
    tokens = nn.Parameter(torch.empty(spec.vocab, spec.hidden))
    nn.init.normal_(tokens, std=spec.hidden**-0.5)
    return tokens


def embedding(spec: StackSpec, tokens: nn.Parameter, dropout: Dropout) -> Embedding:
    positions = None
    if spec.position_table:
        table = torch.from_numpy(sinusoids(spec.positions, spec.hidden))
        positions = nn.Parameter(table, requires_grad=False)
    return Embedding(spec, tokens, positions, dropout)
