"""Trains the bundled German-English model, on a GPU in minutes.

    python -m examples.train_a_translator.train --data DIR --out DIR --minutes 8

DIR of --data holds {train,dev,test}.{de,en}.gz. The recipe is for few pairs: dropout, label
smoothing, BPE-dropout on both sides (Provilkov et al. 2020), R-Drop (Liang et al. 2021) and the
average of the weights along the way. --plain trains with torch's own modules instead of ours.
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import sacrebleu
import torch

from decoding.models.torch.blocks import Dropout
from decoding.models.torch.transformer import Transformer
from examples.train_a_translator import export
from examples.train_a_translator.beam import translate
from examples.train_a_translator.corpus import (
    IGNORED,
    Lines,
    Packed,
    batches,
    encode,
    read_split,
    sampled_epochs,
    train_pieces,
)
from examples.train_a_translator.trainer import Trainer, make_model, make_spec

PIECES = 7999  # with padding, a vocabulary of 8,000


@dataclass(frozen=True)
class Corpus:
    pieces: bytes  # the SentencePiece model
    pad: int
    epochs: Generator[tuple[Packed, Packed]]  # of train
    lines: dict[str, Lines]  # of dev and test

    def judge(self, model: Transformer, split: str) -> tuple[list[str], list[list[str]]]:
        """Translations and references of a split, as sacrebleu takes them."""
        sources, references = self.lines[split]
        packed = encode(self.pieces, sources)
        return translate(model.eval(), self.pieces, packed, self.pad), [references]


@dataclass(frozen=True)
class Clock:
    """Measures the progress of a training: in steps where they are given, else in time."""

    minutes: float
    steps: int | None
    start: float = field(default_factory=time.monotonic)

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    def progress(self, step: int) -> float:
        return step / self.steps if self.steps else self.elapsed() / (60 * self.minutes)


def fit(trainer: Trainer, corpus: Corpus, clock: Clock) -> Transformer:
    """Trains until progress is 1; returns the averaged weights with the best BLEU on dev."""
    args, order = trainer.args, np.random.default_rng(trainer.args.seed)
    best, best_bleu, evaluated, progress = copy.deepcopy(trainer.average), -1.0, 0, 0.0
    labels = torch.zeros((), dtype=torch.int64, device=trainer.device)
    trainer.model.train()
    while progress < 1:
        for batch in batches(next(corpus.epochs), corpus.pad, args.tokens, order, trainer.device):
            value = trainer.step(batch, progress)
            labels += (batch.labels != IGNORED).sum()
            progress = min(1.0, clock.progress(trainer.steps))
            if progress * args.evaluations < evaluated + 1:
                continue
            evaluated += 1
            speed = labels.item() / clock.elapsed()  # item() waits for the updates
            bleu = sacrebleu.corpus_bleu(*corpus.judge(trainer.average, "dev")).score
            if bleu > best_bleu:
                best_bleu = bleu
                best.load_state_dict(trainer.average.state_dict())
            print(
                f"{progress:4.0%}  step {trainer.steps}  loss {value.item():.3f}  "
                f"{speed:,.0f} labels/s  dev BLEU {bleu:.2f}",
                flush=True,
            )
            if progress == 1:
                break
    return best


def main() -> None:
    args = parse_arguments()
    # Each step of a search takes a little more memory than the last, and nothing of the same size
    # is ever free: without this a GPU's peak was 78 GB in place of 18.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = Path(args.data)
    pieces = train_pieces([line for side in read_split(data, "train") for line in side], PIECES)
    vocab = PIECES + 1  # and padding
    corpus = Corpus(
        pieces=pieces,
        pad=vocab - 1,
        epochs=sampled_epochs(pieces, data, args.bpe_dropout, args.workers),
        lines={split: read_split(data, split) for split in ("dev", "test")},
    )

    rates = Dropout(block=args.dropout, attention=0.1, activation=0.1)
    start = make_model(make_spec(*args.shape, vocab=vocab), rates, args.plain).to(device)
    model = fit(Trainer(start, args), corpus, Clock(args.minutes, args.steps))
    corpus.epochs.close()

    export.save(model, pieces, Path(args.out))
    for split in ("dev", "test"):
        found, references = corpus.judge(model, split)
        (Path(args.out) / f"{split}.en").write_text("\n".join(found) + "\n", encoding="utf-8")
        bleu = sacrebleu.corpus_bleu(found, references)
        chrf = sacrebleu.corpus_chrf(found, references)
        print(f"{split}: BLEU {bleu.score:.2f}, chrF {chrf.score:.2f}", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", required=True, help="a folder of {train,dev,test}.{de,en}.gz")
    add("--out", required=True, help="where the model directory is written")
    add("--minutes", type=float, default=8, help="of training")
    add("--steps", type=int, help="end after this many steps instead")
    add("--seed", type=int, default=1)
    add(
        "--tokens",
        type=int,
        default=16384,
        help="tokens of a batch on each side, padding included",
    )
    add("--warmup", type=int, default=2000, help="steps until the full learning rate")
    add(
        "--evaluations",
        type=int,
        default=16,
        help="of the average on dev",
    )
    add("--workers", type=int, default=10, help="processes that cut text into subwords")
    add("--bpe-dropout", type=float, default=0.1)
    add(
        "--r-drop",
        type=float,
        default=4.0,
        help="weight of the divergence of two passes",
    )
    shape = ("ENCODER", "DECODER", "HIDDEN", "HEADS", "FFN")
    add("--shape", type=int, nargs=5, default=(4, 3, 256, 4, 896), metavar=shape)
    add("--rate", type=float, default=1.5e-3, help="peak of the learning rate")
    add("--dropout", type=float, default=0.1)
    add("--plain", action="store_true", help="torch's modules instead of decoding.nn's")
    return parser.parse_args()


if __name__ == "__main__":
    main()
