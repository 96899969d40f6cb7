"""Trains the bundled German-English model, on a GPU in minutes.

    python -m decoding.models.demo.train --data DIR --out DIR --minutes 8

DIR of --data holds {train,dev,test}.{de,en}.gz. The recipe is for few pairs: dropout, label
smoothing, BPE-dropout on both sides (Provilkov et al. 2020), R-Drop (Liang et al. 2021) and the
average of the weights along the way.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import sacrebleu
import torch
from torch import Tensor, nn

from decoding.models.blocks import Dropout
from decoding.models.demo import export
from decoding.models.demo.beam import translate
from decoding.models.demo.corpus import (
    Batch,
    Lines,
    Packed,
    batches,
    encode,
    read_split,
    sampled_epochs,
    train_pieces,
)
from decoding.models.spec import ModelSpec, StackSpec
from decoding.models.transformer import Transformer

PIECES = 7999  # with padding, a vocabulary of 8,000
SMOOTHING = 0.1
EMA = 0.999
POSITIONS = 512


@dataclass(frozen=True)
class Corpus:
    pieces: bytes  # the SentencePiece model
    pad: int
    epochs: Generator[tuple[Packed, Packed]]  # of train
    lines: dict[str, Lines]  # of dev and test

    def judge(self, model: Transformer, split: str) -> tuple[list[str], list[list[str]]]:
        """Translations and references, as sacrebleu takes them."""
        sources, references = self.lines[split]
        packed = encode(self.pieces, sources)
        return translate(model.eval(), self.pieces, packed, self.pad), [references]


def make_spec(
    encoder: int, decoder: int, hidden: int, heads: int, ffn: int, *, vocab: int
) -> ModelSpec:
    """Post-norm stacks of the same width, as Marian trains them."""

    def stack(layers: int) -> StackSpec:
        head_dim = hidden // heads
        return StackSpec(
            layers=layers,
            hidden=hidden,
            heads=heads,
            head_dim=head_dim,
            ffn=ffn,
            vocab=vocab,
            positions=POSITIONS,
            activation="silu",
            embed_scale=math.sqrt(hidden),
            embed_norm=False,
            pre_norm=False,
            final_norm=False,
            eps=1e-5,
            attention_scale=(head_dim**-0.5,) * layers,
        )

    return ModelSpec(encoder=stack(encoder), decoder=stack(decoder))


def loss(model: Transformer, batch: Batch, r_drop: float) -> Tensor:
    """The mean over labels of the smoothed cross-entropy. With `r_drop`, that of two dropout
    passes, plus `r_drop` / 4 of their symmetric divergence."""
    passes = 2 if r_drop else 1
    source, mask, target = (
        side.repeat(passes, 1) for side in (batch.source, batch.source_mask, batch.target)
    )
    hidden = model.decode(model.encode(source, mask), mask, target)
    # Only labels, no padding, pay for the large product with the output table.
    hidden = hidden.view(passes, -1, hidden.shape[-1])[:, batch.places]
    log_p: Tensor = model.output(hidden).float().log_softmax(-1)  # [passes, labels, V]
    likelihood = log_p.gather(-1, batch.labels.expand(passes, -1)[..., None]).mean()
    total = -(1 - SMOOTHING) * likelihood - SMOOTHING * log_p.mean()
    if r_drop:
        divergence = ((log_p[0].exp() - log_p[1].exp()) * (log_p[0] - log_p[1])).sum(-1).mean()
        total = total + r_drop / 4 * divergence
    return total


@dataclass(frozen=True)
class Clock:
    """How much of a training is over: counted in steps where they are given, else in time."""

    minutes: float
    steps: int | None
    start: float = field(default_factory=time.monotonic)

    def elapsed(self) -> float:
        """In seconds."""
        return time.monotonic() - self.start

    def progress(self, step: int) -> float:
        return step / self.steps if self.steps else self.elapsed() / (60 * self.minutes)


class Trainer:
    """A model, its optimizer and its running average (EMA)."""

    def __init__(self, model: Transformer, args: argparse.Namespace) -> None:
        self.model, self.args = model, args
        self.parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.average = copy.deepcopy(model).eval()
        self.averaged: list[Tensor] = [p for p in self.average.parameters() if p.requires_grad]
        self.average.requires_grad_(False)
        self.device = model.output.weight.device
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            betas=(0.9, 0.98),
            weight_decay=1e-4,
            fused=self.device.type == "cuda",
        )
        self.steps = 0

    def step(self, batch: Batch, progress: float) -> Tensor:
        """One update; linear warm-up, then a cosine down to nothing at `progress` 1."""
        args, cuda = self.args, self.device.type == "cuda"
        warm = min(1.0, (self.steps + 1) / args.warmup)
        self.optimizer.param_groups[0]["lr"] = args.rate * warm * math.cos(math.pi / 2 * progress)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=cuda):
            value = loss(self.model, batch, args.r_drop)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(value)
        nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        # Early on the average must forget the random start.
        decay = min(EMA, (self.steps + 1) / (self.steps + 10))
        with torch.no_grad():
            torch._foreach_lerp_(self.averaged, self.parameters, 1 - decay)
        self.steps += 1
        return value.detach()


def fit(trainer: Trainer, corpus: Corpus, clock: Clock) -> Transformer:
    """Trains until the clock is full; returns the average that was best on dev."""
    args, order = trainer.args, np.random.default_rng(trainer.args.seed)
    best, best_bleu, evaluated, labels = copy.deepcopy(trainer.average), -1.0, 0, 0
    progress = 0.0
    trainer.model.train()
    while progress < 1:
        for batch in batches(next(corpus.epochs), corpus.pad, args.tokens, order, trainer.device):
            value = trainer.step(batch, progress)
            labels += len(batch.labels)
            progress = min(1.0, clock.progress(trainer.steps))
            if progress * args.evaluations < evaluated + 1:
                continue
            evaluated += 1
            seconds = clock.elapsed()
            bleu = sacrebleu.corpus_bleu(*corpus.judge(trainer.average, "dev")).score
            if bleu > best_bleu:
                best_bleu = bleu
                best.load_state_dict(trainer.average.state_dict())
            print(
                f"{progress:4.0%}  step {trainer.steps}  loss {value.item():.3f}  "
                f"{labels / seconds:,.0f} labels/s  dev BLEU {bleu:.2f}",
                flush=True,
            )
            if progress == 1:
                break
    return best


def main() -> None:
    args = parse_arguments()
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
    start = Transformer(make_spec(*args.shape, vocab=vocab), tied=True, dropout=rates).to(device)
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
        description=__doc__.partition("\n")[0],
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
        help="tokens of a batch, on its longer side",
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
    return parser.parse_args()


if __name__ == "__main__":
    main()
