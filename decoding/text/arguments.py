"""Options of generate() that the methods for texts do not take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from decoding.generation.config import OPTIONS, GenerationConfig
from decoding.generation.option_names import nearest, plain
from decoding.generation.resolve import resolve

RESULTS = (
    "output_attentions",
    "output_logits",
    "output_scores",
    "output_sequences_scores",
    "return_dict_in_generate",
)
# What generate() calls in its steps: no options of a configuration.
FUNCTIONS = ("logits_processor", "prefix_allowed_tokens_fn", "stopping_criteria", "streamer")
WATCHES = ("cancel", "progress")  # nor are these
# Arguments of translation that generate() lacks, and what else they are called.
TRANSLATION = (
    "alignments",
    "batch_tokens",
    "n_best",
    "src_lang",
    "target_prefix",
    "tgt_lang",
    "truncate",
    "unique",
)
TRANSLATION_NAMES = {
    "batch_size": "batch_tokens",
    "callback": "progress",
    "max_batch_size": "batch_tokens",
    "max_input_length": "truncate",
    "n": "n_best",
    "num_hypotheses": "n_best",
    "num_samples": "n_best",
    "on_progress": "progress",
    "prefix": "target_prefix",
    "return_scores": "n_best",
    "source_lang": "src_lang",
    "target_lang": "tgt_lang",
    "truncation": "truncate",
}
IDS = ("attention_mask", "decoder_input_ids", "input_ids", "inputs")


def resolve_n_best(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> GenerationConfig:
    """resolve(), where n_best has set num_return_sequences: an error names what was passed."""
    try:
        return resolve(options, None, defaults)
    except ValueError as error:
        raise ValueError(str(error).replace("num_return_sequences", "n_best")) from None


def refuse(what: str, names: Iterable[str], *others: str) -> None:
    """Raises TypeError for an option among `names` that has no place here.

    what: translation, or another task, for the message. others: more options that it lacks.
    """
    for name in names:
        if name in others:
            raise TypeError(f"{what} has no option {name}: leave it out")
        if name in RESULTS:
            raise TypeError(f"{what} returns texts: {name} is for generate(), n_best adds scores")
        if name == "decoder_input_ids" and what == "translation":
            raise TypeError("translation begins with a text: pass target_prefix, no ids")
        if name in IDS:
            raise TypeError(f"{what} makes ids of its texts itself: {name} is for generate()")
        if name == "tokenizer":
            raise TypeError(f"{what} uses the model's own tokenizer: leave tokenizer out")
        if what == "translation" and name not in OPTIONS:
            meant = TRANSLATION_NAMES.get(plain(name)) or nearest(name, TRANSLATION)
            if meant:
                raise TypeError(f"translation has no option {name!r}; did you mean {meant!r}?")
