"""The calls whose answers are recorded: of every model a few, of two models all options."""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.golden.models import VOCAB, token_rows

Options = dict[str, Any]
ROWS = 5


@dataclass(frozen=True)
class Case:
    """One call of a model. method: of Model; options: beside the input ids."""

    name: str
    method: str = "generate"
    options: Options = field(default_factory=dict)


BASE: dict[str, Options] = {
    "greedy": {},
    "beam": {"num_beams": 4, "num_return_sequences": 4},
    "sample": {"do_sample": True, "seed": 7, "top_k": 20, "num_return_sequences": 2},
}
BEAM, SAMPLE = BASE["beam"], BASE["sample"]
GROUPS: Options = {
    "num_beams": 6,
    "num_beam_groups": 3,
    "diversity_penalty": 0.7,
    "num_return_sequences": 6,
}
CONSTRAINED: Options = {
    "num_beams": 4,
    "num_return_sequences": 4,
    "force_words_ids": [[7, 8], [[21], [9, 30]]],
}
CONTRASTIVE: Options = {"penalty_alpha": 0.6, "top_k": 4}
BEAM_SAMPLE: Options = {"do_sample": True, "seed": 9, "num_beams": 3, "num_return_sequences": 3}
NO_EOS: Options = {"eos_token_id": None, "pad_token_id": 5}
END_OFTEN: Options = BEAM | {"eos_token_id": list(range(3, 58, 4))}
SEARCHES: dict[str, Options] = {
    "beam early": BEAM | {"early_stopping": True},
    "beam ends often": END_OFTEN,
    "beam ends often early": END_OFTEN | {"early_stopping": True},
    "beam ends often never": END_OFTEN | {"early_stopping": "never", "length_penalty": 2.0},
    "beam never": BEAM | {"early_stopping": "never", "length_penalty": 1.4},
    "beam length_penalty 0": BEAM | {"length_penalty": 0.0},
    "beam length_penalty 2": BEAM | {"length_penalty": 2.0},
    "beam length_penalty -0.5": BEAM | {"length_penalty": -0.5},
    "beam patience": END_OFTEN | {"patience": 2.0, "early_stopping": True},
    "beam patience early": BEAM
    | {"patience": 0.5, "early_stopping": True, "num_return_sequences": 2},
    "beam gnmt": BEAM | {"length_normalization": "gnmt", "length_penalty": 0.8},
    "beam diversity_rate": BEAM | {"diversity_rate": 0.6},
    "beam scores alone": BEAM | {"output_scores": False, "output_sequences_scores": True},
    "beam wide": {"num_beams": 17, "num_return_sequences": 5},
    "beam one eos": BEAM | {"eos_token_id": 14},
    "beam no eos": BEAM | NO_EOS,
    "beam logits": BEAM | {"output_logits": True},
    "greedy logits": {"output_logits": True},
    "greedy no eos": NO_EOS | {"max_new_tokens": 20},
    "groups": GROUPS,
    "groups early": GROUPS | {"early_stopping": True, "length_penalty": 0.5},
    "groups of one": GROUPS | {"num_beam_groups": 6},
    "constrained": CONSTRAINED,
    "constrained one word": CONSTRAINED | {"force_words_ids": [[12]], "early_stopping": True},
    "contrastive": CONTRASTIVE,
    "contrastive 1": CONTRASTIVE | {"penalty_alpha": 1.0, "top_k": 7},
    "beam sample": BEAM_SAMPLE,
    "beam sample hot": BEAM_SAMPLE | {"temperature": 1.7, "length_penalty": 0.3},
}
PROCESSORS: dict[str, Options] = {
    "repetition_penalty": {"repetition_penalty": 1.4},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words_ids": {
        "bad_words_ids": [[5, 6], [9], [30, 31, 32], *([id] for id in range(10, 58, 6))]
    },
    "several": {
        "repetition_penalty": 0.8,
        "no_repeat_ngram_size": 1,
        "bad_words_ids": [[9]],
        "sequence_bias": {(12,): 1.0},
        "suppress_tokens": [30],
        "min_new_tokens": 4,
    },
    "sequence_bias": {"sequence_bias": {(7,): 2.5, (33, 34): 3.0, (12,): -2.0}},
    "forced eos": {"forced_eos_token_id": [3], "eos_token_id": 3},
    "min_new_tokens": {"min_new_tokens": 7},
    "min_length": {"min_length": 12},
    "exponential_decay": {"exponential_decay_length_penalty": (3, 1.3)},
    "suppress_tokens": {"suppress_tokens": [11, 12, 40], "begin_suppress_tokens": [25, 26]},
    "renormalize": {"renormalize_logits": True, "remove_invalid_values": True},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.5},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 2},
}
EVERYWHERE = ("repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "several")
FILTERS: dict[str, Options] = {
    "all": {"top_k": 0},
    "temperature": {"temperature": 0.6, "top_k": 9},
    "top_p": {"top_k": 0, "top_p": 0.8},
    "top_k top_p": {"temperature": 1.7, "top_k": 20, "top_p": 0.7},
    "top_h": {"top_k": 0, "top_h": 0.5},
    "min_p": {"top_k": 0, "min_p": 0.05},
    "typical_p": {"top_k": 0, "typical_p": 0.7},
    "epsilon_cutoff": {"top_k": 0, "epsilon_cutoff": 0.02},
    "eta_cutoff": {"top_k": 0, "eta_cutoff": 0.05},
}
EACH_ROW: dict[str, Options] = {
    "max_new_tokens": {"max_new_tokens": [3, 11, 7, 1, 9]},
    "sampling": {
        "do_sample": True,
        "seed": [4, 5, 6, 2**63, 4],
        "temperature": [0.5, 2.0, 1.0, 1.2, 0.9],
        "top_k": [0, 3, 20, 5, 50],
        "top_p": [1.0, 0.9, 0.5, 1.0, 0.8],
    },
}
ENCODER_DECODER: dict[str, Options] = {
    "forced bos": {"forced_bos_token_id": 21},
    "beam forced bos of each row": BEAM | {"forced_bos_token_id": [20, 21, 22, 23, 24]},
    "prompts": {"decoder_input_ids": token_rows([4, 2, 1, 3, 2], "prompts")},
    "beam prompts": BEAM | {"decoder_input_ids": token_rows([3] * ROWS, "prompts")},
    "attentions": {"output_attentions": True},
    "beam attentions": BEAM | {"output_attentions": True},
    "beam coverage": BEAM | {"coverage_penalty": 0.4},
}
DECODER_ONLY: dict[str, Options] = {
    "guidance": {"guidance_scale": 1.8},
    "sample guidance": SAMPLE | {"guidance_scale": 1.8},
    "no input": {"input_ids": None, "do_sample": True, "seed": 1, "num_return_sequences": 6},
}


class Letters:
    """A tokenizer in which each token is one letter: what stop strings are looked up in."""

    decoder = None

    def get_vocab(self) -> dict[str, int]:
        return {chr(ord("A") + id): id for id in range(VOCAB)} | {"abcdef": VOCAB}

    def encode(self, text: str, add_special_tokens: bool) -> Any:
        return types.SimpleNamespace(tokens=[text])


def lower_even_ids(ids: Tensor, scores: Tensor) -> Tensor:
    """A logits processor of a caller's."""
    scores[:, ::2] -= 0.5 * (ids.shape[1] % 3)
    return scores


def after_six(ids: Tensor, scores: Tensor) -> Tensor:
    """A stopping criterion of a caller's: rows whose last token is divisible by 6."""
    return ids[:, -1] % 6 == 0


STRINGS: Options = {"stop_strings": [chr(ord("A") + id) for id in range(4, 58, 5)] + ["PQ", "abc"]}
FUNCTIONS: dict[str, Options] = {
    "stop_strings": STRINGS | {"tokenizer": Letters()},
    "beam stop_strings": BEAM | STRINGS | {"tokenizer": Letters()},
    "logits_processor": {"logits_processor": [lower_even_ids]},
    "beam logits_processor": BEAM | {"logits_processor": [lower_even_ids]},
    "sample logits_processor": SAMPLE | {"logits_processor": [lower_even_ids]},
    "stopping_criteria": {"stopping_criteria": [after_six]},
    "beam prefix": BEAM
    | {"prefix_allowed_tokens_fn": lambda item, row: range(4 + int(row[-1]) % 5, 58, 2)},
}


def base_cases() -> list[Case]:
    """Of every model that generates. The plan is what the calls before it needed."""
    generate = [Case(name, options=options) for name, options in BASE.items()]
    return [*generate, Case("score", "score"), Case("plan", "memory_plan")]


def search_cases(encoder_decoder: bool) -> list[Case]:
    own = ENCODER_DECODER if encoder_decoder else DECODER_ONLY
    table = SEARCHES | FUNCTIONS | own
    for search, options in (("greedy", {}), ("beam", BEAM), ("sample", SAMPLE)):
        table |= {f"{search} {name}": options | more for name, more in PROCESSORS.items()}
    limited = {"groups": GROUPS, "constrained": CONSTRAINED, "contrastive": CONTRASTIVE}
    for search, options in limited.items():
        table |= {f"{search} {name}": options | PROCESSORS[name] for name in EVERYWHERE}
    for search, options in (("sample", SAMPLE), ("beam sample", BEAM_SAMPLE)):
        table |= {f"{search} {name}": options | more for name, more in FILTERS.items()}
    padded = padded_ids(left=not encoder_decoder)
    table |= {f"{name} padded": options | padded for name, options in BASE.items()}
    table |= {f"each row {name}": options for name, options in EACH_ROW.items()}
    table["beam each row max_new_tokens"] = BEAM | EACH_ROW["max_new_tokens"]
    cases = [Case(name, options=options) for name, options in table.items()]
    streams = [Case(f"stream {name}", "stream", options) for name, options in BASE.items()]
    return [*cases, *streams[:2], Case("plan after all", "memory_plan")]


def shortlist_cases(file: str) -> list[Case]:
    """file: of a shortlist."""
    return [
        Case(f"{name} shortlist", options=options | {"shortlist": file})
        for name, options in BASE.items()
    ]


def padded_ids(left: bool) -> Options:
    """Padding holds ordinary tokens, which the mask hides."""
    ids = torch.tensor(token_rows([9] * ROWS, "padded"))
    columns, padding = torch.arange(9), torch.arange(ROWS)[:, None]
    mask = columns >= padding if left else columns < 9 - padding
    return {"input_ids": ids, "attention_mask": mask.long()}
