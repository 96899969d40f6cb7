"""OpenNMT-py's checkpoints (Klein et al. 2017), of its versions 1 to 3.

`model` and `generator` hold the tensors, `opt` the options, `vocab` the vocabularies: lists of
tokens in version 3, torchtext's objects before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decoding.models.files import Directory, ModelFileError, short
from decoding.models.formats.foreign import Foreign, attributes, plain
from decoding.models.weights.lazy import stored_in, tensors_in

GAIN_OR_BIAS = {"a_2": "weight", "b_2": "bias"}  # of the norms, until version 1.0


def read(path: Path, content: Mapping[str, Any], directory: Directory) -> Foreign:
    vocab = content["vocab"]
    source, target = tokens_of(path, vocab, "src"), tokens_of(path, vocab, "tgt")
    start = vocab.get("decoder_start_token", "<s>") if isinstance(vocab, dict) else "<s>"
    config = plain(path, attributes(path, "opt", content["opt"]))
    config |= {"model_type": "opennmt", "vocabularies": {"src": source, "tgt": target}}
    ids = {token: number for number, token in enumerate(target)}
    for token in (start, "</s>", "<blank>"):
        if not isinstance(token, str) or token not in ids:
            raise ModelFileError(f"{path}: the target's vocabulary has no {short(token)}")
    generation = {
        "bos_token_id": ids.get("<s>"),
        "decoder_start_token_id": ids[start],
        "eos_token_id": ids["</s>"],
        "num_beams": 5,
        "pad_token_id": ids["<blank>"],
    }
    model, generator = content["model"], content["generator"] or {}
    state = {renamed(name): tensor for name, tensor in tensors_in(path, model).items()}
    for name, tensor in tensors_in(path, generator).items():
        state["generator." + name.removeprefix("0.")] = tensor
    return Foreign("OpenNMTTransformer", config, generation, stored_in(path, state), directory)


def tokens_of(path: Path, vocab: Any, side: str) -> list[str]:
    """The tokens of one side, in the order of their ids."""
    if isinstance(vocab, list):  # version 0: pairs of a side and torchtext's Vocab
        pairs = [pair for pair in vocab if isinstance(pair, tuple) and len(pair) == 2]
        found: Any = next((second for first, second in pairs if first == side), None)
    else:
        found = vocab.get(side) if isinstance(vocab, dict) else None
    fields = getattr(found, "fields", None)
    if isinstance(fields, list) and fields and isinstance(fields[0], tuple):
        found = fields[0][-1]  # versions 1 and 2: the tokens, then features of them
    found = getattr(found, "vocab", found)
    found = getattr(found, "itos", found)
    if not isinstance(found, list) or not all(isinstance(token, str) for token in found):
        raise ModelFileError(f"{path}: vocab is of no known layout: {side} is {short(found)}")
    "".join(found).encode()  # or raises for half a character, which no file of ours can hold
    return list(found)


def renamed(name: str) -> str:
    return re.sub(r"(?<=\.)(a_2|b_2)$", lambda match: GAIN_OR_BIAS[match[1]], name)
