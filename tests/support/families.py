"""A small random model of each family, as transformers makes it; peaked as in random_models.py."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from tests.support.random_models import is_gain

TOKENS = 14  # that a call generates

SEQ2SEQ: dict[str, Any] = {
    "vocab_size": 60,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 48,
    "init_std": 0.3,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
OPT: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 48,
    "max_position_embeddings": 48,
    "init_std": 0.3,
    "pad_token_id": 1,
    "bos_token_id": 2,
}
DECODER: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 48,
    "initializer_range": 0.3,
    "pad_token_id": 1,
    "bos_token_id": 2,
}
GROUPED = DECODER | {"num_key_value_heads": 2}
GPTJ: dict[str, Any] = {
    "vocab_size": 60,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 48,
    "rotary_dim": 4,
    "initializer_range": 0.3,
    "pad_token_id": 1,
    "bos_token_id": 2,
}
BLOOM: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "n_layer": 2,
    "n_head": 4,
    "initializer_range": 0.3,
    "pad_token_id": 1,
    "bos_token_id": 2,
}
T5: dict[str, Any] = {
    "vocab_size": 60,
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 48,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 7,
    "initializer_factor": 0.7,
    "decoder_start_token_id": 0,
}
# Heads of 8 numbers turn 4 pairs; of 9 to 23 positions, each scaling changes some of them.
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "beta_fast": 4,
    "original_max_position_embeddings": 12,
}


@dataclass(frozen=True)
class Family:
    """architecture: transformers' class. config: of a small model."""

    architecture: str
    config: dict[str, Any]

    def model(self, end: int | None = None) -> Any:
        """end: its EOS; None: a token that it writes often."""
        kind = getattr(transformers, self.architecture)
        torch.manual_seed(0)
        config = kind.config_class(**self.config)
        if getattr(config, "attn_logit_softcapping", None):
            config._attn_implementation = "eager"  # the others may leave the cap out
        model = kind(config).eval()
        if getattr(model.config, "scale_decoder_outputs", None) is False:
            # T5 1.1's files hold an output of its own; new models are tied all the same.
            model.lm_head.weight = torch.nn.Parameter(0.3 * torch.randn_like(model.lm_head.weight))
        with torch.no_grad():
            randomize(model)
        end = common_end(model) if end is None else end
        model.config.eos_token_id = model.generation_config.eos_token_id = end
        return model


FAMILIES = {
    "bart": Family("BartForConditionalGeneration", SEQ2SEQ),
    "bart-untied": Family(
        "BartForConditionalGeneration",
        SEQ2SEQ | {"tie_word_embeddings": False, "scale_embedding": True, "encoder_layers": 1},
    ),
    "mbart": Family("MBartForConditionalGeneration", SEQ2SEQ | {"activation_function": "relu"}),
    "m2m-100": Family("M2M100ForConditionalGeneration", SEQ2SEQ),
    "m2m-100-pad-0": Family("M2M100ForConditionalGeneration", SEQ2SEQ | {"pad_token_id": 0}),
    "pegasus": Family("PegasusForConditionalGeneration", SEQ2SEQ | {"activation_function": "relu"}),
    "blenderbot": Family("BlenderbotForConditionalGeneration", SEQ2SEQ),
    "blenderbot-small": Family("BlenderbotSmallForConditionalGeneration", SEQ2SEQ),
    "t5": Family("T5ForConditionalGeneration", T5),
    "t5-1.1": Family(
        "T5ForConditionalGeneration",
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mt5": Family("MT5ForConditionalGeneration", T5),
    "umt5": Family("UMT5ForConditionalGeneration", T5 | {"num_decoder_layers": 3}),
    "llama": Family("LlamaForCausalLM", GROUPED),
    "llama-3": Family(
        "LlamaForCausalLM", GROUPED | {"rope_parameters": LLAMA3, "tie_word_embeddings": True}
    ),
    "llama-biased": Family(
        "LlamaForCausalLM",
        DECODER
        | {
            "attention_bias": True,
            "mlp_bias": True,
            "head_dim": 12,
            "rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 1e4},
        },
    ),
    "mistral": Family("MistralForCausalLM", GROUPED | {"sliding_window": 5}),
    "qwen2": Family("Qwen2ForCausalLM", GROUPED | {"rope_parameters": YARN}),
    "qwen2-windows": Family(
        "Qwen2ForCausalLM",
        GROUPED | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": Family("Qwen3ForCausalLM", GROUPED | {"head_dim": 16}),
    "gpt-neox": Family("GPTNeoXForCausalLM", DECODER),
    "gpt-neox-in-turn": Family(
        "GPTNeoXForCausalLM",
        DECODER | {"use_parallel_residual": False, "attention_bias": False, "rotary_pct": 1.0},
    ),
    "gptj": Family("GPTJForCausalLM", GPTJ),
    "phi": Family("PhiForCausalLM", DECODER),
    "phi3": Family("Phi3ForCausalLM", GROUPED | {"sliding_window": 7, "eos_token_id": 2}),
    "bloom": Family("BloomForCausalLM", BLOOM),
    "bloom-six-heads": Family("BloomForCausalLM", BLOOM | {"hidden_size": 48, "n_head": 6}),
    "gemma": Family("GemmaForCausalLM", GROUPED | {"head_dim": 16}),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        GROUPED
        | {
            "head_dim": 16,
            "sliding_window": 5,
            "query_pre_attn_scalar": 12,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 6.0,
        },
    ),
    "opt": Family("OPTForCausalLM", OPT),
    "opt-projected": Family(
        "OPTForCausalLM", OPT | {"word_embed_proj_dim": 16, "do_layer_norm_before": False}
    ),
    "opt-unbiased": Family(
        "OPTForCausalLM",
        OPT | {"enable_bias": False, "activation_function": "gelu", "tie_word_embeddings": False},
    ),
    "opt-plain-norms": Family(
        "OPTForCausalLM",
        OPT
        | {
            "layer_norm_elementwise_affine": False,
            "_remove_final_layer_norm": True,
            "init_std": 0.15,  # nothing bounds the logits
        },
    ),
}

BERT: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
    "initializer_range": 0.3,
}
ROBERTA = BERT | {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
DISTILBERT: dict[str, Any] = {
    "vocab_size": 60,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 24,
    "initializer_range": 0.3,
}
# Encoders alone: transformers' class, and the configuration of a small model.
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", BERT),
    "bert-masked": ("BertForMaskedLM", BERT | {"hidden_act": "gelu_new", "type_vocab_size": 3}),
    "bert-with-heads": ("BertForPreTraining", BERT),
    "roberta": ("RobertaModel", ROBERTA),
    "roberta-masked": ("RobertaForMaskedLM", ROBERTA | {"pad_token_id": 0, "hidden_act": "relu"}),
    "xlm-roberta": ("XLMRobertaModel", ROBERTA),
    "xlm-roberta-masked": ("XLMRobertaForMaskedLM", ROBERTA),
    "distilbert": ("DistilBertModel", DISTILBERT),
    "distilbert-masked": ("DistilBertForMaskedLM", DISTILBERT | {"sinusoidal_pos_embds": True}),
}


def encoder(name: str, **options: Any) -> Any:
    """A small random model of ENCODERS; options: of its configuration."""
    architecture, config = ENCODERS[name]
    kind = getattr(transformers, architecture)
    torch.manual_seed(0)
    model = kind(kind.config_class(**config | options)).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.ndim == 1:
                noise = 0.2 * torch.randn_like(tensor)
                tensor.copy_(1 + noise if "norm" in name.lower() and is_gain(name) else noise)
    return model


LAYER = re.compile(r"(layers|block)\.\d")
QUERY_OR_KEY = re.compile(r"\.[qk](_proj)?\.")
# What of the source comes into the decoder.
CROSS = re.compile(r"(encoder_attn|EncDecAttention)\.(v|v_proj|o|out_proj)\.")


def randomize(model: Any) -> None:
    """No weight is left at the zero or one of a new model, and what was generated does not drown
    the source. Gains of both signs keep a tied table from making each token its own successor."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("inv_freq"):  # of rotary positions: computed, no file holds them
            continue
        if tensor.ndim == 1 or name == "final_logits_bias":
            noise = torch.randn_like(tensor)
            gain = (1 + 0.2 * noise.abs()) * noise.sign()
            tensor.copy_(gain if is_gain(name) else 0.2 * noise)
        elif CROSS.search(name):
            tensor *= 3
        elif LAYER.search(name) and not QUERY_OR_KEY.search(name):
            tensor *= 2


def ragged(model: Any, rows: int = 5, tokens: int = 9) -> dict[str, Any]:
    """Rows of `tokens` to `tokens - 4` tokens; padding holds ordinary tokens, which the mask
    hides."""
    ids = torch.randint(4, 60, (rows, tokens), generator=torch.Generator().manual_seed(1))
    columns, padding = torch.arange(tokens), torch.arange(rows)[:, None] % 5
    encoder = model.config.is_encoder_decoder
    mask = columns < tokens - padding if encoder else columns >= padding
    return {"input_ids": ids, "attention_mask": mask.long()}


def common_end(model: Any) -> int:
    """The token that rows reach first at most different lengths."""
    given = ragged(model)
    options = {"max_new_tokens": TOKENS, "eos_token_id": None, "num_return_sequences": 4}
    found = model.generate(**given, **options, num_beams=4)[:, -TOKENS:]
    places: dict[int, set[int]] = {}
    for row in found.tolist():
        for token in set(row) - {model.config.pad_token_id}:
            places.setdefault(token, set()).add(row.index(token))
    return max(places, key=lambda token: (len(places[token] - {0, 1}), -token))
