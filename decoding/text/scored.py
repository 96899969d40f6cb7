"""Texts as the ids and labels whose probabilities a model gives."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from typing import Any

from decoding.engine.request import IGNORED
from decoding.generation.resolve import resolve
from decoding.models.spec import ModelSpec
from decoding.text.languages import between
from decoding.text.rows import Rows
from decoding.text.texts import as_texts
from decoding.text.tokenizers import Tokenizer

Lists = list[list[int]]


def as_labels(
    tokenizer: Tokenizer,
    spec: ModelSpec,
    checkpoint: Mapping[str, Any],
    texts: Any,
    targets: Any,
    *,
    src_lang: str | None,
    tgt_lang: str | None,
) -> tuple[Lists, Lists | None, dict[str, Any]]:
    """The arguments of score() for texts: input_ids, labels, and what the checkpoint's
    generation_config.json must say for the languages. See Model.score.

    Raises TypeError for what is no text, ValueError for other numbers of texts and targets.
    """
    given, alone = as_texts("texts", texts)
    if not given:
        raise ValueError("texts must hold at least one text")
    bos, config = checkpoint.get("bos_token_id"), resolve({}, None, checkpoint)
    tokenizer, marks = between(tokenizer, src_lang, tgt_lang, config)
    if targets is None:
        if spec.encoder is not None:
            raise ValueError("a model with an encoder needs targets: texts that it could write")
        return begun(tokenizer.encode_target_batch(given), bos), None, marks
    wanted, other = as_texts("targets", targets)
    if (alone, len(given)) != (other, len(wanted)):
        raise ValueError(
            f"targets must be one str, or as many texts as texts: got {len(wanted)} for "
            f"{len(given)}"
        )
    if spec.encoder is not None:
        sources = tokenizer.encode_batch(given).lists()
        return sources, tokenizer.encode_target_batch(wanted).lists(), marks
    # Cut as one text: at their border a token may begin in one and end in the other.
    rows = begun(tokenizer.encode_batch(list(map(str.__add__, given, wanted))), bos)
    labels = []
    for whole, prompt in zip(rows, begun(tokenizer.encode_batch(given), bos), strict=True):
        same = len(os.path.commonprefix([whole, prompt]))
        labels.append([IGNORED] * same + whole[same:])
    return rows, labels, marks


def begun(rows: Rows, bos: int | None) -> Lists:
    """With the model's BOS in front, so that the first token of a text has a probability."""
    return [ids if bos is None or ids[:1] == [bos] else [bos, *ids] for ids in rows.lists()]
