"""The target tokens that the tokens of a source may become: a shortlist of the vocabulary.

    vocabulary_map = VocabularyMap.load("de-en.npz")  # made by `decoding shortlist`
    model.translate(texts, vocabulary_map=vocabulary_map)

A step then computes the logits of some hundred tokens instead of all, and the search is exact among
those. The idea is that of Schwenk et al. 2007, "Smooth Bilingual N-Gram Translation" (a shortlist
of the output layer), Devlin 2017, "Sharp Models on Dull Hardware" (one for each sentence, from a
lexical table) and CTranslate2's vocabulary map.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from decoding.generation.batching import Array
from decoding.models.spec import ModelSpec

FAULTS = (ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, eq=False)
class VocabularyMap:
    """What each source token may become, and what may stand in any translation.

    candidates: int32 [source ids, N], target ids, the likeliest first, -1 behind the last.
    frequent: int32 [M], target ids. target_ids: how many there are.

    A file is numpy's .npz archive of three arrays that have these names. Raises ValueError for
    arrays of other types or shapes, and for ids that there are not.
    """

    candidates: Array
    frequent: Array
    target_ids: int

    def __post_init__(self) -> None:
        for name, least, axes in (("candidates", -1, 2), ("frequent", 0, 1)):
            ids = getattr(self, name)
            if ids.dtype != np.int32 or ids.ndim != axes:
                raise ValueError(
                    f"{name} must be int32 of {axes} axes, got {ids.dtype} {list(ids.shape)}"
                )
            if ids.size and not least <= ids.min() <= ids.max() < self.target_ids:
                raise ValueError(
                    f"{name} must hold {least} to {self.target_ids - 1}, "
                    f"got {ids.min()} to {ids.max()}"
                )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> VocabularyMap:
        """Raises OSError where there is no such file, ValueError where it holds no map."""
        try:
            with np.load(path, allow_pickle=False) as file:
                return cls(file["candidates"], file["frequent"], int(file["target_ids"]))
        except FAULTS as error:
            raise ValueError(
                f"{path} is no vocabulary map, or a damaged one: {error}; make one with "
                "`decoding shortlist`"
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        with open(path, "wb") as file:
            np.savez_compressed(
                file,
                candidates=self.candidates,
                frequent=self.frequent,
                target_ids=np.int32(self.target_ids),
            )

    def ids_for(self, source: Array, needed: Iterable[int] = ()) -> Array:
        """int32 [ids], ascending: what the tokens of `source` may become, together.

        source: integers of any shape, source ids of one or several sentences. needed: target ids
        that are to be among them.
        """
        listed = np.zeros(self.target_ids + 1, np.bool_)  # the last is for what is -1
        listed[self.candidates[source]] = True
        listed[self.frequent] = True
        listed[list(needed)] = True
        return np.flatnonzero(listed[:-1]).astype(np.int32)

    def check_for(self, spec: ModelSpec) -> None:
        """Raises ValueError where a model has other vocabularies."""
        assert spec.encoder is not None
        ours = len(self.candidates), self.target_ids
        theirs = spec.encoder.vocab, spec.decoder.vocab
        if ours != theirs:
            raise ValueError(
                f"the vocabulary map is for {ours[0]} source and {ours[1]} target ids, the model "
                f"has {theirs[0]} and {theirs[1]}: make one with `decoding shortlist --model`"
            )


def as_vocabulary_map(given: Any, spec: ModelSpec, device: str) -> VocabularyMap | None:
    """The argument vocabulary_map of a call: None, a map or a file of one.

    device: the type of the model's. Raises TypeError for anything else, ValueError where the model
    can have no map or not this one, and what load() raises.
    """
    if given is None:
        return None
    if spec.encoder is None:
        raise ValueError("vocabulary_map needs a source text, this model has a decoder alone")
    if device != "cpu":
        raise ValueError(
            f"vocabulary_map is for the CPU, this model is on {device}: leave it out, all logits "
            "cost little there"
        )
    if isinstance(given, (str, os.PathLike)):
        given = VocabularyMap.load(given)
    if not isinstance(given, VocabularyMap):
        raise TypeError(
            f"vocabulary_map must be a VocabularyMap or a file of one, got {type(given).__name__}"
        )
    given.check_for(spec)
    return given
