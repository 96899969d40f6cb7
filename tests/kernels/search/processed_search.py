"""A search in the middle, whose scores are processed by our kernels and by the logits processors of
transformers, and of OpenAI's penalties in plain torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers.generation import (
    EncoderRepetitionPenaltyLogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)
from transformers.generation.utils import GenerationMixin

from decoding import _C
from decoding import _kernels as kernels
from decoding.generation import processors
from decoding.generation.batching import TokenBatch
from decoding.generation.config import OPTIONS, GenerationConfig
from tests.conftest import Place
from tests.search.count_penalties import CountPenalties
from tests.support.active import active_sentences

INF = float("inf")
# Those that come before the penalties of what was generated.
BEFORE_COUNTS = (
    SequenceBiasLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)


def config_of(options: dict[str, Any]) -> GenerationConfig:
    """Resolved, with two end tokens."""
    given = {"eos_token_id": [3, 11], **options}
    defaults = {name: option["default"] for name, option in OPTIONS.items()}
    return GenerationConfig(
        **defaults | {name: OPTIONS[name]["check"](name, value) for name, value in given.items()}
    )


def ints(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclass
class Search:
    """A search in the middle: random beams over random texts of few tokens, so that much repeats.

    The beams' history and its two indirection tables are as beam_step leaves them before step
    `step`.
    """

    seed: int
    step: int = 9
    sentences: int = 3
    beams: int = 2
    width: int = 4  # of the prompts
    vocab: int = 75
    used: int = 6  # tokens that texts have
    base: int = 2  # position of the prompt's last token
    max_new: list[int] = field(default_factory=list)  # of each sentence
    forced_first: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.seed)
        total, target = self.sentences * self.beams + 3, self.step + 2  # some slots are unused
        self.prompt = draw.integers(0, self.used, (self.sentences, self.width))
        self.masked = draw.integers(0, self.width, self.sentences)  # leading columns of each
        self.mask = np.arange(self.width) >= self.masked[:, None]
        self.prompt[~self.mask] = 1  # pad
        self.source = draw.integers(0, self.used, (self.sentences, 7))
        self.max_new = self.max_new or [30] * self.sentences
        self.forced_first = self.forced_first or [-1] * self.sentences
        chosen = draw.permutation(self.sentences)[: max(1, self.sentences - 1)]
        self.active = sorted(chosen.tolist())
        rows = [
            row for b in range(self.sentences) for row in [self.prompt[b].tolist()] * self.beams
        ]
        tokens = np.full((target, total), -7)
        slots = np.tile(np.arange(total)[:, None], (2, 1, self.base + target))
        for j in range(1, self.step):
            parents = [
                b * self.beams + k
                for b in range(self.sentences)
                for k in draw.integers(0, self.beams, self.beams)
            ]
            chosen = draw.integers(0, self.used, len(rows))
            rows = [
                rows[parent] + [int(token)] for parent, token in zip(parents, chosen, strict=True)
            ]
            now, after, position = slots[j % 2], slots[(j + 1) % 2], self.base + j - 1
            for slot, parent in enumerate(parents):
                after[slot, :position] = now[parent, :position]
                after[slot, position] = parent
            tokens[j - 1, : len(rows)] = chosen
        slots[(self.step + 1) % 2] = -9  # the table of the next step is not there yet
        at = [b * self.beams + k for b in self.active for k in range(self.beams)]
        self.rows = torch.tensor([rows[slot] for slot in at])  # [active rows, width + step - 1]
        reads = tokens[self.step - 2, at] if self.step > 1 else self.rows[:, -1]
        unused = [0] * (self.sentences - len(self.active))
        self.state = {
            "state": ints([self.step, len(self.active)]),
            "active": active_sentences(
                [*self.active, *unused], self.step, self.base + self.step - 1
            ),
            "ids": ints([*reads, *[-5] * (total - 3 - len(at))]),
            "tokens": ints(tokens),
            "cache_indirection": ints(slots),
        }

    def logits(self, *, seed: int = 0) -> Tensor:
        """[rows, V]; rows of sentences that are not active hold NaN."""
        generator = torch.Generator().manual_seed(1000 * self.seed + seed)
        x = 3 * torch.randn(self.sentences * self.beams, self.vocab, generator=generator)
        x[len(self.rows) :] = float("nan")
        return x

    def process(
        self, logits: Tensor, options: dict[str, Any], place: Place, **named: Any
    ) -> tuple[Tensor, Tensor, list[float]]:
        """(scores, lse, again) of the active rows."""
        config = config_of(options)
        request = _C.Request(
            sentences=self.sentences,
            max_new=1,
            min_new=config.min_new_tokens or 0,
            eos=sorted(set(config.eos_token_id)),
            forced_last=sorted(set(config.forced_eos_token_id)),
            **processors.processors(config),
            **processors.texts(TokenBatch(self.prompt, self.mask), TokenBatch(self.source, None)),
        )
        stride = -(-self.vocab // 8) * 8  # on a GPU rows begin on 16 bytes

        def there(x: Tensor, dtype: torch.dtype = place.dtype) -> Tensor:
            padded = torch.full((len(x), stride), float("nan"))
            padded[:, : self.vocab] = x
            return padded.to(place.device, dtype)

        if "unconditional" in named:
            named["unconditional"] = there(named["unconditional"])
        if "scores" in named:
            named["scores"] = there(named["scores"], torch.float32)
        scores, lse, again = kernels.process_logits(
            there(logits),
            request,
            list(zip(self.max_new, self.forced_first, strict=True)),
            {name: value.to(place.device) for name, value in self.state.items()},
            vocab=self.vocab,
            beams=self.beams,
            isa=place.isa,
            threads=2,
            **named,
        )
        kept = slice(0, len(self.rows))
        return scores[kept, : self.vocab].cpu(), lse[kept].cpu(), again

    def expected(self, logits: Tensor, options: dict[str, Any], *, competing: bool) -> Tensor:
        """By Hugging Face's processors, in the order in which generate() puts them, the sentences
        one by one, as each has a length and a forced token of its own."""
        x = logits[: len(self.rows)].float()
        x = x.log_softmax(-1) if competing else x
        scores = []
        for i, sentence in enumerate(self.active):
            mine = slice(i * self.beams, (i + 1) * self.beams)
            found = self.theirs(sentence, options)(self.rows[mine], x[mine].clone())
            scores.append(found)
        return torch.cat(scores)

    def theirs(self, sentence: int, options: dict[str, Any]) -> LogitsProcessorList:
        forced, options = self.forced_first[sentence], dict(options)
        penalties = [options.pop(f"{name}_penalty", 0.0) for name in ("frequency", "presence")]
        config = transformers.GenerationConfig(
            **options,
            num_beams=self.beams,
            max_length=self.width + self.max_new[sentence],
            forced_bos_token_id=forced if forced >= 0 else None,
        )
        config._eos_token_tensor = torch.tensor([3, 11])
        mask = torch.from_numpy(self.mask[sentence]).long().expand(self.beams, -1)
        found = GenerationMixin._get_logits_processor(
            SimpleNamespace(
                config=SimpleNamespace(is_encoder_decoder=False),
                _merge_criteria_processor_list=lambda default, _: default,
            ),
            config,
            input_ids_seq_length=self.width,
            encoder_input_ids=torch.from_numpy(self.source[sentence : sentence + 1]),
            model_kwargs={"attention_mask": mask},
            device="cpu",
        )
        if any(penalties):
            place = sum(isinstance(each, BEFORE_COUNTS) for each in found)
            found.insert(place, CountPenalties(self.width, *penalties))
        return found
