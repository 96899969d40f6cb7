"""The engines that are compared, behind one face: load a directory, generate.

Libraries are imported when an engine is loaded, so that one that is not installed is missing from
the comparison, by name, and does not stop it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.workloads import SOURCE, STEPS, TOP_K, TOP_P, Shape, Workload

Ids = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Settings:
    """What an engine is loaded with. device: "cpu" or "cuda"; threads: of the CPU."""

    device: str
    dtype: str
    threads: int


class Engine(ABC):
    """A loaded model. `libraries` are imported before its memory is counted.

    dtypes: of weights, by device, that it computes with; a type that it loads and computes in
    another is not among them.
    version, isa: of what computes; isa is "" where the library does not tell. nodes: of the graph
    that one step is, 0 where it is none.
    """

    name: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]]
    dtypes: ClassVar[dict[str, tuple[str, ...]]]
    version: str
    isa: str = ""
    nodes: int = 0

    @abstractmethod
    def __init__(self, directory: Path, workload: Workload, settings: Settings) -> None: ...

    @abstractmethod
    def prepare(self, ids: Ids, shape: Shape) -> None:
        """Brings the input of the next calls into the library's own form."""

    @abstractmethod
    def generate(self) -> list[list[int]]:
        """The STEPS new tokens of the best row of each sentence."""

    @classmethod
    def serves(cls, shape: Shape) -> bool:
        """Whether it can do this at all."""
        return True


class TensorEngine(Engine):
    """What takes and returns tensors, by the names of transformers' generate()."""

    model: Any
    device: str
    given: int  # tokens of a row that were not generated
    options: ClassVar[dict[str, Any]] = {}

    def prepare(self, ids: Ids, shape: Shape) -> None:
        import torch

        self.ids = torch.tensor(ids, device=self.device)
        self.mask = torch.ones_like(self.ids)
        self.search: dict[str, Any] = {"num_beams": shape.beams, "do_sample": shape.sample}
        if shape.sample:
            self.search |= {"top_k": TOP_K, "top_p": TOP_P}

    def generate(self) -> list[list[int]]:
        rows = self.model.generate(
            self.ids,
            attention_mask=self.mask,
            min_new_tokens=STEPS,
            max_new_tokens=STEPS,
            **self.search,
            **self.options,
        )
        tokens: list[list[int]] = rows[:, self.given :].tolist()
        return tokens


class HuggingFace(TensorEngine):
    """transformers, eager: dynamic cache, its default (SDPA) attention."""

    name = "huggingface"
    libraries = (
        "torch",
        "transformers.models.marian.modeling_marian",
        "transformers.models.gpt2.modeling_gpt2",
    )
    dtypes = {"cpu": ("float32", "bfloat16"), "cuda": ("float32", "float16", "bfloat16")}

    def __init__(self, directory: Path, workload: Workload, settings: Settings) -> None:
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        torch.set_num_threads(settings.threads)
        family = (
            transformers.MarianMTModel if workload.has_encoder else transformers.GPT2LMHeadModel
        )
        self.device = settings.device
        self.model = family.from_pretrained(directory, dtype=getattr(torch, settings.dtype))
        self.model = self.model.eval().to(settings.device)
        self.given = 1 if workload.has_encoder else SOURCE
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        if settings.device == "cpu":
            self.isa = torch.backends.cpu.get_cpu_capability().lower()


class HuggingFaceStatic(HuggingFace):
    """transformers with a static cache, which it then compiles by itself; not with beams."""

    name = "huggingface-static"
    options = {"cache_implementation": "static"}

    @classmethod
    def serves(cls, shape: Shape) -> bool:
        return shape.beams == 1


class CTranslate2(Engine):
    """CTranslate2, on the CPU on the backend that it chooses; its bfloat16 is float32 there.

    On an EPYC with AVX-512 that is oneDNN; its documented switches did no better there: MKL
    (CT2_USE_MKL) took twice as long, AVX-512 (CT2_FORCE_CPU_ISA) as long.
    """

    name = "ctranslate2"
    libraries = ("ctranslate2",)
    dtypes = {"cpu": ("float32", "int8"), "cuda": ("float32", "float16", "bfloat16")}

    def __init__(self, directory: Path, workload: Workload, settings: Settings) -> None:
        import ctranslate2

        family = ctranslate2.Translator if workload.has_encoder else ctranslate2.Generator
        self.engine = family(
            str(converted(directory, settings.dtype)),
            device=settings.device,
            compute_type=settings.dtype,
            inter_threads=1,
            intra_threads=settings.threads,
        )
        self.has_encoder = workload.has_encoder
        self.version = f"ctranslate2 {ctranslate2.__version__}"

    def prepare(self, ids: Ids, shape: Shape) -> None:
        self.tokens = [[str(token) for token in row] for row in ids]
        self.search: dict[str, Any] = {"beam_size": shape.beams, "return_scores": False}
        if shape.sample:
            self.search |= {"sampling_topk": TOP_K, "sampling_topp": TOP_P}

    def generate(self) -> list[list[int]]:
        if self.has_encoder:
            found = self.engine.translate_batch(
                self.tokens,
                min_decoding_length=STEPS,
                max_decoding_length=STEPS,
                **self.search,
            )
            return [[int(token) for token in result.hypotheses[0]] for result in found]
        found = self.engine.generate_batch(
            self.tokens,
            min_length=STEPS,
            max_length=STEPS,
            include_prompt_in_result=False,
            **self.search,
        )
        return [result.sequences_ids[0] for result in found]


class Ours(TensorEngine):
    """This library."""

    name = "ours"
    libraries = ("torch", "decoding")
    dtypes = {
        "cpu": ("float32", "bfloat16", "int8"),
        "cuda": ("float32", "float16", "bfloat16"),
    }

    def __init__(self, directory: Path, workload: Workload, settings: Settings) -> None:
        import torch

        import decoding

        torch.set_num_threads(settings.threads)
        self.device = settings.device
        self.model = decoding.load(
            directory, device=settings.device, dtype=settings.dtype, threads=settings.threads
        )
        self.given = 1 if workload.has_encoder else SOURCE
        self.version = f"decoding {decoding.__version__}, torch {torch.__version__}"
        self.isa = self.model.isa

    @property
    def nodes(self) -> int:  # type: ignore[override]
        nodes: int = self.model.graph_nodes
        return nodes


ENGINES: dict[str, type[Engine]] = {
    engine.name: engine for engine in (HuggingFace, HuggingFaceStatic, CTranslate2, Ours)
}


def missing(engine: type[Engine]) -> list[str]:
    """The libraries of this engine that are not installed."""
    return [
        name for name in {full.split(".")[0] for full in engine.libraries} if not find_spec(name)
    ]


def converted(directory: Path, dtype: str) -> Path:
    """Where the CTranslate2 model of a transformers directory lies."""
    return directory / f"ctranslate2-{dtype}"


def convert(directory: Path, dtype: str) -> None:
    """Writes the CTranslate2 model, of this type, of the transformers model in `directory`.

    The library's own converter does it; only the tokenizer, which random weights do not have, is
    made up: token i is called "i".
    """
    from ctranslate2.converters import TransformersConverter

    class Converter(TransformersConverter):  # type: ignore[misc]
        def load_tokenizer(self, *_: Any, **__: Any) -> NumberedTokens:
            return NumberedTokens(directory)

    Converter(str(directory)).convert(str(converted(directory, dtype)), quantization=dtype)


class NumberedTokens:
    """As much of a tokenizer as the converter asks for."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(directory)
        self.vocabulary = {str(token): token for token in range(config.vocab_size)}
        if config.is_encoder_decoder:  # the converter looks for Marian's padding by its name
            self.vocabulary["<pad>"] = self.vocabulary.pop(str(config.pad_token_id))
        self.eos_token = self.bos_token = str(config.eos_token_id)
        self.unk_token = "1"

    def get_vocab(self) -> dict[str, int]:
        return self.vocabulary
