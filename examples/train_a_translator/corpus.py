"""Parallel text as token ids: reading, the joint SentencePiece model, subword sampling, batches."""

from __future__ import annotations

import gzip
import io
import math
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece
import torch
from torch import Tensor

EOS, UNK = 0, 1  # as published Marian vocabularies have them; padding is the last id
IGNORED = -100  # the label of padding, which torch's cross-entropy leaves out
LABELS = 1024  # a batch's labels are padded to a multiple of it

Lines = tuple[list[str], list[str]]  # sources, targets


def read_split(data: Path, split: str) -> Lines:
    """The lines of `split`.de.gz and `split`.en.gz."""
    source, target = (read_lines(data / f"{split}.{language}.gz") for language in ("de", "en"))
    if len(source) != len(target):
        raise ValueError(f"{split}: {len(source)} sources but {len(target)} targets")
    return source, target


def read_lines(path: Path) -> list[str]:
    """A lone "\\r" ends no line, nor do Unicode's separators."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\r\n") for line in file]


def train_pieces(lines: list[str], pieces: int) -> bytes:
    """A byte-pair SentencePiece model of `pieces` pieces, both languages together."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=pieces,
        character_coverage=1.0,
        split_digits=True,
        eos_id=EOS,
        unk_id=UNK,
        bos_id=-1,
        pad_id=-1,
        minloglevel=1,
    )
    return model.getvalue()


@dataclass(frozen=True)
class Packed:
    """Sentences one after the other, each with its end of sentence."""

    ids: np.ndarray  # int16 [tokens]
    offsets: np.ndarray  # int64 [sentences + 1]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)


def encode(model: bytes, lines: list[str], dropout: float = 0.0) -> Packed:
    """Token ids of lines. dropout: the rate of BPE-dropout (Provilkov et al. 2020), which differs
    from run to run, since SentencePiece salts its seed in each process."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    rows = processor.encode(
        lines,
        out_type=int,
        add_eos=True,
        num_threads=1,
        enable_sampling=dropout > 0,
        alpha=dropout,
        nbest_size=-1,
    )
    offsets = np.cumsum([0, *map(len, rows)])
    return Packed(np.concatenate([np.asarray(row, np.int16) for row in rows]), offsets)


def encode_split(
    model: bytes, data: Path, split: str, dropout: float = 0.0
) -> tuple[Packed, Packed]:
    source, target = read_split(data, split)
    return encode(model, source, dropout), encode(model, target, dropout)


def sampled_epochs(
    model: bytes, data: Path, dropout: float, workers: int
) -> Generator[tuple[Packed, Packed]]:
    """Endless epochs of the training split, each with newly sampled subwords, which `workers`
    processes prepare ahead."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        ahead: deque[Future[tuple[Packed, Packed]]] = deque()
        while True:
            ahead.append(pool.submit(encode_split, model, data, "train", dropout))
            if len(ahead) > 2 * workers:
                yield ahead.popleft().result()


class Batch(NamedTuple):
    source: Tensor  # int64 [B, T]
    source_mask: Tensor  # bool [B, T]
    target: Tensor  # int64 [B, T], begins with padding as Marian's decoder does
    labels: Tensor  # int64 [labels], the next token of each target token, then IGNORED
    places: Tensor  # int64 [labels], where each label belongs among the B * T, no place twice


def upload(array: np.ndarray, device: torch.device) -> Tensor:
    """The array on a device. The host does not wait until a GPU has done what it was given before:
    that takes pinned memory."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class DevicePacked:
    """A `Packed` on a device, which gathers padded rows there."""

    def __init__(self, packed: Packed, pad: int, device: torch.device) -> None:
        self.pad = pad
        self.ids = upload(packed.ids, device)
        self.offsets = upload(packed.offsets, device)

    def rows(self, sentences: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """int64 ids and bool mask [len(sentences), width]."""
        start, end = self.offsets[sentences, None], self.offsets[sentences + 1, None]
        place = start + torch.arange(width, device=self.ids.device)
        mask = place < end
        ids = self.ids[place.clamp(max=len(self.ids) - 1)].long()
        return ids.masked_fill(~mask, self.pad), mask


def batches(
    pair: tuple[Packed, Packed],
    pad: int,
    tokens: int,
    generator: np.random.Generator,
    device: torch.device,
) -> Iterator[Batch]:
    """One epoch in random order. A batch has pairs of similar length, and on each side `tokens`
    tokens, padding included.

    There are few shapes, since a GPU captures a graph for each: both sides are as wide as the
    longest sentence, `tokens` and the width give the rows, and labels are padded. Rows for which
    there are no pairs repeat others, without labels: attention over an empty row would be NaN.
    """
    source, target = (DevicePacked(side, pad, device) for side in pair)
    lengths = np.stack([side.lengths for side in pair])
    longest = lengths.max(0)
    order = np.argsort(generator.random(len(longest)) - longest, kind="stable")
    groups, begin = [], 0
    while begin < len(order):
        width = int(longest[order[begin]])
        rows = max(1, tokens // width)
        groups.append((order[begin : begin + rows], rows, width))
        begin += rows
    for index in generator.permutation(len(groups)):
        group, rows, width = groups[index]
        # Computed on the host: counting labels on the device would need a synchronisation.
        real = np.zeros((rows, width), bool)
        real[: len(group)] = np.arange(width) < lengths[1, group, None]
        count = int(real.sum())
        padded = min(real.size, math.ceil(count / LABELS) * LABELS)
        places = upload(np.argsort(~real, axis=None, kind="stable")[:padded], device)
        sentences = upload(np.resize(group, rows), device)
        ids, mask = source.rows(sentences, width)
        following, _ = target.rows(sentences, width)
        start = following.new_full((rows, 1), pad)
        labels = following.flatten()[places]
        labels[count:] = IGNORED
        yield Batch(ids, mask, torch.cat([start, following[:, :-1]], 1), labels, places)
