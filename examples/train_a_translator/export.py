"""Writes a trained Transformer as a Hugging Face directory in Marian's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from safetensors.torch import save_file
from torch import Tensor

from decoding.models.layouts import seq2seq
from decoding.models.spec import ModelSpec
from decoding.models.torch.transformer import Transformer
from examples.train_a_translator.corpus import EOS, UNK

MAX_LENGTH = 256  # tokens of a translation


def save(model: Transformer, pieces: bytes, directory: Path) -> None:
    """config.json, generation_config.json, model.safetensors (float16), the SentencePiece model
    for both sides, vocab.json and tokenizer_config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = vocabulary_of(pieces)
    pad = vocabulary["<pad>"]
    save_file(marian_state(model), directory / "model.safetensors", metadata={"format": "pt"})
    for name in ("source.spm", "target.spm"):
        (directory / name).write_bytes(pieces)
    write_json(directory / "vocab.json", vocabulary)
    write_json(directory / "config.json", config(model.spec, pad))
    write_json(
        directory / "generation_config.json",
        {
            "bad_words_ids": [[pad]],
            "decoder_start_token_id": pad,
            "eos_token_id": EOS,
            "forced_eos_token_id": EOS,
            "max_length": MAX_LENGTH,
            "num_beams": 4,
            "pad_token_id": pad,
        },
    )
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": "de",
            "target_lang": "en",
            "model_max_length": model.spec.decoder.positions,
        },
    )


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def vocabulary_of(pieces: bytes) -> dict[str, int]:
    """Piece to id, SentencePiece's ids kept, padding behind them."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    vocabulary = {processor.id_to_piece(piece): piece for piece in range(len(processor))}
    assert vocabulary["</s>"] == EOS and vocabulary["<unk>"] == UNK
    return vocabulary | {"<pad>": len(vocabulary)}


def config(spec: ModelSpec, pad: int) -> dict[str, Any]:
    encoder, decoder = spec.encoder, spec.decoder
    assert encoder is not None
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "d_model": decoder.hidden,
        "encoder_layers": encoder.layers,
        "decoder_layers": decoder.layers,
        "encoder_attention_heads": encoder.heads,
        "decoder_attention_heads": decoder.heads,
        "encoder_ffn_dim": encoder.ffn,
        "decoder_ffn_dim": decoder.ffn,
        "activation_function": {"silu": "swish"}.get(decoder.activation, decoder.activation),
        "max_position_embeddings": decoder.positions,
        "vocab_size": decoder.vocab,
        "decoder_vocab_size": decoder.vocab,
        "scale_embedding": decoder.embed_scale != 1.0,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "static_position_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": EOS,
        "forced_eos_token_id": EOS,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "dtype": "float16",
    }


def marian_state(model: Transformer) -> dict[str, Tensor]:
    """Marian's names in float16; the tied table once, no sinusoids: both are made on loading."""
    state = {seq2seq.BASE + seq2seq.SHARED: model.decoder.embed.tokens.detach()}
    for name, tensor in model.state_dict().items():
        if ".layers." in name:
            stored = [seq2seq.BASE + part for part in seq2seq.stored_names(name)]
            state |= dict(zip(stored, tensor.chunk(len(stored)), strict=True))
    return {name: tensor.to("cpu", torch.float16, copy=True) for name, tensor in state.items()}
