"""The engines that are compared, behind one face: load a directory, generate.

Libraries are imported when an engine is loaded, so that one that is not installed is missing from
the comparison, by name, and does not stop it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.workloads import SOURCE, STEPS, Workload

Ids = Sequence[Sequence[int]]


class Engine(ABC):
    """A loaded model. `libraries` are imported before its memory is counted.

    version, isa: of what computes; isa is "" where the library does not tell.
    """

    name: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]]
    version: str
    isa: str

    @abstractmethod
    def __init__(self, directory: Path, workload: Workload, threads: int) -> None: ...

    @abstractmethod
    def prepare(self, ids: Ids, beams: int) -> None:
        """Brings the input of the next calls into the library's own form."""

    @abstractmethod
    def generate(self) -> list[list[int]]:
        """The STEPS new tokens of the best row of each sentence."""


class TensorEngine(Engine):
    """What takes and returns tensors, by the names of transformers' generate()."""

    model: Any
    given: int  # tokens of a row that were not generated

    def prepare(self, ids: Ids, beams: int) -> None:
        import torch

        self.ids = torch.tensor(ids)
        self.mask = torch.ones_like(self.ids)
        self.beams = beams

    def generate(self) -> list[list[int]]:
        rows = self.model.generate(
            self.ids,
            attention_mask=self.mask,
            num_beams=self.beams,
            do_sample=False,
            min_new_tokens=STEPS,
            max_new_tokens=STEPS,
        )
        tokens: list[list[int]] = rows[:, self.given :].tolist()
        return tokens


class HuggingFace(TensorEngine):
    """transformers in float32: eager, dynamic cache, its default (SDPA) attention.

    A static cache with torch.compile is documented too, but does not serve beams.
    """

    name = "huggingface"
    libraries = (
        "torch",
        "transformers.models.marian.modeling_marian",
        "transformers.models.gpt2.modeling_gpt2",
    )

    def __init__(self, directory: Path, workload: Workload, threads: int) -> None:
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(threads)
        family = (
            transformers.MarianMTModel if workload.has_encoder else transformers.GPT2LMHeadModel
        )
        self.model = family.from_pretrained(directory, dtype=torch.float32).eval()
        self.given = 1 if workload.has_encoder else SOURCE
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self.isa = torch.backends.cpu.get_cpu_capability().lower()


class CTranslate2(Engine):
    """CTranslate2 in float32, on the backend that it chooses for this CPU.

    On an EPYC with AVX-512 that is oneDNN; its documented switches did no better there: MKL
    (CT2_USE_MKL) took twice as long, AVX-512 (CT2_FORCE_CPU_ISA) as long.
    """

    name = "ctranslate2"
    libraries = ("ctranslate2",)

    def __init__(self, directory: Path, workload: Workload, threads: int) -> None:
        import ctranslate2

        family = ctranslate2.Translator if workload.has_encoder else ctranslate2.Generator
        self.engine = family(
            str(converted(directory)),
            device="cpu",
            compute_type="float32",
            inter_threads=1,
            intra_threads=threads,
        )
        self.has_encoder = workload.has_encoder
        self.version = f"ctranslate2 {ctranslate2.__version__}"
        self.isa = ""

    def prepare(self, ids: Ids, beams: int) -> None:
        self.tokens = [[str(token) for token in row] for row in ids]
        self.beams = beams

    def generate(self) -> list[list[int]]:
        if self.has_encoder:
            found = self.engine.translate_batch(
                self.tokens,
                beam_size=self.beams,
                min_decoding_length=STEPS,
                max_decoding_length=STEPS,
                return_scores=False,
            )
            return [[int(token) for token in result.hypotheses[0]] for result in found]
        found = self.engine.generate_batch(
            self.tokens,
            beam_size=self.beams,
            min_length=STEPS,
            max_length=STEPS,
            include_prompt_in_result=False,
            return_scores=False,
        )
        return [result.sequences_ids[0] for result in found]


class Ours(TensorEngine):
    """This library."""

    name = "ours"
    libraries = ("torch", "decoding")

    def __init__(self, directory: Path, workload: Workload, threads: int) -> None:
        import torch

        import decoding

        torch.set_num_threads(threads)
        self.model = decoding.load(directory, device="cpu", threads=threads)
        self.given = 1 if workload.has_encoder else SOURCE
        self.version = f"decoding {decoding.__version__}, torch {torch.__version__}"
        self.isa = self.model.isa


ENGINES: dict[str, type[Engine]] = {e.name: e for e in (HuggingFace, CTranslate2, Ours)}


def missing(engine: type[Engine]) -> list[str]:
    """The libraries of this engine that are not installed."""
    return [
        name for name in {full.split(".")[0] for full in engine.libraries} if not find_spec(name)
    ]


def converted(directory: Path) -> Path:
    """Where the CTranslate2 model of a transformers directory lies."""
    return directory / "ctranslate2"


def convert(directory: Path) -> None:
    """Writes the CTranslate2 model of the transformers model in `directory`.

    The library's own converter does it; only the tokenizer, which random weights do not have, is
    made up: token i is called "i".
    """
    from ctranslate2.converters import TransformersConverter

    class Converter(TransformersConverter):  # type: ignore[misc]
        def load_tokenizer(self, *_: Any, **__: Any) -> NumberedTokens:
            return NumberedTokens(directory)

    Converter(str(directory)).convert(str(converted(directory)), quantization="float32")


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
