"""fairseq's checkpoints (Ott et al. 2019).

`model` holds the tensors, `args` the options, or from version 0.10 on `cfg`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoding.models.files import Directory, ModelFileError
from decoding.models.formats.foreign import Foreign, attributes, plain
from decoding.models.weights.lazy import stored_in, tensors_in

if TYPE_CHECKING:
    from torch import Tensor

BOS, PAD, EOS = 0, 1, 2  # every dictionary begins with <s> <pad> </s> <unk>

# What fairseq-generate does where nobody tells it otherwise. The decoder starts with EOS, and a
# translation has a token before its own.
GENERATION = {
    "bad_words_ids": [[PAD]],
    "bos_token_id": BOS,
    "decoder_start_token_id": EOS,
    "early_stopping": True,
    "eos_token_id": EOS,
    "min_new_tokens": 1,
    "num_beams": 5,
    "pad_token_id": PAD,
}

LAYER_NORM = re.compile(
    r"(?P<layer>(encoder|decoder)\.layers\.\d+)\.layer_norms\.(?P<norm>[0-2])\."
)
LAYER_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


def read(path: Path, content: Mapping[str, Any], directory: Directory) -> Foreign:
    if content.get("args") is None and not attributes(path, "cfg", content.get("cfg")):
        raise ModelFileError(f"{path} holds no options: its args and its cfg are empty")
    config = plain(path, options(path, content)) | {"model_type": "fairseq"}
    state = stored_in(path, upgraded(tensors_in(path, content["model"])))
    return Foreign("FairseqTransformer", config, dict(GENERATION), state, directory)


def options(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """All options by their names on the command line.

    A `cfg` has groups of them, each a dictionary or what argparse made, and in the model's groups
    for each side; a group's own name is what its option is called.
    """
    if content.get("args") is not None:
        return attributes(path, "args", content["args"])
    config: dict[str, Any] = {}
    groups = attributes(path, "cfg", content["cfg"])
    for name in ("task", "bpe", "tokenizer", "model"):
        group = attributes(path, name, groups.get(name))
        for side in ("encoder", "decoder"):
            for option, value in attributes(path, side, group.pop(side, None)).items():
                config[f"{side}_{option}"] = value
        kind = group.pop("_name", None)
        config.update(group)
        config.setdefault("arch" if name == "model" else name, kind)
    return config


def upgraded(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by today's names, which differ from those of 2018 and before."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        match = LAYER_NORM.match(name)
        if match:
            norm = dict(enumerate(LAYER_NORMS[match[2]])).get(int(match["norm"]), match["norm"])
            renamed[f"{match['layer']}.{norm}.{name[match.end() :]}"] = tensor
        elif name.endswith(("attn.in_proj_weight", "attn.in_proj_bias")):
            attention, _, kind = name.rpartition(".in_proj_")
            if tensor.dim() == 0 or len(tensor) % 3:
                raise ModelFileError(f"{name} must be of three parts, got {list(tensor.shape)}")
            for part, projection in zip("qkv", tensor.chunk(3), strict=True):
                renamed[f"{attention}.{part}_proj.{kind}"] = projection
        elif name == "decoder.embed_out":
            renamed["decoder.output_projection.weight"] = tensor
        else:
            renamed[name] = tensor
    return renamed
