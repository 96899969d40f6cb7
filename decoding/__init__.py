"""Fast sequence generation with the answers of Hugging Face's generate()."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from decoding.sources import check_built

check_built(Path(__file__).parent)

import torch  # noqa: E402

from decoding._C import Error  # noqa: E402
from decoding.config import GenerationConfig  # noqa: E402
from decoding.limits import Limits  # noqa: E402
from decoding.model import Model  # noqa: E402
from decoding.models import load as load_checkpoint  # noqa: E402
from decoding.models.memory import trim  # noqa: E402

__all__ = ["Error", "GenerationConfig", "Limits", "Model", "generate", "load"]
__version__ = "0.1.0"


def load(
    source: str | os.PathLike[str] | object,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    limits: Limits | None = None,
    threads: int | None = None,
) -> Model:
    """Loads a Hugging Face model directory, or takes a transformers model that is in memory.

    device: "auto" or "cpu". dtype: "auto" or "float32". limits: what the memory is planned for,
    once; None: it grows with the calls. threads: that compute each step; None: as many as torch.

    Raises FileNotFoundError or ValueError where the checkpoint is not what we can read, ValueError
    and NotImplementedError for devices and types that this build has no engine for, decoding.Error
    when `limits` need more memory than there is.
    """
    device, dtype = str(device), str(dtype).removeprefix("torch.")
    if device.split(":")[0] == "cuda":
        raise NotImplementedError('this build has no CUDA engine yet: pass device="cpu"')
    if device not in ("auto", "cpu"):
        raise ValueError(f'device must be "auto" or "cpu", got {device!r}')
    if dtype in ("float16", "bfloat16", "int8"):
        raise NotImplementedError(f'dtype="{dtype}" is not supported yet: pass dtype="float32"')
    if dtype not in ("auto", "float32"):
        raise ValueError(f'dtype must be "auto" or "float32", got {dtype!r}')
    model = Model(load_checkpoint(source), limits=limits, threads=threads)
    trim()
    return model


def generate(
    model: Model | str | os.PathLike[str] | object, input_ids: Any = None, **options: Any
) -> Any:
    """Model.generate in one call; `model` may also be anything that load() takes."""
    return (model if isinstance(model, Model) else load(model)).generate(input_ids, **options)
