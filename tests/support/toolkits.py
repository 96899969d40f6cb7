"""Writes models of transformers as other toolkits store theirs, by each format's definition."""

from __future__ import annotations

import math
import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.support.families import SEQ2SEQ, Family

# fairseq: names and tables are BART's and M2M-100's.

FAIRSEQ = {
    "post-norm": Family(
        "BartForConditionalGeneration",
        SEQ2SEQ | {"tie_word_embeddings": False, "scale_embedding": True, "encoder_layers": 1},
    ),
    "pre-norm": Family("M2M100ForConditionalGeneration", SEQ2SEQ),
}


def fairseq_model(family: Family) -> Any:
    """Without the output's bias, which fairseq has not."""
    model = family.model()
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.zero_()
    return model


def fairseq_options(model: Any, **changed: Any) -> dict[str, Any]:
    """As fairseq-train stores them, with some that decoding has no use for."""
    config, options = model.config, dict[str, Any]()
    bart = config.model_type == "bart"
    for side in ("encoder", "decoder"):
        options |= {
            f"{side}_attention_heads": getattr(config, f"{side}_attention_heads"),
            f"{side}_embed_dim": config.d_model,
            f"{side}_embed_path": None,
            f"{side}_ffn_embed_dim": getattr(config, f"{side}_ffn_dim"),
            f"{side}_layers": getattr(config, f"{side}_layers"),
            f"{side}_learned_pos": bart,
            f"{side}_normalize_before": not bart,
        }
    return options | {
        "activation_fn": config.activation_function,
        "arch": "transformer_iwslt_de_en",
        "dropout": 0.3,
        "layernorm_embedding": bart,
        "max_source_positions": config.max_position_embeddings,
        "max_target_positions": config.max_position_embeddings,
        "no_scale_embedding": not config.scale_embedding,
        "share_all_embeddings": config.tie_word_embeddings,
        "source_lang": "de",
        "target_lang": "en",
        "task": "translation",
        **changed,
    }


def fairseq_state(model: Any) -> dict[str, Tensor]:
    state = {
        name.removeprefix("model."): tensor
        for name, tensor in model.state_dict().items()
        if name not in ("model.shared.weight", "final_logits_bias", "lm_head.weight")
    }
    state["decoder.output_projection.weight"] = model.lm_head.weight.detach()
    for side in ("encoder", "decoder"):
        state[f"{side}.version"] = torch.tensor([3.0])
        if model.config.model_type != "bart":
            state[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
    return state


def write_fairseq(
    path: Path, model: Any, state: dict[str, Tensor] | None = None, **changed: Any
) -> Path:
    """As fairseq-train does until version 0.9."""
    torch.save(
        {
            "args": Namespace(**fairseq_options(model, **changed)),
            "model": fairseq_state(model) if state is None else state,
            "optimizer_history": [{"criterion_name": "CrossEntropy", "num_updates": 7}],
            "extra_state": {"val_loss": np.float64(1.5)},
        },
        path,
    )
    return path


# Marian and OpenNMT-py: their Transformers are those of Marian and Pegasus in transformers, but for
# position tables and the norms' epsilon.

START = SEQ2SEQ["vocab_size"] - 1  # where Marian's decoder starts with nothing: a row of zeros
POST_NORM = Family(
    "MarianMTModel",
    SEQ2SEQ
    | {"activation_function": "swish", "scale_embedding": True, "decoder_start_token_id": START},
)
PRE_NORM = Family(
    "PegasusForConditionalGeneration",
    SEQ2SEQ
    | {
        "activation_function": "relu",
        "scale_embedding": True,
        "decoder_start_token_id": START,
        "tie_word_embeddings": False,
    },
)


def with_positions(model: Any, wave: Callable[[int, int], float]) -> Any:
    """The model with wave(position, channel) as its position tables, and an epsilon of 1e-6."""
    rows, hidden = model.config.max_position_embeddings, model.config.d_model
    table = torch.tensor([[wave(row, channel) for channel in range(hidden)] for row in range(rows)])
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.weight.data = table
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-6
    return model


def marian_wave(hidden: int) -> Callable[[int, int], float]:
    half = hidden // 2

    def wave(position: int, channel: int) -> float:
        angle = position * math.exp(-(channel % half) * math.log(10000) / (half - 1))
        return math.sin(angle) if channel < half else math.cos(angle)

    return wave


def opennmt_wave(hidden: int) -> Callable[[int, int], float]:
    def wave(position: int, channel: int) -> float:
        angle = position * 10000 ** (-(channel - channel % 2) / hidden)
        return math.cos(angle) if channel % 2 else math.sin(angle)

    return wave


def marian_model(family: Family) -> Any:
    """With a start token as its importer makes one: a row of zeros that is never generated."""
    model = with_positions(family.model(), marian_wave(family.config["d_model"]))
    with torch.no_grad():
        for table in (model.model.decoder.embed_tokens.weight, model.lm_head.weight):
            table[START] = 0
        model.final_logits_bias[:, START] = -1e4
    return model


def opennmt_model() -> Any:
    return with_positions(PRE_NORM.model(), opennmt_wave(PRE_NORM.config["d_model"]))


LAYER = re.compile(r"model\.(encoder|decoder)\.layers\.(\d+)\.(.+)\.(weight|bias)")
MARIAN_BLOCKS = {"self_attn": "self", "encoder_attn": "context"}
MARIAN_NORMS = {
    "self_attn_layer_norm": "self_Wo",
    "encoder_attn_layer_norm": "context_Wo",
    "final_layer_norm": "ffn_ffn",
}


def marian_arrays(model: Any) -> dict[str, np.ndarray]:
    pre_norm, tied = model.config.model_type == "pegasus", model.config.tie_word_embeddings
    arrays = {}
    for name, tensor in model.state_dict().items():
        match = LAYER.fullmatch(name)
        if match is None:
            continue
        side, layer, part, kind = match.groups()
        stack = f"{side}_l{int(layer) + 1}"
        if part in MARIAN_NORMS:
            kind = "scale" if kind == "weight" else "bias"
            stored = f"{MARIAN_NORMS[part]}_ln_{kind}" + ("_pre" if pre_norm else "")
        elif part in ("fc1", "fc2"):
            stored = f"ffn_{'W' if kind == 'weight' else 'b'}{part[-1]}"
        else:
            block, _, projection = part.partition(".")
            letter = "W" if kind == "weight" else "b"
            stored = f"{MARIAN_BLOCKS[block]}_{letter}{projection[0]}"
        arrays[f"{stack}_{stored}"] = tensor.t() if tensor.ndim == 2 else tensor[None]
    if tied:
        arrays["Wemb"] = model.model.shared.weight[:START]
    else:
        for side in ("encoder", "decoder"):
            arrays[f"{side}_Wemb"] = getattr(model.model, side).embed_tokens.weight[:START]
        arrays["decoder_ff_logit_out_Wt"] = model.lm_head.weight[:START]
    arrays["decoder_ff_logit_out_b"] = model.final_logits_bias[:, :START]
    for side in ("encoder", "decoder") if pre_norm else ():
        norm = getattr(model.model, side).layer_norm
        arrays[f"{side}_top_ln_scale"] = norm.weight[None]
        arrays[f"{side}_top_ln_bias"] = norm.bias[None]
    return {name: array.detach().numpy() for name, array in arrays.items()}


def marian_options(model: Any, **changed: Any) -> dict[str, Any]:
    """As marian stores them, with some that decoding has no use for."""
    config, pre_norm = model.config, model.config.model_type == "pegasus"
    return {
        "bert-train-type-embeddings": True,
        "dec-cell": "gru",
        "dec-depth": config.decoder_layers,
        "dim-emb": config.d_model,
        "dim-vocabs": [START, START],
        "enc-depth": config.encoder_layers,
        "tied-embeddings": False,
        "tied-embeddings-all": config.tie_word_embeddings,
        "tied-embeddings-src": False,
        "transformer-decoder-autoreg": "self-attention",
        "transformer-decoder-dim-ffn": 0,
        "transformer-dim-ffn": config.encoder_ffn_dim,
        "transformer-ffn-activation": config.activation_function,
        "transformer-ffn-depth": 2,
        "transformer-heads": config.encoder_attention_heads,
        "transformer-no-projection": False,
        "transformer-postprocess": "da" if pre_norm else "dan",
        "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": "n" if pre_norm else "",
        "transformer-preprocess": "n" if pre_norm else "",
        "transformer-tied-layers": [],
        "transformer-train-position-embeddings": False,
        "type": "transformer",
        "version": "v1.12.0",
        **changed,
    }


def write_marian(
    path: Path, model: Any, arrays: dict[str, np.ndarray] | None = None, **changed: Any
) -> Path:
    """Options are YAML that a zero byte ends; all of ours are lines of JSON, which is YAML."""
    lines = [f"{key}: {written(value)}" for key, value in marian_options(model, **changed).items()]
    text = "\n".join(lines).encode() + b"\0"
    arrays = dict(marian_arrays(model) if arrays is None else arrays)
    arrays["special:model.yml"] = np.frombuffer(text, np.int8)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


OPENNMT_PARTS = {
    "self_attn.q_proj": "self_attn.linear_query",
    "self_attn.k_proj": "self_attn.linear_keys",
    "self_attn.v_proj": "self_attn.linear_values",
    "self_attn.out_proj": "self_attn.final_linear",
    "encoder_attn.q_proj": "context_attn.linear_query",
    "encoder_attn.k_proj": "context_attn.linear_keys",
    "encoder_attn.v_proj": "context_attn.linear_values",
    "encoder_attn.out_proj": "context_attn.final_linear",
    "encoder_attn_layer_norm": "layer_norm_2",
    "final_layer_norm": "feed_forward.layer_norm",
    "fc1": "feed_forward.w_1",
    "fc2": "feed_forward.w_2",
}


def opennmt_content(model: Any, **changed: Any) -> dict[str, Any]:
    """As onmt_train stores it in version 3."""
    config, state = model.config, {}
    for name, tensor in model.state_dict().items():
        match = LAYER.fullmatch(name)
        if match is None:
            continue
        side, layer, part, kind = match.groups()
        stack = "transformer" if side == "encoder" else "transformer_layers"
        first = "layer_norm" if side == "encoder" else "layer_norm_1"
        part = OPENNMT_PARTS.get(part, first)
        state[f"{side}.{stack}.{layer}.{part}.{kind}"] = tensor
    for side in ("encoder", "decoder"):
        stack, embeddings = getattr(model.model, side), f"{side}.embeddings.make_embedding"
        state[f"{side}.layer_norm.weight"] = stack.layer_norm.weight.detach()
        state[f"{side}.layer_norm.bias"] = stack.layer_norm.bias.detach()
        state[f"{embeddings}.emb_luts.0.weight"] = stack.embed_tokens.weight.detach()
        state[f"{embeddings}.pe.pe"] = stack.embed_positions.weight.detach()[:, None]
    options = {
        "add_ffnbias": True,
        "add_qkvbias": True,
        "copy_attn": False,
        "data": {"corpus": {"path_src": "a", "transforms": []}},
        "dec_layers": config.decoder_layers,
        "decoder_type": "transformer",
        "enc_layers": config.encoder_layers,
        "encoder_type": "transformer",
        "heads": config.encoder_attention_heads,
        "layer_norm": "standard",
        "max_relative_positions": 0,
        "model_type": "text",
        "pos_ffn_activation_fn": config.activation_function,
        "position_encoding": True,
        "self_attn_type": "scaled-dot",
        "transformer_ff": config.encoder_ffn_dim,
        "transforms": [],
        **changed,
    }
    generator = {"weight": model.lm_head.weight.detach(), "bias": model.final_logits_bias[0]}
    vocab = {"src": TOKENS, "tgt": TOKENS, "data_task": "seq2seq", "decoder_start_token": "<s>"}
    return {
        "model": state,
        "generator": generator,
        "vocab": vocab,
        "opt": Namespace(**options),
        "optim": {},
    }


TOKENS = ["<unk>", "<blank>", "</s>"] + [f"t{number}" for number in range(3, START)] + ["<s>"]


def write_opennmt(path: Path, model: Any, **changed: Any) -> Path:
    torch.save(opennmt_content(model, **changed), path)
    return path


def assert_same(ours: Any, expected: Any) -> None:
    assert ours.spec == expected.spec and ours.state.keys() == expected.state.keys()
    for name, tensor in expected.state.items():
        assert torch.equal(ours.state[name], tensor), name
