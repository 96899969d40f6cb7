"""OpenNMT-py's checkpoints (Klein et al. 2017), of its versions 1 to 3.

`model` and `generator` hold the tensors, `opt` the options, `vocab` the vocabularies: lists of
tokens in version 3, torchtext's objects before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decoding.models.formats.foreign import Foreign, plain
from decoding.models.weights.lazy import stored_in

GAIN_OR_BIAS = {"a_2": "weight", "b_2": "bias"}  # of the norms, until version 1.0


def read(path: Path, content: Mapping[str, Any]) -> Foreign:
    vocab = content["vocab"]
    try:
        source, target = tokens_of(vocab, "src"), tokens_of(vocab, "tgt")
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: vocab is of no known layout: {error!r}") from error
    start = vocab.get("decoder_start_token", "<s>") if isinstance(vocab, dict) else "<s>"
    config = plain(vars(content["opt"]))
    config |= {"model_type": "opennmt", "vocabularies": {"src": source, "tgt": target}}
    ids = {token: number for number, token in enumerate(target)}
    for token in (start, "</s>", "<blank>"):
        if token not in ids:
            raise ValueError(f"{path}: the target's vocabulary has no {token!r}")
    generation = {
        "bos_token_id": ids.get("<s>"),
        "decoder_start_token_id": ids[start],
        "eos_token_id": ids["</s>"],
        "num_beams": 5,
        "pad_token_id": ids["<blank>"],
    }
    state = {renamed(name): tensor for name, tensor in content["model"].items()}
    for name, tensor in (content["generator"] or {}).items():
        state["generator." + name.removeprefix("0.")] = tensor
    return Foreign("OpenNMTTransformer", config, generation, stored_in(path, state), path.parent)


def tokens_of(vocab: Any, side: str) -> list[str]:
    """The tokens of one side, in the order of their ids."""
    if not isinstance(vocab, dict):  # version 0: pairs of a side and torchtext's Vocab
        vocab = dict(vocab)
    found = vocab[side]
    if hasattr(found, "fields"):  # versions 1 and 2: the tokens, then features of them
        _, found = found.fields[0]
    if hasattr(found, "vocab"):
        found = found.vocab
    return list(found if isinstance(found, list) else found.itos)


def renamed(name: str) -> str:
    return re.sub(r"(?<=\.)(a_2|b_2)$", lambda match: GAIN_OR_BIAS[match[1]], name)
