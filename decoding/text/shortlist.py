"""Restricts the output vocabulary to likely translations of the source's tokens.

    shortlist = Shortlist.load("de-en.npz")  # made by `decoding shortlist`
    model.translate(texts, shortlist=shortlist)

A step then computes the logits of some hundred tokens instead of all, and the search is exact among
those. The idea is that of Schwenk et al. 2007, "Smooth Bilingual N-Gram Translation" (a shortlist
of the output layer), Devlin 2017, "Sharp Models on Dull Hardware" (one for each sentence, from a
lexical translation table), Marian's lexical shortlist and CTranslate2's vocabulary map.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decoding.common.arrays import Array
from decoding.common.warn import warn
from decoding.models.files import ModelFileError, short
from decoding.models.files.writing import replacing
from decoding.models.formats import npz
from decoding.models.spec import ModelSpec

NAMES = ("candidates", "frequent", "target_ids")
MOST_BYTES = 1 << 30  # 1000 candidates of 250,000 source tokens


@dataclass(frozen=True, eq=False)
class Shortlist:
    """The target tokens that each source token may become, and those allowed in any translation.

    candidates: int32 [source ids, N], target ids, the likeliest first, padded with -1.
    frequent: int32 [M], target ids. target_ids: size of the target vocabulary.

    A file is numpy's .npz archive of three arrays that have these names. Raises ValueError for
    arrays of other types or shapes, and for ids outside the vocabulary.
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
    def load(cls, path: str | os.PathLike[str]) -> Shortlist:
        """Reads a file that save() wrote. Raises OSError where there is none, ValueError where it
        holds no shortlist."""
        archive = Path(path)
        try:
            npz.read_headers(archive, MOST_BYTES)
            candidates, frequent, target_ids = (npz.read_array(archive, name) for name in NAMES)
            return cls(candidates, frequent, int(target_ids.item()))
        except (TypeError, ValueError) as error:
            raise ModelFileError(
                f"{path} is no shortlist, or a damaged one: {short(error)}; make one with "
                "`decoding shortlist`"
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        with replacing(Path(path)) as file:
            np.savez_compressed(
                file,
                candidates=self.candidates,
                frequent=self.frequent,
                target_ids=np.int32(self.target_ids),
            )

    def ids_for(self, source: Array, needed: Iterable[int] = ()) -> Array:
        """int32 [ids], ascending: the union of the target tokens that those of `source` may become.

        source: integers of any shape, source ids of one or several sentences. needed: target ids
        that are always included.
        """
        listed = np.zeros(self.target_ids + 1, np.bool_)  # the last is for padding, -1
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
                f"the shortlist is for {ours[0]} source and {ours[1]} target ids, the model "
                f"has {theirs[0]} and {theirs[1]}: make one with `decoding shortlist --model`"
            )


def as_shortlist(given: Any, spec: ModelSpec, device: str) -> Shortlist | None:
    """The argument shortlist of a call, read where it is a file.

    device: type of the model's device. Raises TypeError where it is neither None, a Shortlist nor
    a file of one, ValueError where the model cannot use it, and the errors of load().
    """
    if given is None:
        return None
    if spec.encoder is None:
        raise ValueError("shortlist needs a source text, this model has a decoder alone")
    if device != "cpu":
        raise ValueError(
            f"shortlist is for the CPU, this model is on {device}: leave it out, all logits "
            "cost little there"
        )
    if isinstance(given, (str, os.PathLike)):
        given = Shortlist.load(given)
    if not isinstance(given, Shortlist):
        raise TypeError(
            f"shortlist must be a Shortlist or a file of one, got {type(given).__name__}"
        )
    given.check_for(spec)
    return given


def pop_old_name(options: dict[str, Any], shortlist: Any) -> Any:
    """The argument shortlist of a public function, also where a caller still uses its old name,
    vocabulary_map, which is taken out of `options` with a warning. Raises TypeError for both."""
    if "vocabulary_map" not in options:
        return shortlist
    given = options.pop("vocabulary_map")
    if shortlist is not None:
        raise TypeError("vocabulary_map is the old name of shortlist: pass shortlist alone")
    warn(
        "vocabulary_map is deprecated and goes with the next version: pass shortlist",
        DeprecationWarning,
    )
    return given
