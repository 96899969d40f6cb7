"""Parallel text as token ids: reading, the joint SentencePiece model, subword sampling, batches."""

from __future__ import annotations

import gzip
import io
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from torch import Tensor

EOS, UNK = 0, 1  # as published Marian vocabularies have them; padding is the last id

Lines = tuple[list[str], list[str]]  # sources, targets


def read_split(data: Path, split: str) -> Lines:
    """The lines of `split`.de.gz and `split`.en.gz."""
    source, target = (
        gzip.open(data / f"{split}.{language}.gz", "rt", encoding="utf-8").read().splitlines()
        for language in ("de", "en")
    )
    if len(source) != len(target):
        raise ValueError(f"{split}: {len(source)} sources but {len(target)} targets")
    return source, target


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


@dataclass(frozen=True)
class Batch:
    source: Tensor  # int64 [B, S]
    source_mask: Tensor  # bool [B, S]
    target: Tensor  # int64 [B, T], begins with padding as Marian's decoder does
    labels: Tensor  # int64 [labels], the next token of each target token, without padding
    places: Tensor  # int64 [labels], where each label belongs among the B * T


class DevicePacked:
    """A `Packed` on a device, which gathers padded rows there."""

    def __init__(self, packed: Packed, pad: int, device: torch.device) -> None:
        self.pad = pad
        self.ids = torch.from_numpy(packed.ids).to(device)
        self.offsets = torch.from_numpy(packed.offsets).to(device)

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
    """One epoch in random order. A batch has sentences of similar length, and on its longer side
    `tokens` tokens, padding included."""
    source, target = (DevicePacked(side, pad, device) for side in pair)
    widths = np.stack([side.lengths for side in pair])
    longest = widths.max(0)
    order = np.argsort(longest + generator.random(len(longest)), kind="stable")
    begins = [0]
    for row, length in enumerate(longest[order].tolist()):
        if (row + 1 - begins[-1]) * length > tokens:
            begins.append(row)
    groups = np.split(order, begins[1:])
    for index in generator.permutation(len(groups)):
        sentences = torch.from_numpy(groups[index]).to(device)
        source_width, target_width = widths[:, groups[index]].max(1).tolist()
        ids, mask = source.rows(sentences, source_width)
        labels, _ = target.rows(sentences, target_width)
        start = labels.new_full((len(labels), 1), pad)
        # Computed on the host: counting them on the device would need a synchronisation.
        lengths = widths[1, groups[index], None]
        places = torch.from_numpy(np.flatnonzero(np.arange(target_width) < lengths)).to(device)
        shifted = torch.cat([start, labels[:, :-1]], 1)
        yield Batch(ids, mask, shifted, labels.flatten()[places], places)
