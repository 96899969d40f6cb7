"""transformers: its models and its tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from decoding.compare.engines.base import Settings
from decoding.compare.engines.tensors import TensorEngine
from decoding.compare.task import Ids, Task


class TransformersText:
    """Text through the tokenizers of transformers."""

    text_libraries: ClassVar[tuple[str, ...]] = ("transformers.models.auto.tokenization_auto",)
    task: Task

    @cached_property
    def tokenizer(self) -> Any:
        import transformers

        names = zip(("src_lang", "tgt_lang"), self.task.languages, strict=True)
        languages = {name: code for name, code in names if code is not None}
        return transformers.AutoTokenizer.from_pretrained(self.task.directory, **languages)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(list(texts)).input_ids
        return ids

    def decode(self, rows: Ids) -> list[str]:
        texts: list[str] = self.tokenizer.batch_decode(rows, skip_special_tokens=True)
        return texts


class HuggingFace(TransformersText, TensorEngine):
    """transformers, eager: dynamic cache, its default (SDPA) attention."""

    name = "huggingface"
    libraries = ("torch", "transformers.generation.utils", "transformers.models.auto.modeling_auto")
    dtypes = {"cpu": ("float32", "bfloat16"), "cuda": ("float32", "float16", "bfloat16")}

    def __init__(self, task: Task, settings: Settings) -> None:
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        torch.set_num_threads(settings.threads)
        family = (
            transformers.AutoModelForSeq2SeqLM
            if task.has_encoder
            else transformers.AutoModelForCausalLM
        )
        self.task, self.device = task, settings.device
        self.model = family.from_pretrained(task.directory, dtype=getattr(torch, settings.dtype))
        self.model = self.model.eval().to(settings.device)
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        if settings.device == "cpu":
            self.isa = torch.backends.cpu.get_cpu_capability().lower()


class HuggingFaceStatic(HuggingFace):
    """transformers with a static cache, whose step it then compiles by itself; not with beams."""

    name = "huggingface-static"
    options = {"cache_implementation": "static"}

    @classmethod
    def serves(cls, beams: int) -> bool:
        return beams == 1
