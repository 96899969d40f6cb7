"""The model that is trained, its loss, and one update of its weights."""

from __future__ import annotations

import argparse
import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoding.models.spec import ModelSpec, StackSpec
from decoding.models.torch.attention import CrossAttention, SelfAttention
from decoding.models.torch.blocks import Block, Dropout, FeedForward
from decoding.models.torch.stack import Embedding
from decoding.models.torch.transformer import Transformer
from decoding.nn import fuse
from decoding.nn.functional import cross_entropy, embedding
from examples.train_a_translator.corpus import IGNORED, Batch
from examples.train_a_translator.graphs import Graphs

SMOOTHING = 0.1
EMA = 0.999
POSITIONS = 512


def make_spec(
    encoder: int, decoder: int, hidden: int, heads: int, ffn: int, *, vocab: int
) -> ModelSpec:
    """Post-norm stacks of the same width, as Marian trains them."""

    def stack(layers: int) -> StackSpec:
        head_dim = hidden // heads
        return StackSpec(
            layers=layers,
            hidden=hidden,
            heads=heads,
            head_dim=head_dim,
            ffn=ffn,
            vocab=vocab,
            positions=POSITIONS,
            activation="silu",
            embed_scale=math.sqrt(hidden),
            embed_norm=False,
            pre_norm=False,
            final_norm=False,
            eps=1e-5,
            attention_scale=(head_dim**-0.5,) * layers,
        )

    return ModelSpec(encoder=stack(encoder), decoder=stack(decoder))


class FusedEmbedding(Embedding):
    """An Embedding that computes in one kernel. Under autocast its result has the type of products,
    and so have all blocks behind it, whose sums and norms are float32 within their kernels."""

    def forward(self, ids: Tensor, position: Tensor) -> Tensor:
        x = embedding(
            ids,
            self.tokens,
            scale=self.scale,
            positions=self.positions,
            position=position,
            dropout=self.dropout.p if self.training else 0.0,
        )
        device = x.device.type
        return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


class FusedBlock(Block):
    """A post-norm block in which one kernel follows the last product: it adds the product's bias,
    drops out, adds the residual and norms."""

    last: str  # the name of that product

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        bias = getattr(self, self.last).bias
        y: Tensor
        y, _ = self.norm(self.compute(x, *context), x, bias, self.dropout.p)
        return y


class FusedSelfAttention(FusedBlock, SelfAttention):
    last = "out"


class FusedCrossAttention(FusedBlock, CrossAttention):
    last = "out"


class FusedFeedForward(FusedBlock, FeedForward):
    last = "down"


class BiasLater(nn.Linear):
    """A Linear whose bias the next kernel adds."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight)


FUSED: dict[type[nn.Module], type[nn.Module]] = {
    Embedding: FusedEmbedding,
    SelfAttention: FusedSelfAttention,
    CrossAttention: FusedCrossAttention,
    FeedForward: FusedFeedForward,
}


def make_model(spec: ModelSpec, dropout: Dropout, plain: bool) -> Transformer:
    """A Transformer with one table for source, target and output. plain: with torch's own modules
    alone."""
    model = Transformer(spec, tied=True, dropout=dropout)
    if not plain:
        fuse(model)
        for part in model.modules():
            part.__class__ = FUSED.get(type(part), type(part))
            if isinstance(part, FusedBlock):
                getattr(part, part.last).__class__ = BiasLater
    return model


def loss(model: Transformer, batch: Batch, r_drop: float, plain: bool = False) -> Tensor:
    """The mean over labels of the smoothed cross-entropy. With `r_drop`, that of two dropout
    passes, plus `r_drop` / 4 of their symmetric divergence. plain: with torch's operators alone."""
    passes = 2 if r_drop else 1
    source, mask, target = (
        side.repeat(passes, 1) for side in (batch.source, batch.source_mask, batch.target)
    )
    hidden = model.decode(model.encode(source, mask), mask, target)
    # Only labels, and little padding, pay for the large product with the output table.
    hidden = hidden.view(passes, -1, hidden.shape[-1])[:, batch.places]
    logits, labels = model.output(hidden), batch.labels.expand(passes, -1)  # [passes, labels, V]
    fused = None
    if not plain:
        fused = cross_entropy(
            logits.flatten(0, 1),
            labels.flatten(),
            ignore_index=IGNORED,
            label_smoothing=SMOOTHING,
        )
        if not r_drop:
            return fused
    real = batch.labels != IGNORED
    shares = real / real.sum()  # of the labels in a mean
    log_p: Tensor = logits.float().log_softmax(-1)
    total = plain_cross_entropy(log_p, labels, shares) if fused is None else fused
    if r_drop:
        divergence = ((log_p[0].exp() - log_p[1].exp()) * (log_p[0] - log_p[1])).sum(-1)
        total = total + r_drop / 4 * (shares * divergence).sum()
    return total


def plain_cross_entropy(log_p: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    """log_p: [passes, labels, V]; labels: [passes, labels]; shares: [labels], 0 for padding."""
    likelihood = log_p.gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
    smoothed = (1 - SMOOTHING) * likelihood + SMOOTHING * log_p.mean(-1)
    return -(shares * smoothed).sum(-1).mean()


class Trainer:
    """A model, its optimizer and its running average (EMA). graphs: on a GPU, whether updates are
    captured in CUDA graphs."""

    def __init__(self, model: Transformer, args: argparse.Namespace, graphs: bool = True) -> None:
        self.model, self.args = model, args
        self.parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.average = copy.deepcopy(model).eval()
        self.averaged: list[Tensor] = [p for p in self.average.parameters() if p.requires_grad]
        self.average.requires_grad_(False)
        self.device = model.output.weight.device
        self.rate = torch.zeros((), device=self.device)  # a graph reads it anew in each replay
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=self.rate, betas=(0.9, 0.98), weight_decay=1e-4, fused=True
        )
        self.graphs = Graphs(self.optimizer) if graphs and self.device.type == "cuda" else None
        self.steps = 0

    def step(self, batch: Batch, progress: float) -> Tensor:
        """One update of the weights and their average; returns the loss. The learning rate warms up
        linearly, then follows a cosine down to 0 at `progress` 1."""
        warm = min(1.0, (self.steps + 1) / self.args.warmup)
        self.rate.fill_(self.args.rate * warm * math.cos(math.pi / 2 * progress))
        value = self.graphs(self.update, batch) if self.graphs else self.update(batch)
        # Early on the average must forget the random start.
        decay = min(EMA, (self.steps + 1) / (self.steps + 10))
        with torch.no_grad():
            torch._foreach_lerp_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
                self.averaged, self.parameters, 1 - decay
            )
        self.steps += 1
        return value

    def update(self, batch: Batch) -> Tensor:
        """One update of the weights at the current rate; returns the loss. It neither waits for the
        device nor leaves gradients, so that a graph can capture it."""
        cuda = self.device.type == "cuda"
        # Begun here, so that the casts of weights, which autocast keeps, are the graph's own.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=cuda):
            value = loss(self.model, batch, self.args.r_drop, self.args.plain)
        torch.autograd.backward(value)
        nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return value.detach()
