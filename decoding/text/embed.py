"""Sentence embeddings, by the pooling of a sentence-transformers directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.engine.encoder import EncoderSession, pack
from decoding.generation.batching import source_batch, split
from decoding.text.tokenizers import Tokenizer
from decoding.text.tokenizers.files import read_json, required

NEEDS = (
    "it says how sentence embeddings are made of hidden states; without it, encode() gives those"
)
MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


@dataclass(frozen=True)
class Pooling:
    """mode: "mean" of a text's hidden states, or "cls", the first. normalise: to length 1. tokens:
    the most of a text; None: the model's positions. lower: texts are lower-cased first."""

    mode: str
    normalise: bool
    tokens: int | None
    lower: bool

    def __call__(self, states: Tensor, offsets: Tensor) -> Tensor:
        """Pools hidden states. states: [tokens, H], text b's are states[offsets[b] : offsets[b +
        1]]; offsets: [B + 1]. Returns float32 [B, H]."""
        offsets = offsets.long().to(states.device)
        if self.mode == "cls":
            pooled = states[offsets[:-1]].float()
        else:
            pooled = torch.segment_reduce(states.float(), "mean", lengths=offsets.diff())
        return F.normalize(pooled) if self.normalise else pooled


def read_pooling(directory: Path) -> Pooling:
    """Reads modules.json. Raises FileNotFoundError or ValueError for missing or unsupported
    files."""
    listed: Any = read_json(required(directory / "modules.json", NEEDS))
    kinds = {str(module["type"]).rpartition(".")[2]: module["path"] for module in listed}
    unknown = kinds.keys() - {"Transformer", "Pooling", "Normalize"}
    if unknown or "Pooling" not in kinds or kinds.get("Transformer") != "":
        raise ValueError(
            f"{directory / 'modules.json'} lists {', '.join(kinds)}: supported are Transformer, in "
            "the directory itself, Pooling and Normalize"
        )
    settings, tokenizer = (
        read_json(path) if (path := directory / name).is_file() else {}
        for name in ("sentence_bert_config.json", "tokenizer_config.json")
    )
    return Pooling(
        mode=read_mode(required(directory / kinds["Pooling"] / "config.json", NEEDS)),
        normalise="Normalize" in kinds,
        tokens=settings.get("max_seq_length") or tokenizer.get("model_max_length"),
        lower=bool(settings.get("do_lower_case")),
    )


def read_mode(path: Path) -> str:
    """The pooling mode: sentence-transformers 6 names it, older versions set a flag for each
    mode."""
    config = read_json(path)
    flags = [name for name in config if name.startswith("pooling_mode_") and config[name]]
    mode = config.get("pooling_mode", MODES.get(flags[0]) if len(flags) == 1 else None)
    if mode not in MODES.values():
        raise ValueError(
            f"{path} sets {', '.join(flags) or f'pooling_mode={mode!r}'}: supported are the modes "
            f"{' and '.join(MODES.values())}, one at a time"
        )
    return str(mode)


def embed(
    session: EncoderSession,
    tokenizer: Tokenizer,
    pooling: Pooling,
    texts: Sequence[str],
    *,
    truncate: bool,
) -> Tensor:
    """See Model.embed."""
    stack = session.spec.encoder
    found = torch.empty(len(texts), stack.hidden)
    if not texts:
        return found
    most = min(pooling.tokens or session.spec.longest, session.spec.longest)
    ids = [tokenizer.encode(text.lower() if pooling.lower else text) for text in texts]
    longest = max(range(len(ids)), key=lambda i: len(ids[i]))
    if len(ids[longest]) > most and not truncate:
        raise ValueError(
            f"text {longest} has {len(ids[longest])} tokens, the model reads {most}: shorten it, "
            "or pass truncate=True"
        )
    # A shortened text keeps its last token, EOS.
    rows = source_batch(
        [row if len(row) <= most else [*row[: most - 1], row[-1]] for row in ids], None, stack.vocab
    )
    batch = None if session.limits is None else session.limits.batch
    for chosen in split(rows.lengths, 1, batch, session.device.type):
        source = pack(rows.select(chosen), session.spec)
        pooled = pooling(session.encode(source), source.offsets)
        found[torch.from_numpy(chosen)] = pooled.to(found)
    return found
