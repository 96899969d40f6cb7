"""CTranslate2, called with numbers: token i is called "i" in the models of conversion.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from decoding.compare.engines.base import Answer, Engine, Settings
from decoding.compare.engines.conversion import convert
from decoding.compare.engines.huggingface import TransformersText
from decoding.compare.task import Ids, Search, Task
from decoding.generation.config import GenerationConfig


class CTranslate2(TransformersText, Engine):
    """CTranslate2, on the CPU with the backend that it chooses; its bfloat16 is float32 there. int8
    on a GPU is its int8_float16, which has activations in 16 bits as ours has.

    On an EPYC with AVX-512 that is oneDNN; its documented switches did no better there: MKL
    (CT2_USE_MKL) took twice as long, AVX-512 (CT2_FORCE_CPU_ISA) as long.
    It is given those of the model's own options that it has too (`options_of`).
    """

    name = "ctranslate2"
    libraries = ("ctranslate2",)
    dtypes = {"cpu": ("float32", "int8"), "cuda": ("float32", "float16", "bfloat16", "int8")}
    converts = True

    def __init__(self, task: Task, settings: Settings) -> None:
        import ctranslate2

        family = ctranslate2.Translator if task.has_encoder else ctranslate2.Generator
        self.engine = family(
            str(settings.converted),
            device=settings.device,
            compute_type=compute_type(settings.device, settings.dtype),
            inter_threads=1,
            intra_threads=settings.threads,
        )
        self.task, self.settings = task, settings
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
        if search.least == search.most:
            # No end at all: its min_length does not count in beam search where prompts of a batch
            # have different lengths.
            ends = [[str(token)] for token in self.task.config.eos_token_id]
            self.call["suppress_sequences"] = [*(self.call["suppress_sequences"] or []), *ends]
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


def compute_type(device: str, dtype: str) -> str:
    return "int8_float16" if device != "cpu" and dtype == "int8" else dtype


def options_of(config: GenerationConfig) -> dict[str, Any]:
    """A model's own options by CTranslate2's names."""
    return {
        "end_token": [str(token) for token in config.eos_token_id] or None,
        "length_penalty": config.length_penalty,
        "repetition_penalty": config.repetition_penalty,
        "no_repeat_ngram_size": config.no_repeat_ngram_size,
        "suppress_sequences": [list(map(str, words)) for words in config.bad_words_ids] or None,
    }
