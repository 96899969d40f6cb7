"""Options of generate() that the methods for texts do not take."""

from __future__ import annotations

from collections.abc import Iterable

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
IDS = ("attention_mask", "decoder_input_ids", "input_ids", "inputs")


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
