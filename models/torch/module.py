"""The torch module of a spec."""

from __future__ import annotations

from typing import overload

from decoding.models.spec import EncoderSpec, ModelSpec
from decoding.models.torch.encoder import Encoder
from decoding.models.torch.gpt import GPT
from decoding.models.torch.transformer import Transformer
from decoding.models.weights.shapes import Biases, all_but_output


@overload
def module(spec: ModelSpec, biases: Biases = ...) -> Transformer | GPT: ...
@overload
def module(spec: EncoderSpec, biases: Biases = ...) -> Encoder: ...
def module(
    spec: ModelSpec | EncoderSpec, biases: Biases = all_but_output
) -> Transformer | GPT | Encoder:
    """The torch module of a spec, with new weights. biases: which products and norms have one."""
    if isinstance(spec, EncoderSpec):
        return Encoder(spec, biases=biases)
    kind = GPT if spec.encoder is None else Transformer
    return kind(spec, biases=biases)
