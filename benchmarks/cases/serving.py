"""Workloads of serving: models, the requests that clients send, and what a good answer keeps."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cases import texts, workloads
from benchmarks.load import LLAMA
from benchmarks.online.base import Job
from benchmarks.online.client import Limits

DEMO = Path(__file__).parent.parent.parent / "models/demo"
NEW = 32  # new tokens of a translation by random weights, as many as a newspaper sentence has
SOURCES = (8, 56)  # tokens of sources where no text is given

# Configurations of transformers, for weights as it initialises them; positions for long prompts.
CAUSAL: dict[str, dict[str, Any]] = {
    "llama-1B": LLAMA | {"max_position_embeddings": 8192},
    "llama-small": LLAMA
    | {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6}
    | {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 32000},
    "qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
}
TRANSLATION = {"cpu": Limits(e2e=2.0), "cuda": Limits(e2e=0.2)}
GENERATION = {"cpu": Limits(ttft=2.0, tpot=0.2), "cuda": Limits(ttft=0.2, tpot=0.02)}

# count, prefixes of texts (texts.py) or none: the jobs
Draw = Callable[[int, Sequence[Path]], list[Job]]


@dataclass(frozen=True)
class Workload:
    """model: of WORKLOADS, of CAUSAL, or "demo". limits, dtypes: by device. stream: clients read
    tokens as they come; the others, as those of translation, wait for whole answers."""

    model: str
    draw: Draw
    limits: dict[str, Limits]
    stream: bool
    dtypes: dict[str, str] = field(default_factory=lambda: {"cpu": "float32", "cuda": "float16"})

    @property
    def has_encoder(self) -> bool:
        sizes = workloads.WORKLOADS.get(self.model)
        return self.model == "demo" or (sizes is not None and sizes.has_encoder)


def lines(model: str, beams: int) -> Draw:
    """Random sources, as long as the lines of the texts; NEW tokens each, since no engine but ours
    can end the rows of one batch of beams where it is told to."""

    def draw(count: int, prefixes: Sequence[Path]) -> list[Job]:
        rng = random.Random(workloads.SEED)
        lengths = [len(line) for line in sources(count, prefixes)] if prefixes else None
        lengths = lengths or [rng.randint(*SOURCES) for _ in range(count)]
        vocabulary = workloads.WORKLOADS[model].vocabulary
        return [Job(ids(rng, length, vocabulary), NEW, beams) for length in lengths]

    return draw


def demo(beams: int) -> Draw:
    """The lines of texts, translated to their ends."""

    def draw(count: int, prefixes: Sequence[Path]) -> list[Job]:
        if not prefixes:
            raise ValueError("the demo model translates a text: give one with --text")
        return [Job(row, 256, beams, ends=True) for row in sources(count, prefixes)]

    return draw


def sources(count: int, prefixes: Sequence[Path]) -> list[list[int]]:
    """The first lines of the texts, in the demo model's tokens."""
    from decoding.compare.task import Task

    tokenizer = Task.read(DEMO).load_tokenizer()
    found = texts.joined(texts.read(prefixes, count)).sources
    return [tokenizer.encode(line) for line in found]


def texts_of_words(count: int, prefixes: Sequence[Path]) -> list[Job]:
    """For GPT-2 with WORDS, whose random weights hardly ever end a text by themselves."""
    rng = random.Random(workloads.SEED)
    vocabulary = workloads.WORKLOADS["gpt2-124M"].vocabulary
    return [
        Job(ids(rng, rng.randint(16, 128), vocabulary), rng.randint(8, 64), ends=True)
        for _ in range(count)
    ]


def prompts(given: tuple[int, int], new: tuple[int, int]) -> Draw:
    """For GPT-2: prompts and answers of random lengths between these."""

    def draw(count: int, prefixes: Sequence[Path]) -> list[Job]:
        rng = random.Random(workloads.SEED)
        vocabulary = workloads.WORKLOADS["gpt2-124M"].vocabulary
        return [
            Job(ids(rng, rng.randint(*given), vocabulary), rng.randint(*new)) for _ in range(count)
        ]

    return draw


def nano_vllm(count: int, prefixes: Sequence[Path]) -> list[Job]:
    """The requests of nano-vllm's bench.py, seed 0: 100 to 1024 tokens, as many new ones. 256 of
    them have 142,827 and 133,966 tokens, as there."""
    rng = random.Random(0)
    rows = [[rng.randint(0, 10000) for _ in range(rng.randint(100, 1024))] for _ in range(count)]
    return [Job(row, rng.randint(100, 1024)) for row in rows]


def ids(rng: random.Random, length: int, vocabulary: int) -> list[int]:
    """No end or padding token among them."""
    return [rng.randrange(2, vocabulary - 1) for _ in range(length)]


WORDS = "gpt2-124M with words"  # token 17 is the text "w17", so that servers can be asked
BFLOAT16 = {"cpu": "bfloat16", "cuda": "bfloat16"}
SERVING = {
    **{
        f"{model}-{beams}": Workload(model, lines(model, beams), TRANSLATION, stream=False)
        for model, beams in (
            ("marian-base", 1),
            ("marian-base", 4),
            ("marian-big", 4),
            ("nllb-600M", 4),
        )
    },
    "demo-1": Workload("demo", demo(1), TRANSLATION, stream=False),
    "demo-4": Workload("demo", demo(4), TRANSLATION, stream=False),
    "gpt2-short": Workload("gpt2-124M", prompts((16, 128), (8, 64)), GENERATION, stream=True),
    "gpt2-words": Workload(WORDS, texts_of_words, TRANSLATION, stream=False),
    "gpt2-124M": Workload("gpt2-124M", prompts((32, 512), (32, 256)), GENERATION, stream=True),
    "llama-1B": Workload("llama-1B", nano_vllm, GENERATION, stream=True, dtypes=BFLOAT16),
    "qwen3-0.6B": Workload("qwen3-0.6B", nano_vllm, GENERATION, stream=True, dtypes=BFLOAT16),
}


def save(model: str, directory: Path) -> Path:
    """Writes a model of random weights; returns where it is, which for the demo is elsewhere."""
    if model == "demo":
        return DEMO
    if model == WORDS:
        workloads.save(workloads.WORKLOADS["gpt2-124M"], directory)
        save_words(workloads.WORKLOADS["gpt2-124M"].vocabulary, directory)
    elif model in CAUSAL:
        save_causal(CAUSAL[model], directory)
    else:
        workloads.save(workloads.WORKLOADS[model], directory)
    return directory


def save_words(vocabulary: int, directory: Path) -> None:
    """A tokenizer of numbered words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{id}": id for id in range(vocabulary)}
    made = Tokenizer(models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(directory)


def save_causal(config: dict[str, Any], directory: Path) -> None:
    """In bfloat16."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(workloads.SEED)
    given = {name: value for name, value in config.items() if name != "model_type"}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    made = AutoConfig.for_model(config["model_type"], **given, **ends)
    AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16).save_pretrained(directory)
