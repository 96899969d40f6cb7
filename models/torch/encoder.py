"""An encoder alone in plain torch: the reference of the engine's tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from decoding.models.spec import EncoderSpec
from decoding.models.torch.blocks import Dropout, keep_biases
from decoding.models.torch.stack import Embedding, Stack
from decoding.models.weights.shapes import Biases, all_but_output


class Encoder(nn.Module):
    """Devlin et al. 2019, or the blocks that its spec names instead; biases: as in Transformer."""

    def __init__(self, spec: EncoderSpec, *, biases: Biases = all_but_output) -> None:
        super().__init__()
        self.spec = spec
        stack = spec.encoder
        tokens = nn.Parameter(torch.empty(stack.vocab, stack.hidden))
        positions = None
        if stack.position_table:
            positions = nn.Parameter(torch.empty(stack.types * stack.positions, stack.hidden))
        dropout = Dropout()
        self.encoder = Stack(stack, Embedding(stack, tokens, positions, dropout), dropout)
        self.pooler = nn.Linear(stack.hidden, stack.hidden) if spec.pooler else None
        keep_biases(self, biases)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2 and parameter.requires_grad:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(
        self, ids: Tensor, mask: Tensor, types: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The hidden states [B, T, H], undefined where masked, and what the pooler makes of
        the first token's [B, H].

        ids: int64 [B, T]; mask: bool [B, T], True for tokens; types: int64 [B, T], None: 0.
        """
        position = torch.arange(ids.shape[1], device=ids.device)
        if self.spec.pad is not None:
            counts = ids != self.spec.pad
            position = counts.cumsum(1) * counts
        if types is not None:
            position = position + types * self.spec.encoder.positions
        states: Tensor = self.encoder(ids, position, mask[:, None, None])
        return states, None if self.pooler is None else self.pooler(states[:, 0]).tanh()
