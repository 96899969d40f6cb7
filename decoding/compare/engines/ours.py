"""This library."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from decoding.compare.engines.base import Settings
from decoding.compare.engines.tensors import TensorEngine
from decoding.compare.task import Ids, Task
from decoding.text.tokenizers import Tokenizer


class Ours(TensorEngine):
    """This library."""

    name = "ours"
    deterministic: ClassVar = False
    libraries = ("torch", "decoding")
    dtypes = {
        "cpu": ("float32", "bfloat16", "int8"),
        "cuda": ("float32", "float16", "bfloat16", "int8"),
    }

    def __init__(self, task: Task, settings: Settings) -> None:
        import torch

        import decoding

        torch.set_num_threads(settings.threads)
        self.task, self.device = task, settings.device
        self.model = decoding.load(
            task.directory,
            device=settings.device,
            dtype=settings.dtype,
            threads=settings.threads,
            deterministic=self.deterministic,
            trust_paths=task.trust_paths,
        )
        self.version = f"decoding {decoding.__version__}, torch {torch.__version__}"
        self.isa = self.model.isa

    @property
    def nodes(self) -> int:  # type: ignore[override]
        nodes: int = self.model.graph_nodes
        return nodes

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.task.load_tokenizer()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.tokenizer.encode(text) for text in texts]

    def decode(self, rows: Ids) -> list[str]:
        return [self.tokenizer.decode(row, skip_special_tokens=True) for row in rows]


class OursDeterministic(Ours):
    """This library with deterministic=True, whose price shows beside `ours` on a GPU."""

    name = "ours-deterministic"
    deterministic = True
