"""The engines that are compared, behind one face: load a directory, generate.

Libraries are imported when an engine is loaded, so that one that is not installed is missing from
the comparison, by name, and does not stop it.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from decoding.compare.conversion import convert
from decoding.compare.task import Ids, Search, Task
from decoding.config import GenerationConfig
from decoding.tokenizers import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Settings:
    """What an engine is loaded with. device: "cpu" or "cuda"; threads: of the CPU. converted: where
    the library's own form of the model lies, if it needs one."""

    device: str
    dtype: str
    threads: int
    converted: Path | None = None


@dataclass(frozen=True)
class Contender:
    """An engine and what it is loaded with."""

    engine: type[Engine]
    settings: Settings

    def __str__(self) -> str:
        return f"{self.engine.name} {self.settings.dtype} {self.settings.device}"


@dataclass(frozen=True)
class Answer:
    """The best row of each sentence: its new tokens, perhaps with an end and padding behind them,
    and in beam search, if asked for, its score."""

    tokens: list[list[int]]
    scores: list[float]


class Engine(ABC):
    """A loaded model. `libraries` are imported before its memory is counted, `text_libraries` too
    where it is given text.

    dtypes: of weights, by device, that it computes with; a type that it loads and computes in
    another is not among them.
    version, isa: of what computes; isa is "" where the library does not tell. nodes: of the graph
    that one step is, 0 where it is none.
    """

    name: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]]
    text_libraries: ClassVar[tuple[str, ...]] = ()
    dtypes: ClassVar[dict[str, tuple[str, ...]]]
    converts: ClassVar[bool] = False
    version: str
    isa: str = ""
    nodes: int = 0

    @abstractmethod
    def __init__(self, task: Task, settings: Settings) -> None: ...

    @abstractmethod
    def prepare(self, ids: Ids, search: Search) -> None:
        """Brings the input of the next calls into the library's own form."""

    @abstractmethod
    def generate(self) -> Answer: ...

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """As the library's users do; ids with the special tokens of a source or prompt."""

    @abstractmethod
    def decode(self, rows: Ids) -> list[str]: ...

    @classmethod
    def convert(cls, task: Task, dtype: str, directory: Path) -> None:
        """Writes the library's own form of the model; asked for only where `converts`."""
        raise NotImplementedError(f"{cls.name} reads the model as it is")

    @classmethod
    def serves(cls, beams: int) -> bool:
        """Whether it can do this at all."""
        return True


class TransformersText:
    """Text as transformers cuts it."""

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


class TensorEngine(Engine):
    """What takes and returns tensors, by the names of transformers' generate()."""

    task: Task
    model: Any
    device: str
    options: ClassVar[dict[str, Any]] = {}

    def prepare(self, ids: Ids, search: Search) -> None:
        left = not self.task.has_encoder
        self.ids, self.mask = (
            rows.to(self.device) for rows in padded(ids, self.task.pad, left=left)
        )
        self.given = self.ids.shape[1] if left else 1  # of a row, besides the new tokens
        self.scored = search.scores and search.beams > 1
        self.call: dict[str, Any] = {
            "num_beams": search.beams,
            "do_sample": search.sample is not None,
            "min_new_tokens": search.least,
            "max_new_tokens": search.most,
            **self.task.options,
            **self.options,
        }
        if search.sample:
            self.call |= dict(zip(("top_k", "top_p"), search.sample, strict=True))
        if self.scored:
            self.call |= {"return_dict_in_generate": True, "output_scores": True}

    def generate(self) -> Answer:
        found = self.model.generate(self.ids, attention_mask=self.mask, **self.call)
        rows = found.sequences if self.scored else found
        scores = found.sequences_scores.tolist() if self.scored else []
        return Answer(rows[:, self.given :].tolist(), scores)


def padded(rows: Ids, pad: int, *, left: bool) -> tuple[Tensor, Tensor]:
    """Ids and mask, int64 [B, W]. left: the padding stands before the tokens."""
    import torch

    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pad)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(len(row))
        ids[i, place] = torch.tensor(row)
        mask[i, place] = 1
    return ids, mask


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
    """transformers with a static cache, which it then compiles by itself; not with beams."""

    name = "huggingface-static"
    options = {"cache_implementation": "static"}

    @classmethod
    def serves(cls, beams: int) -> bool:
        return beams == 1


class CTranslate2(TransformersText, Engine):
    """CTranslate2, on the CPU on the backend that it chooses; its bfloat16 is float32 there.

    On an EPYC with AVX-512 that is oneDNN; its documented switches did no better there: MKL
    (CT2_USE_MKL) took twice as long, AVX-512 (CT2_FORCE_CPU_ISA) as long.
    Of the model's own options it is told those that it has too (`options_of`).
    """

    name = "ctranslate2"
    libraries = ("ctranslate2",)
    dtypes = {"cpu": ("float32", "int8"), "cuda": ("float32", "float16", "bfloat16")}
    converts = True

    def __init__(self, task: Task, settings: Settings) -> None:
        import ctranslate2

        family = ctranslate2.Translator if task.has_encoder else ctranslate2.Generator
        self.engine = family(
            str(settings.converted),
            device=settings.device,
            compute_type=settings.dtype,
            inter_threads=1,
            intra_threads=settings.threads,
        )
        self.task = task
        self.version = f"ctranslate2 {ctranslate2.__version__}"

    @classmethod
    def convert(cls, task: Task, dtype: str, directory: Path) -> None:
        convert(task.directory, directory, dtype)

    def prepare(self, ids: Ids, search: Search) -> None:
        self.tokens = [list(map(str, row)) for row in ids]
        self.call = {
            "beam_size": search.beams,
            "return_scores": search.scores,
            **options_of(self.task.config),
        }
        if search.sample:
            self.call |= dict(zip(("sampling_topk", "sampling_topp"), search.sample, strict=True))
        length = "decoding_length" if self.task.has_encoder else "length"
        self.call |= {f"min_{length}": search.least, f"max_{length}": search.most}
        begin = self.task.config.forced_bos_token_id
        if not self.task.has_encoder:
            self.call |= {"include_prompt_in_result": False}
        elif begin is not None:
            self.call |= {"target_prefix": [[str(begin)]] * len(ids)}

    def generate(self) -> Answer:
        if self.task.has_encoder:
            found = self.engine.translate_batch(self.tokens, **self.call)
            rows = [list(map(int, result.hypotheses[0])) for result in found]
        else:
            found = self.engine.generate_batch(self.tokens, **self.call)
            rows = [result.sequences_ids[0] for result in found]
        return Answer(rows, [result.scores[0] for result in found if result.scores])


def options_of(config: GenerationConfig) -> dict[str, Any]:
    """A model's own options by CTranslate2's names."""
    return {
        "end_token": [str(token) for token in config.eos_token_id] or None,
        "length_penalty": config.length_penalty,
        "repetition_penalty": config.repetition_penalty,
        "no_repeat_ngram_size": config.no_repeat_ngram_size,
        "suppress_sequences": [list(map(str, words)) for words in config.bad_words_ids] or None,
    }


class Ours(TensorEngine):
    """This library."""

    name = "ours"
    libraries = ("torch", "decoding")
    dtypes = {
        "cpu": ("float32", "bfloat16", "int8"),
        "cuda": ("float32", "float16", "bfloat16"),
    }

    def __init__(self, task: Task, settings: Settings) -> None:
        import torch

        import decoding

        torch.set_num_threads(settings.threads)
        self.task, self.device = task, settings.device
        self.model = decoding.load(
            task.directory, device=settings.device, dtype=settings.dtype, threads=settings.threads
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
        return [self.tokenizer.decode(row) for row in rows]


ENGINES: dict[str, type[Engine]] = {
    engine.name: engine for engine in (HuggingFace, HuggingFaceStatic, CTranslate2, Ours)
}


def installed(names: Sequence[str]) -> list[type[Engine]]:
    """Those whose libraries are there; warns of the others."""
    found = []
    for name in names:
        libraries = dict.fromkeys(full.split(".")[0] for full in ENGINES[name].libraries)
        missing = [library for library in libraries if not find_spec(library)]
        if missing:
            said = f"{name} is left out: {' and '.join(missing)} not installed"
            warnings.warn(f"{said}, pip install decoding[compare]", stacklevel=2)
        else:
            found.append(ENGINES[name])
    return found
