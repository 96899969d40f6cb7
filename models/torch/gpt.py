"""The decoder-only Transformer in plain torch: the reference of the engine's tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from decoding.models.spec import ModelSpec
from decoding.models.torch.blocks import Dropout, keep_biases, soft_cap
from decoding.models.torch.stack import Embedding, Stack
from decoding.models.weights.shapes import Biases, all_but_output


class GPT(nn.Module):
    """Radford et al. 2019, with learned positions, or the blocks that its spec names instead.

    tied: the output's weights are the token table. biases: which products and norms have one.
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
        if spec.encoder is not None:
            raise ValueError("a GPT has no encoder; with one it is a Transformer")
        self.spec = spec
        decoder = spec.decoder
        tokens = nn.Parameter(torch.empty(decoder.vocab, decoder.hidden))
        positions = None
        if decoder.position_table:
            positions = nn.Parameter(torch.empty(decoder.positions, decoder.hidden))
        self.decoder = Stack(decoder, Embedding(decoder, tokens, positions, dropout), dropout)
        self.output = nn.Linear(decoder.hidden, decoder.vocab)
        keep_biases(self, biases)
        if tied:
            self.output.weight = tokens
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2 and parameter.requires_grad:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] of the token after each token.

        ids: int64 [B, T]; mask: bool [B, T], True for tokens, False for padding (on the left).
        Positions count tokens only. Logits of padding mean nothing.
        """
        length = ids.shape[1]
        if mask is None:
            position, seen = torch.arange(length, device=ids.device), None
        else:
            position = (mask.long().cumsum(1) - 1).clamp(min=0)
            causal = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
            # A padding row sees itself, so that its softmax is not empty.
            itself = torch.eye(length, dtype=torch.bool, device=ids.device)
            seen = ((causal & mask[:, None]) | itself)[:, None]
        logits: Tensor = self.output(self.decoder(ids, position, seen))
        return soft_cap(logits, self.spec.logits_cap)
