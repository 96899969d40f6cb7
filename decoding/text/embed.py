"""Sentence embeddings, by the pooling of a sentence-transformers directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.engine.encoder import EncoderSession, pack
from decoding.generation.batching import source_batch, split
from decoding.models.files import Directory, ModelFileError, clipped, read_json, read_object, short
from decoding.text.texts import as_texts
from decoding.text.tokenizers import Tokenizer
from decoding.text.tokenizers.files import SENTENCE_PROMPTS, SENTENCE_SETTINGS, read_optional

NEEDS = (
    "it says how sentence embeddings are made of hidden states; without it, encode() gives those"
)
MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


@dataclass(frozen=True)
class Pooling:
    """mode: "mean" of a text's hidden states, or "cls", the first. normalise: to length 1. tokens:
    the most of a text; None: the model's positions. lower: texts are lower-cased first. prompt:
    what every text begins with."""

    mode: str
    normalise: bool
    tokens: int | None
    lower: bool
    prompt: str = ""

    def __call__(self, states: Tensor, offsets: Tensor) -> Tensor:
        """Pools hidden states. states: [tokens, H], text b's are states[offsets[b] : offsets[b +
        1]]; offsets: [B + 1]. Returns float32 [B, H]."""
        offsets = offsets.long().to(states.device)
        if self.mode == "cls":
            pooled = states[offsets[:-1]].float()
        else:
            pooled = torch.segment_reduce(states.float(), "mean", lengths=offsets.diff())
        return F.normalize(pooled) if self.normalise else pooled


def read_pooling(directory: Directory) -> Pooling:
    """Reads modules.json. Raises FileNotFoundError or ModelFileError for missing or unsupported
    files."""
    path = directory.required("modules.json", NEEDS)
    kinds = modules(path, read_json(path))
    unknown = kinds.keys() - {"Transformer", "Pooling", "Normalize"}
    if unknown or "Pooling" not in kinds or kinds.get("Transformer") != "":
        raise ModelFileError(
            f"{path} lists {short(list(kinds))}: supported are Transformer, in the directory "
            "itself, Pooling and Normalize"
        )
    found = (read_optional(directory, name) for name in SENTENCE_SETTINGS)
    settings = next(filter(None, found), {})
    tokenizer = read_optional(directory, "tokenizer_config.json")
    tokens = settings.get("max_seq_length") or tokenizer.get("model_max_length")
    if tokens is not None and (not isinstance(tokens, int) or tokens < 1):
        raise ModelFileError(f"{directory.path}: max_seq_length is {short(tokens)}, no length")
    pooling = directory.required(f"{kinds['Pooling']}/config.json", NEEDS)
    prompt = read_prompt(directory)
    if prompt and read_object(pooling).get("include_prompt") is False:
        raise ModelFileError(
            f"{pooling} leaves the prompt {short(prompt)} out of the pooling: include_prompt=false "
            "is not supported beside a default prompt"
        )
    return Pooling(
        mode=read_mode(pooling),
        normalise="Normalize" in kinds,
        tokens=tokens,
        lower=bool(settings.get("do_lower_case")),
        prompt=prompt,
    )


def read_prompt(directory: Directory) -> str:
    """The prompt that sentence-transformers puts before every text; mostly there is none."""
    path, settings = directory.path / SENTENCE_PROMPTS, read_optional(directory, SENTENCE_PROMPTS)
    name, given = settings.get("default_prompt_name"), settings.get("prompts") or {}
    if name is None:
        return ""
    if not isinstance(given, dict):
        raise ModelFileError(f"{path}: prompts must be texts by name, got {short(given)}")
    prompts = {"query": "", "document": "", **given}  # there the two are always set
    prompt = prompts.get(name) if isinstance(name, str) else None
    if not isinstance(prompt, str):
        raise ModelFileError(
            f"{path}: default_prompt_name={short(name)} is none of the prompts, {short(prompts)}"
        )
    return prompt


def modules(path: Path, listed: Any) -> dict[str, str]:
    """The folder of each kind of module."""
    rows = listed if isinstance(listed, list) else [listed]
    for row in rows:
        fields = [row.get(name) for name in ("type", "path")] if isinstance(row, dict) else [None]
        if not all(isinstance(field, str) for field in fields):
            raise ModelFileError(f"{path} must list modules by type and path, got {short(row)}")
    return {row["type"].rpartition(".")[2]: row["path"] for row in rows}


def read_mode(path: Path) -> str:
    """The pooling mode: sentence-transformers 6 names it, older versions set a flag for each
    mode."""
    config = read_object(path)
    flags = [name for name in config if name.startswith("pooling_mode_") and config[name]]
    mode = config.get("pooling_mode", MODES.get(flags[0]) if len(flags) == 1 else None)
    if mode not in MODES.values():
        found = clipped(", ".join(flags)) or f"pooling_mode={short(mode)}"
        raise ModelFileError(
            f"{path} sets {found}: supported are the modes {' and '.join(MODES.values())}, "
            "one at a time"
        )
    return str(mode)


class Embedder:
    """Makes vectors of texts: ids first, so that others can be encoded while these are computed."""

    def __init__(self, session: EncoderSession, tokenizer: Tokenizer, pooling: Pooling) -> None:
        self._session, self._tokenizer, self._pooling = session, tokenizer, pooling
        self._most = min(pooling.tokens or session.spec.longest, session.spec.longest)

    @property
    def width(self) -> int:
        """H"""
        return self._session.spec.encoder.hidden

    def encode(
        self, texts: Sequence[str], name: Callable[[int], str], truncate: bool
    ) -> list[list[int]]:
        """The ids of each text. name: of the text at an index. Raises ValueError for one that is
        too long, where `truncate` does not allow to shorten it."""
        given = [self._pooling.prompt + text for text in texts]
        if self._pooling.lower:
            given = [text.lower() for text in given]
        rows, most = self._tokenizer.encode_batch(given).lists(), self._most
        longest = max(range(len(rows)), key=lambda i: len(rows[i]), default=0)
        if rows and len(rows[longest]) > most and not truncate:
            raise ValueError(
                f"{name(longest)} has {len(rows[longest])} tokens, the model reads {most}: shorten "
                "it, or pass truncate=True (--truncate)"
            )
        # A shortened text keeps its last token, EOS.
        return [row if len(row) <= most else [*row[: most - 1], row[-1]] for row in rows]

    def vectors(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """float32 [B, H] on the CPU, of rows of ids. Raises decoding.Error for the first row whose
        vector is not finite."""
        session = self._session
        found = torch.empty(len(ids), self.width)
        if not ids:
            return found
        rows = source_batch(ids, None, session.spec.encoder.vocab)
        batch = None if session.limits is None else session.limits.batch
        for chosen in split(rows.lengths, 1, batch, session.device.type):
            source = pack(rows.select(chosen), session.spec)
            pooled = self._pooling(session.encode(source), torch.from_numpy(source.offsets))
            found[torch.from_numpy(chosen)] = pooled.to(found)
        session.check_finite(found)
        return found


def embed(embedder: Embedder, texts: str | Iterable[str], *, truncate: bool) -> Tensor:
    """See Model.embed."""
    given, alone = as_texts("texts", texts)
    ids = embedder.encode(given, lambda i: "the text" if alone else f"text {i}", truncate)
    found = embedder.vectors(ids)
    return found[0] if alone else found
