"""LightConv and DynamicConv as in Wu et al. 2019, token by token, from tensors that lie as fairseq
stores them: the oracle of their tests."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.models.layouts.positions import fairseq_sinusoids

HIDDEN, FFN, HEADS, LAYERS, VOCAB, POSITIONS = 32, 48, 4, 2, 60, 64
EOS, FIRST = 2, 2  # FIRST: row of a learned position table that is position 0

LIGHT: dict[str, Any] = {
    "encoder_conv_type": "lightweight",
    "decoder_conv_type": "lightweight",
    "encoder_kernel_size_list": [3, 7],
    "decoder_kernel_size_list": [3, 6],
}
DYNAMIC: dict[str, Any] = {
    "encoder_conv_type": "dynamic",
    "decoder_conv_type": "dynamic",
    "encoder_glu": False,
    "decoder_glu": False,
    "encoder_kernel_size_list": [31, 5],
    "decoder_kernel_size_list": [4, 31],
    "encoder_normalize_before": True,
    "decoder_normalize_before": True,
    "share_all_embeddings": True,
    "encoder_learned_pos": True,
}


class LightConv:
    """options: what fairseq's command line gets; state: the tensors of a checkpoint."""

    def __init__(self, seed: int, **options: Any) -> None:
        self.options: dict[str, Any] = {
            "arch": "lightconv",
            "task": "translation",
            "max_source_positions": POSITIONS,
            "max_target_positions": POSITIONS,
            "share_all_embeddings": False,
            "weight_softmax": True,
        }
        for side in ("encoder", "decoder"):
            self.options |= {
                f"{side}_attention_heads": HEADS,
                f"{side}_conv_dim": HIDDEN,
                f"{side}_embed_dim": HIDDEN,
                f"{side}_ffn_embed_dim": FFN,
                f"{side}_glu": True,
                f"{side}_layers": LAYERS,
                f"{side}_learned_pos": False,
                f"{side}_normalize_before": False,
            }
        self.options |= options
        generator = torch.Generator().manual_seed(seed)
        self.state = {
            name: scale * torch.randn(shape, generator=generator) + shift
            for name, shape, scale, shift in self.tensors()
        }
        self.state[self.output][EOS] *= 1.5  # so that rows end
        if self.options["share_all_embeddings"]:
            self.state["decoder.embed_tokens.weight"] = self.state["encoder.embed_tokens.weight"]

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], float, float]]:
        """Names and shapes, the deviation of the numbers and their mean."""
        for side in ("encoder", "decoder"):
            yield f"{side}.embed_tokens.weight", (VOCAB, HIDDEN), 0.3, 0
            if self.options[f"{side}_learned_pos"]:
                yield f"{side}.embed_positions.weight", (FIRST + POSITIONS, HIDDEN), 1, 0
            norms = [f"{side}.layer_norm"] if self.pre_norm(side) else []
            for i in range(LAYERS):
                layer = f"{side}.layers.{i}"
                products = dict(self.products(side, i))
                for part, (outputs, inputs) in products.items():
                    scale = (4 if part == "fc2" else 3) * inputs**-0.5
                    yield f"{layer}.{part}.weight", (outputs, inputs), scale, 0
                    if part != "conv.weight_linear":
                        yield f"{layer}.{part}.bias", (outputs,), 0.2, 0
                if "conv.weight_linear" not in products:
                    yield f"{layer}.conv.weight", (HEADS, 1, self.kernel_size(side, i)), 1, 0
                norms += [f"{layer}.{norm}" for norm in self.norms(side)]
            for norm in norms:
                yield f"{norm}.weight", (HIDDEN,), 0.2, 1
                yield f"{norm}.bias", (HIDDEN,), 0.2, 0
        if not self.options["share_all_embeddings"]:
            yield "decoder.embed_out", (VOCAB, HIDDEN), 0.3, 0

    def products(self, side: str, layer: int) -> Iterator[tuple[str, tuple[int, int]]]:
        yield "linear1", (HIDDEN * (2 if self.options[f"{side}_glu"] else 1), HIDDEN)
        yield "linear2", (HIDDEN, HIDDEN)
        if self.options[f"{side}_conv_type"] == "dynamic":
            yield "conv.weight_linear", (HEADS * self.kernel_size(side, layer), HIDDEN)
        if side == "decoder":
            for part in "qkv":
                yield f"encoder_attn.{part}_proj", (HIDDEN, HIDDEN)
            yield "encoder_attn.out_proj", (HIDDEN, HIDDEN)
        yield "fc1", (FFN, HIDDEN)
        yield "fc2", (HIDDEN, FFN)

    def kernel_size(self, side: str, layer: int) -> int:
        return int(self.options[f"{side}_kernel_size_list"][layer])

    @staticmethod
    def norms(side: str) -> list[str]:
        if side == "encoder":
            return ["layer_norms.0", "layer_norms.1"]
        return ["conv_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"]

    def write(self, path: Path, **changed: Any) -> Path:
        """As fairseq-train does; None: an option is left out."""
        options = {
            key: value for key, value in (self.options | changed).items() if value is not None
        }
        state = self.state | {
            f"{side}.version": torch.tensor([2.0]) for side in ("encoder", "decoder")
        }
        torch.save({"args": Namespace(**options), "model": state}, path)
        return path

    # The model: rows of one sentence, [tokens, HIDDEN].

    def encode(self, source: list[int]) -> Tensor:
        return self.stack("encoder", source, None)

    def logits(self, memory: Tensor, target: list[int]) -> Tensor:
        """[len(target), VOCAB], of the token behind each of target."""
        return self.stack("decoder", target, memory) @ self.state[self.output].t()

    @property
    def output(self) -> str:
        tied = self.options["share_all_embeddings"]
        return "encoder.embed_tokens.weight" if tied else "decoder.embed_out"

    def stack(self, side: str, ids: list[int], memory: Tensor | None) -> Tensor:
        if self.options[f"{side}_learned_pos"]:
            positions = self.state[f"{side}.embed_positions.weight"][FIRST:]
        else:
            positions = torch.from_numpy(fairseq_sinusoids(POSITIONS, HIDDEN, FIRST))
        x = math.sqrt(HIDDEN) * self.state[f"{side}.embed_tokens.weight"][ids]
        x = x + positions[: len(ids)]
        for i in range(LAYERS):
            x = self.layer(side, i, x, memory)
        return self.norm(f"{side}.layer_norm", x) if self.pre_norm(side) else x

    def layer(self, side: str, i: int, x: Tensor, memory: Tensor | None) -> Tensor:
        layer = f"{side}.layers.{i}"
        changes: list[Callable[[Tensor], Tensor]] = [
            lambda y: self.convolve(side, i, y),
            lambda y: self.feed_forward(layer, y),
        ]
        if memory is not None:
            changes.insert(1, lambda y: self.attend(layer, y, memory))
        for norm, change in zip(self.norms(side), changes, strict=True):
            if self.pre_norm(side):
                x = x + change(self.norm(f"{layer}.{norm}", x))
            else:
                x = self.norm(f"{layer}.{norm}", x + change(x))
        return x

    def pre_norm(self, side: str) -> bool:
        return bool(self.options[f"{side}_normalize_before"])

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (HIDDEN,), self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.state[f"{name}.weight"], self.state.get(f"{name}.bias"))

    def convolve(self, side: str, i: int, x: Tensor) -> Tensor:
        layer, size = f"{side}.layers.{i}", self.kernel_size(side, i)
        x = self.linear(f"{layer}.linear1", x)
        x = F.glu(x, -1) if self.options[f"{side}_glu"] else x
        if self.options[f"{side}_conv_type"] == "dynamic":
            kernel = self.linear(f"{layer}.conv.weight_linear", x).view(-1, HEADS, size)
        else:
            kernel = self.state[f"{layer}.conv.weight"].view(1, HEADS, size).expand(len(x), -1, -1)
        kernel = kernel.softmax(-1) if self.options["weight_softmax"] else kernel
        left = size // 2 if side == "encoder" else size - 1
        padded, y = F.pad(x, (0, 0, left, size - 1 - left)), torch.zeros_like(x)
        for j in range(size):
            y += kernel[:, :, j].repeat_interleave(HIDDEN // HEADS, 1) * padded[j : j + len(x)]
        return self.linear(f"{layer}.linear2", y)

    def attend(self, layer: str, x: Tensor, memory: Tensor) -> Tensor:
        q, k, v = (
            self.linear(f"{layer}.encoder_attn.{part}_proj", rows).view(len(rows), HEADS, -1)
            for part, rows in (("q", x), ("k", memory), ("v", memory))
        )
        scores = torch.einsum("tnd,snd->nts", q, k) / math.sqrt(q.shape[-1])
        y = torch.einsum("nts,snd->tnd", scores.softmax(-1), v).flatten(1)
        return self.linear(f"{layer}.encoder_attn.out_proj", y)

    def feed_forward(self, layer: str, x: Tensor) -> Tensor:
        return self.linear(f"{layer}.fc2", self.linear(f"{layer}.fc1", x).relu())
