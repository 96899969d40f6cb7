"""Small models whose weights have the same bits wherever they are made.

Neither torch's nor transformers' random numbers are used: they may change with the version. Each
weight is drawn from Philox's raw integers, which numpy promises to keep, under a key made from the
weight's name.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from tests.models import test_openelm
from tests.support import lightconv
from tests.support.families import CROSS, ENCODERS, FAMILIES, LAYER, QUERY_OR_KEY
from tests.support.random_models import is_gain

VOCAB = 60
END = [3, 20, 41]  # several, so that rows end early enough in a model that prefers no token

MARIAN: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 48,
    "pad_token_id": VOCAB - 1,
    "decoder_start_token_id": VOCAB - 1,
    "bos_token_id": None,
    "forced_eos_token_id": None,
    "init_std": 0.3,
    "scale_embedding": True,
}
GPT2: dict[str, Any] = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 48,
    "bos_token_id": 1,
    "tie_word_embeddings": False,
    "initializer_range": 0.4,
}
# The large ones are wide enough for every kernel of a GPU.
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "marian": ("MarianMTModel", MARIAN),
    "marian-large": (
        "MarianMTModel",
        MARIAN
        | {
            "vocab_size": 3000,
            "d_model": 256,
            "encoder_ffn_dim": 512,
            "decoder_ffn_dim": 512,
            "activation_function": "swish",
            "init_std": 0.1,
        },
    ),
    "marian-two-tables": (
        "MarianMTModel",
        MARIAN
        | {
            "share_encoder_decoder_embeddings": False,
            "tie_word_embeddings": False,
            "decoder_vocab_size": 45,
            "pad_token_id": 44,
            "decoder_start_token_id": 44,
        },
    ),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2-large": (
        "GPT2LMHeadModel",
        GPT2
        | {
            "vocab_size": 3001,
            "n_embd": 256,
            "initializer_range": 0.1,
            "tie_word_embeddings": True,
        },
    ),
    "gpt2-pad": (
        "GPT2LMHeadModel",
        GPT2 | {"pad_token_id": 5, "scale_attn_by_inverse_layer_idx": True},
    ),
} | {name: (family.architecture, family.config) for name, family in FAMILIES.items()}
FILES: dict[str, Callable[[Path], Path]] = {
    "lightconv": lambda folder: lightconv_file(folder, lightconv.LIGHT),
    "dynamicconv": lambda folder: lightconv_file(folder, lightconv.DYNAMIC),
    "openelm": lambda folder: openelm_directory(folder),
}
BART_LIKE = ("MarianMTModel", "BartForConditionalGeneration")
POST_NORM = (*BART_LIKE, "BlenderbotSmallForConditionalGeneration")
# By what the outputs of the end tokens are multiplied.
MORE_ENDS = dict.fromkeys(BART_LIKE, 1.2) | {"GPT2LMHeadModel": 1.5}
GENERATORS = [*TRANSFORMERS, *FILES]


@contextmanager
def source_of(name: str) -> Iterator[Any]:
    """What decoding.load() takes: a model of GENERATORS or ENCODERS, or a path of its files."""
    if name in FILES:
        with TemporaryDirectory() as folder:
            yield FILES[name](Path(folder))
    else:
        architecture, config = (TRANSFORMERS | ENCODERS)[name]
        yield transformers_model(architecture, config)


def transformers_model(architecture: str, config: dict[str, Any]) -> Any:
    kind = getattr(transformers, architecture)
    model = kind(kind.config_class(**config)).eval()
    scale = config.get("init_std", config.get("initializer_range", 0.3))
    buffers = [(n, t) for n, t in model.named_buffers() if n.endswith("final_logits_bias")]
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *buffers]:
            drawn = weight(name, tuple(tensor.shape))
            matrix = tensor.ndim == 2 and not name.endswith("final_logits_bias")
            tensor.copy_(drawn * scale * relative_scale(name, architecture) if matrix else drawn)
        if architecture in MORE_ENDS:
            model.get_output_embeddings().weight[END] *= MORE_ENDS[architecture]
    ids = ("pad_token_id", "bos_token_id", "decoder_start_token_id")
    given = {id: config[id] for id in ids if config.get(id) is not None}
    model.generation_config = transformers.GenerationConfig(eos_token_id=END, **given)
    return model


def weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """Gains of both signs keep a tied table from making each token its own successor."""
    noise = uniform(name, shape)
    if len(shape) == 1 and is_gain(name):
        return (1 + 0.3 * noise.abs()) * torch.where(noise < 0, -1.0, 1.0)
    if len(shape) == 1 or name.endswith("final_logits_bias"):
        return 0.3 * noise
    return 1.75 * noise  # a uniform number's deviation is 1 / 1.73


def relative_scale(name: str, architecture: str) -> float:
    """Of a matrix: so that a token depends on the one before, on its place and on the source."""
    if architecture in POST_NORM:
        if "embed_positions" in name:
            return 3
        if LAYER.search(name):
            return 2.5 if ".fc" in name else 0.5 if CROSS.search(name) else 0.4
    elif CROSS.search(name):
        return 3
    elif LAYER.search(name) and not QUERY_OR_KEY.search(name):
        return 2
    return 1


def uniform(name: str, shape: tuple[int, ...]) -> Tensor:
    """float32 in [-1, 1), multiples of 2^-23."""
    raw = np.random.Philox(key=zlib.crc32(name.encode())).random_raw(int(np.prod(shape)))
    whole = (raw >> np.uint64(40)).astype(np.float32)
    return torch.from_numpy(whole / np.float32(2**23) - np.float32(1)).view(shape)


def token_rows(lengths: list[int], name: str) -> list[list[int]]:
    """Ids that every vocabulary has, none of them special."""
    return [
        (6 + 17 * (1 + uniform(f"{name} {row}", (length,)))).int().tolist()
        for row, length in enumerate(lengths)
    ]


def lightconv_file(folder: Path, options: dict[str, Any]) -> Path:
    model = lightconv.LightConv(0, **options)
    for name, shape, scale, mean in model.tensors():
        model.state[name] = mean + scale * 1.75 * uniform(name, shape)
    model.state[model.output][lightconv.EOS] *= 1.5
    if model.options["share_all_embeddings"]:
        model.state["decoder.embed_tokens.weight"] = model.state["encoder.embed_tokens.weight"]
    return model.write(folder / "checkpoint_best.pt")


def openelm_directory(folder: Path) -> Path:
    state = {
        name: (1.0 if tensor.ndim == 1 else 0.0) + 0.7 * uniform(name, tuple(tensor.shape))
        for name, tensor in test_openelm.weights().items()
    }
    return test_openelm.write(folder, state)
