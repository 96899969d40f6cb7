"""The grammar of tests/fuzz/generate.py: calls of generate(), of all that transformers has too."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import tokenizers
import torch
import transformers
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList

from tests.support.random_models import GPT2, MARIAN, reference

PER_ROW = ("max_new_tokens", "forced_bos_token_id", "temperature", "top_k", "top_p")
PENALTIES = (0.5, 0.8, 1.2, 1.7, 3.0)


@dataclass(frozen=True)
class Case:
    """A call of generate()."""

    model: str
    ids: list[list[int]]
    mask: list[list[int]] | None
    prompt: list[list[int]] | None  # decoder_input_ids
    options: dict[str, Any]
    functions: dict[str, Any] = field(default_factory=dict)
    row_by_row: bool = (
        False  # the reference runs each row alone: options of each row, ragged prompts
    )

    @property
    def inputs(self) -> dict[str, Any]:
        named = {"input_ids": self.ids, "attention_mask": self.mask}
        return {name: torch.tensor(rows) for name, rows in named.items() if rows is not None}

    def row(self, i: int) -> Case:
        """The call of one row."""
        own = {name: value[i] for name, value in self.options.items() if isinstance(value, Each)}
        return Case(
            self.model,
            [self.ids[i]],
            None if self.mask is None else [self.mask[i]],
            None if self.prompt is None else [self.prompt[i]],
            self.options | own,
            self.functions,
        )


class Each(list):
    """A value of an option for each row."""


class Draw:
    """Draws a case."""

    def __init__(self, seed: int, number: int) -> None:
        self.rng = random.Random(f"{seed} {number}")
        family = self.rng.choice([MARIAN, GPT2])
        self.model = self.rng.choice(list(family))
        self.encoder = family is MARIAN
        self.config = reference(self.model).config
        self.vocab: int = getattr(self.config, "decoder_vocab_size", None) or self.config.vocab_size

    def chance(self, one_in: int) -> bool:
        return self.rng.randrange(one_in) == 0

    def token(self) -> int:
        return self.rng.randrange(self.vocab)

    def tokens(self, most: int) -> list[int]:
        return [self.token() for _ in range(self.rng.randint(1, most))]

    def case(self) -> Case:
        rng = self.rng
        batch, width = rng.randint(1, 4), rng.randint(1, 8)
        ids = [[rng.randrange(self.config.vocab_size) for _ in range(width)] for _ in range(batch)]
        mask = None if self.chance(3) else [self.mask(width) for _ in range(batch)]
        prompt = self.prompt(batch) if self.encoder and self.chance(4) else None
        start = 1 if prompt is None else len(prompt[0]) + 1
        options = self.lengths(start if self.encoder else width) | self.named_tokens()
        options |= self.processors(ids)
        kind = rng.choice(["greedy", "beams", "beams", "sample"])
        if kind == "beams" or (kind == "sample" and self.chance(3)):
            options |= self.beams()
        if kind == "sample":
            options |= self.filters() | {"max_new_tokens": 1}
        case = Case(self.model, ids, mask, prompt, options, self.functions())
        if self.chance(6):
            case = self.each(case, batch)
        return self.possible(case)

    def mask(self, width: int) -> list[int]:
        """A row padded on the left or, with an encoder, anywhere."""
        tokens = self.rng.randint(1, width)
        row = [0] * (width - tokens) + [1] * tokens
        if self.encoder:
            row = self.rng.choice([row, row[::-1], self.rng.sample(row, width)])
        return row

    def prompt(self, batch: int) -> list[list[int]]:
        width = self.rng.randint(1, 3)
        rows = [[self.token() for _ in range(width)] for _ in range(batch)]
        if self.chance(2):
            rows = [[self.config.decoder_start_token_id, *row] for row in rows]
        return rows

    def lengths(self, width: int) -> dict[str, Any]:
        rng, options = self.rng, dict[str, Any]()
        kind = rng.choice(["max_new_tokens", "max_length", "both", "neither"])
        if kind in ("max_new_tokens", "both"):
            options["max_new_tokens"] = rng.randint(1, 12)
        if kind in ("max_length", "both"):
            options["max_length"] = width + rng.randint(1, 12)
        minimum = rng.choice([None, None, "min_length", "min_new_tokens"])
        if minimum is not None:
            options[minimum] = rng.randint(0, 8) + (width if minimum == "min_length" else 0)
        return options

    def named_tokens(self) -> dict[str, Any]:
        """Options that name token ids."""
        options: dict[str, Any] = {}
        if self.chance(3):
            eos = [self.token(), self.tokens(3), -1, None]
            options["eos_token_id"] = self.rng.choice(eos)
        if self.chance(6):
            options["pad_token_id"] = self.token()
        if self.chance(8):
            options["forced_bos_token_id"] = self.token()
        if self.chance(8):
            several = self.tokens(3) if self.chance(4) else self.token()
            options["forced_eos_token_id"] = several
        return options

    def words(self, ids: list[list[int]]) -> list[list[int]]:
        """Words that rows are likely to hold: their first tokens stand in the batch."""
        seen = [i for row in ids for i in row if i < self.vocab]
        words = []
        for _ in range(self.rng.randint(1, 12)):
            length = self.rng.choice([1, 2, 2, 3])
            words.append([self.rng.choice([*seen, self.token()]) for _ in range(length - 1)])
            words[-1].append(self.token())
        return words

    def processors(self, ids: list[list[int]]) -> dict[str, Any]:
        rng = self.rng
        choices: dict[str, Any] = {
            "sequence_bias": lambda: [[w, rng.uniform(-6, 6)] for w in self.words(ids)],
            "encoder_repetition_penalty": lambda: rng.choice(PENALTIES),
            "repetition_penalty": lambda: rng.choice(PENALTIES),
            "no_repeat_ngram_size": lambda: rng.randint(1, 4),
            "encoder_no_repeat_ngram_size": lambda: rng.randint(1, 3),
            "bad_words_ids": lambda: self.words(ids),
            "remove_invalid_values": lambda: True,
            "exponential_decay_length_penalty": lambda: (rng.randint(0, 5), rng.uniform(1, 1.6)),
            "suppress_tokens": lambda: self.tokens(8),
            "begin_suppress_tokens": lambda: self.tokens(8),
            "renormalize_logits": lambda: True,
        }
        if not self.encoder:
            choices["guidance_scale"] = lambda: rng.choice([0.5, 1.5, 3])
        return {name: value() for name, value in choices.items() if self.chance(8)}

    def beams(self) -> dict[str, Any]:
        beams = self.rng.randint(2, 5)
        options = {
            "num_beams": beams,
            "num_return_sequences": self.rng.randint(1, beams),
            "length_penalty": self.rng.choice([None, 1.0, 0.0, -1.0, 2.0, 0.6, -0.3]),
            "early_stopping": self.rng.choice([None, True, False, "never"]),
        }
        return {name: value for name, value in options.items() if value is not None}

    def filters(self) -> dict[str, Any]:
        rng = self.rng
        choices: dict[str, Any] = {
            "temperature": lambda: rng.uniform(0.3, 2),
            "top_k": lambda: rng.choice([None, rng.randint(1, 60)]),
            "top_p": lambda: rng.uniform(0.1, 1),
            "top_h": lambda: rng.uniform(0.1, 1),
            "min_p": lambda: rng.uniform(0, 0.4),
            "typical_p": lambda: rng.uniform(0.1, 1),
            "epsilon_cutoff": lambda: rng.uniform(0.001, 0.2),
            "eta_cutoff": lambda: rng.uniform(0.001, 0.2),
        }
        options = {name: value() for name, value in choices.items() if self.chance(3)}
        return options | {"do_sample": True, "seed": rng.getrandbits(64)}

    def functions(self) -> dict[str, Any]:
        functions: dict[str, Any] = {}
        if self.chance(10):
            functions["logits_processor"] = LogitsProcessorList([Favourite(self.token())])
        if self.chance(10):
            criterion = EndsWith(self.rng.randint(2, 20))
            functions["stopping_criteria"] = StoppingCriteriaList([criterion])
        if self.chance(10):
            functions["prefix_allowed_tokens_fn"] = Allowed(self.vocab, self.rng.randint(5, 20))
        if self.chance(8):
            functions["tokenizer"] = tokenizer()
            letters = [self.rng.choices("abc", k=self.rng.randint(1, 5)) for _ in range(3)]
            functions["stop_strings"] = ["".join(word) for word in letters]
        return functions

    def each(self, case: Case, batch: int) -> Case:
        """Options of each row, and prompts of different lengths."""
        values = {
            "max_new_tokens": lambda: self.rng.randint(1, 12),
            "forced_bos_token_id": self.token,
            "temperature": lambda: self.rng.uniform(0.3, 2),
            "top_k": lambda: self.rng.randint(0, 60),
            "top_p": lambda: self.rng.uniform(0.1, 1),
        }
        names = [n for n in PER_ROW if n in case.options or n == "max_new_tokens"]
        if "do_sample" in case.options:
            names.remove("max_new_tokens")
        options = {name: Each(values[name]() for _ in range(batch)) for name in names}
        prompt = case.prompt
        if prompt is not None and not case.functions:
            start = self.config.decoder_start_token_id
            prompt = [[start, *self.tokens(4)] for _ in range(batch)]
        return replace(case, options=case.options | options, prompt=prompt, row_by_row=True)

    def possible(self, case: Case) -> Case:
        """What both accept: changes the few cases that one of them refuses."""
        options, functions = dict(case.options), dict(case.functions)
        suppressed = set(options.get("suppress_tokens", ()))
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            if suppressed & set(as_list(options.get(name))):
                options.pop("suppress_tokens", None)
        # Without a mask padding is known by its id, and on the right we refuse it.
        pad = options.get("pad_token_id", self.config.pad_token_id)
        mask = case.mask
        if not self.encoder and mask is None and any(row[-1] == pad for row in case.ids):
            mask = [[1] * len(row) for row in case.ids]
        # Without an EOS transformers goes on with rows that a criterion ended until all have.
        endless = not [i for i in as_list(options.get("eos_token_id", 0)) if i >= 0]
        ends = {"stopping_criteria", "stop_strings"} & functions.keys()
        alone = case.row_by_row or (bool(ends) and endless)
        prompt = case.prompt
        if alone and prompt is not None:  # the start token is given to no row or to all
            prompt = [[self.config.decoder_start_token_id, *row[1:]] for row in prompt]
        if "do_sample" in options and "prefix_allowed_tokens_fn" in functions:
            del functions["prefix_allowed_tokens_fn"]  # with bans nothing may be left to draw
        if "do_sample" in options:
            options.pop("remove_invalid_values", None)  # all that is banned would tie
            if set(options.get("begin_suppress_tokens", ())) & set(
                as_list(options.get("forced_eos_token_id"))
            ):
                del options["forced_eos_token_id"]  # the one step would have nothing to draw
        if "num_beams" in options:  # transformers does not move the beams of its other pass
            options.pop("guidance_scale", None)
        if self.vocab < self.config.vocab_size:  # the source's ids are none of the decoder's
            options.pop("encoder_repetition_penalty", None)
            options.pop("encoder_no_repeat_ngram_size", None)
        # transformers fails without an EOS, and a banned one is at the end of float32's range then.
        if endless or options.get("remove_invalid_values"):
            options.pop("exponential_decay_length_penalty", None)
        return Case(case.model, case.ids, mask, prompt, options, functions, alone)


class Favourite(transformers.LogitsProcessor):
    """Likes one token more, the longer the row."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        scores[:, self.token] += 0.3 * input_ids.shape[1]
        return scores


class EndsWith(transformers.StoppingCriteria):
    """Ends rows behind every n-th token."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return input_ids[:, -1] % self.n == 1


class Allowed:
    """A few tokens, by the newest one and the row."""

    def __init__(self, vocab: int, count: int) -> None:
        self.vocab, self.count = vocab, count

    def __call__(self, item: int, row: Tensor) -> list[int]:
        first = int(row[-1]) * 7 + len(row)
        return sorted({(first + 11 * i) % self.vocab for i in range(self.count)})


@cache
def tokenizer() -> Any:
    """Tokens of a few letters for the ids that the models like best."""
    rng = random.Random(0)
    texts = ["abcdef", "?"]
    while len(texts) < 300:
        text = "".join(rng.choices("abc ", k=rng.randint(1, 5)))
        texts += [] if text in texts else [text]
    model = tokenizers.models.WordLevel({t: i for i, t in enumerate(texts)}, unk_token="?")
    backend = tokenizers.Tokenizer(model)
    backend.decoder = tokenizers.decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend)


def as_list(value: Any) -> list[int]:
    return value if isinstance(value, list) else [] if value is None else [value]
