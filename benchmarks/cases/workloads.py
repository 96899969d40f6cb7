"""What is measured: models of random weights, and the shape of a call."""

from __future__ import annotations

import json
import re
from argparse import ArgumentTypeError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decoding.compare.runs import Point

SEED = 1
SOURCE = 32  # tokens of each source or prompt
STEPS = 64  # new tokens of each row, forced: EOS is banned until the last
TOP_K, TOP_P = 50, 0.9


@dataclass(frozen=True)
class Workload:
    """The sizes of a model; without encoder layers it is decoder-only: GPT-2, or with kv_heads a
    Llama, whose layers may be stored in e4m3."""

    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int
    encoder_layers: int = 0
    kv_heads: int = 0
    e4m3: bool = False

    @property
    def has_encoder(self) -> bool:
        return self.encoder_layers > 0


@dataclass(frozen=True)
class Shape:
    """Sentences and beams of one call, written "8x4"; one beam is greedy search.

    sample: draws instead, from the TOP_K and TOP_P of each row; written "8s".
    """

    batch: int
    beams: int
    sample: bool = False

    @property
    def point(self) -> Point:
        return Point(self.batch, self.beams, STEPS, (TOP_K, TOP_P) if self.sample else None)

    @staticmethod
    def parse(text: str) -> Shape:
        """For a command line."""
        found = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*)|s)", text)
        if found is None:
            raise ArgumentTypeError(
                f'a shape is written BATCHxBEAMS, as in "8x4", or BATCHs to sample; got {text!r}'
            )
        return Shape(int(found[1]), int(found[2] or 1), sample=found[2] is None)

    def __str__(self) -> str:
        return f"{self.batch}s" if self.sample else f"{self.batch}x{self.beams}"


LLAMA = Workload(layers=16, hidden=2048, heads=32, feed_forward=8192, vocabulary=128256, kv_heads=8)
WORKLOADS = {
    "marian-base": Workload(
        layers=6, hidden=512, heads=8, feed_forward=2048, vocabulary=32000, encoder_layers=6
    ),
    "marian-big": Workload(
        layers=6, hidden=1024, heads=16, feed_forward=4096, vocabulary=32000, encoder_layers=6
    ),
    "nllb-600M": Workload(
        layers=12, hidden=1024, heads=16, feed_forward=4096, vocabulary=256206, encoder_layers=12
    ),
    "gpt2-124M": Workload(layers=12, hidden=768, heads=12, feed_forward=3072, vocabulary=50257),
    "llama-1.2G": LLAMA,
    "llama-1.2G-e4m3": replace(LLAMA, e4m3=True),
    "llama-8G": Workload(
        layers=32, hidden=4096, heads=32, feed_forward=14336, vocabulary=128256, kv_heads=8
    ),
}


def random_model(workload: Workload) -> Any:
    """A transformers model of these sizes, with the library's own initial weights."""
    import torch
    from transformers import GenerationConfig

    torch.manual_seed(SEED)
    if workload.kv_heads:
        model = llama(workload)
    else:
        model = marian(workload) if workload.has_encoder else gpt2(workload)
    model.generation_config = GenerationConfig(
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
        decoder_start_token_id=getattr(model.config, "decoder_start_token_id", None),
    )
    return model.eval()


def marian(workload: Workload) -> Any:
    from transformers import MarianConfig, MarianMTModel

    pad = workload.vocabulary - 1  # where Marian has it; decoding starts from its zero embedding
    return MarianMTModel(
        MarianConfig(
            vocab_size=workload.vocabulary,
            d_model=workload.hidden,
            encoder_layers=workload.encoder_layers,
            decoder_layers=workload.layers,
            encoder_attention_heads=workload.heads,
            decoder_attention_heads=workload.heads,
            encoder_ffn_dim=workload.feed_forward,
            decoder_ffn_dim=workload.feed_forward,
            activation_function="swish",
            scale_embedding=True,
            eos_token_id=0,
            forced_eos_token_id=None,
            pad_token_id=pad,
            decoder_start_token_id=pad,
        )
    )


def gpt2(workload: Workload) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    end = workload.vocabulary - 1
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=workload.vocabulary,
            n_embd=workload.hidden,
            n_layer=workload.layers,
            n_head=workload.heads,
            n_inner=workload.feed_forward,
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=end,
        )
    )


def llama(workload: Workload) -> Any:
    """In float16, as most are published in 16 bits."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    end = workload.vocabulary - 1
    config = LlamaConfig(
        vocab_size=workload.vocabulary,
        hidden_size=workload.hidden,
        num_hidden_layers=workload.layers,
        num_attention_heads=workload.heads,
        num_key_value_heads=workload.kv_heads,
        intermediate_size=workload.feed_forward,
        tie_word_embeddings=workload.hidden < 4096,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
    )
    return LlamaForCausalLM(config).to(torch.float16)


def save(workload: Workload, directory: Path) -> None:
    """Writes the random model as transformers does, or as compressed-tensors stores it in e4m3."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = random_model(workload)
    model.save_pretrained(directory)
    if workload.e4m3:
        quantise(model, directory)


def quantise(model: Any, directory: Path) -> None:
    """Replaces the weights of the model's layers, with a scale for each output."""
    import torch
    from safetensors.torch import load_file, save_file

    stored = load_file(directory / "model.safetensors")
    for name, module in model.model.layers.named_modules(prefix="model.layers"):
        if isinstance(module, torch.nn.Linear):
            weight = module.weight.float()
            scale = weight.abs().amax(1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
            stored[f"{name}.weight"] = (weight / scale).to(torch.float8_e4m3fn)
            stored[f"{name}.weight_scale"] = scale
    save_file(stored, directory / "model.safetensors", {"format": "pt"})
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    (directory / "config.json").write_text(json.dumps(config))


def random_ids(workload: Workload, batch: int) -> list[list[int]]:
    """Sources or prompts, [batch][SOURCE]; no end or padding token among them."""
    import random

    draw = random.Random(SEED)
    return [
        [draw.randrange(2, workload.vocabulary - 1) for _ in range(SOURCE)] for _ in range(batch)
    ]
