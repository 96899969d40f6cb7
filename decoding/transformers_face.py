"""The methods that programs for a model of transformers call beside generate()."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from decoding.engine.devices import dtype_name
from decoding.models.spec import EncoderSpec, ModelSpec
from decoding.models.weights.shapes import shapes

if TYPE_CHECKING:
    import torch

Self = TypeVar("Self", bound="TransformersFace")

TOKEN_TABLES = ("encoder.embed.tokens", "decoder.embed.tokens", "output.weight")


class TransformersFace:
    """What stays as it is, and says so: a loaded model is on its device, in its type, and always in
    evaluation mode."""

    dtype_name: str

    @property
    def device(self) -> torch.device:
        raise NotImplementedError

    @property
    def is_encoder(self) -> bool:
        raise NotImplementedError

    @property
    def training(self) -> bool:
        """False."""
        return False

    def eval(self: Self) -> Self:
        """The model itself: it is never in training mode."""
        return self

    def to(self: Self, *place: Any, device: Any = None, dtype: Any = None) -> Self:
        """The model itself, where it is on this device and in this type already.

        place: a device, a type or both, as for torch.nn.Module.to(). Raises ValueError for others:
        a model is loaded for its device and type.
        """
        import torch

        for each in place:
            if isinstance(each, torch.dtype):
                dtype = each
            else:
                device = each
        if dtype is not None and dtype_name(dtype) != self.dtype_name:
            raise ValueError(
                f"the model is in {self.dtype_name} and stays so: load it with "
                f'decoding.load(..., dtype="{dtype_name(dtype)}")'
            )
        if device is not None and not same(torch.device(device), self.device):
            raise ValueError(
                f"the model is on {self.device} and stays there: load it with "
                f'decoding.load(..., device="{device}")'
            )
        return self

    def can_generate(self) -> bool:
        """Whether the model has generate(): all but encoders alone."""
        return not self.is_encoder


def same(wanted: torch.device, own: torch.device) -> bool:
    if wanted.type != own.type:
        return False
    return wanted.index is None or wanted.index == own.index or own.index is None


def count_parameters(
    spec: ModelSpec | EncoderSpec, names: Iterable[str], config: Mapping[str, Any]
) -> int:
    """Numbers in a model's weights; token tables that are one table count once, as does
    transformers. names: of the weights that it has."""
    there = set(names)
    known = {name: shape for name, shape in shapes(spec, lambda _: True).items() if name in there}
    known.pop("output.bias", None)  # transformers' families keep it as a buffer
    if config.get("tie_word_embeddings", True):
        tables = {known.pop(name) for name in TOKEN_TABLES if name in known}
        known |= {f"table {i}": shape for i, shape in enumerate(tables)}
    return sum(math.prod(shape) for shape in known.values())
