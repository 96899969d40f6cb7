"""What each layer costs in a smaller type: logits of the model with that layer alone in it.

The decoder reads the references; the logits of every step are compared with those of the model in
float32. A layer that int8 is too coarse for is kept in bfloat16 (panels.py), and says so.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.cases import texts
from benchmarks.report.rows import show_and_write
from decoding import models
from decoding.binding import Bound, engine_packer
from decoding.compare.environment import environment
from decoding.model import Model
from decoding.models.weights.dtypes import name_of
from decoding.models.weights.placed import pack
from decoding.models.weights.places import companions, is_linear


@dataclass(frozen=True)
class LayerRow:
    """One layer in a model of one type. kept: what the layer itself is in then. error: the largest
    difference of a logit; mean: over all logits; deviation: the standard deviation of the exact
    logits, to judge both by. changed: the share of steps where another token has the largest logit.
    """

    model: str
    text: str
    lines: int
    steps: int
    layer: str
    dtype: str
    kept: str
    error: float
    mean: float
    deviation: float
    changed: float
    isa: str
    device: str
    flags: str
    commit: str
    date: str

    def __str__(self) -> str:
        return (
            f"{self.dtype:8} {self.layer:42} largest {self.error:.4f}  mean {self.mean:.5f}  of "
            f"logits that deviate by {self.deviation:.2f}; {self.changed:.2%} best tokens changed"
        )


class Forced:
    """Sources with the targets that the decoder must write."""

    def __init__(self, model: Model, text: texts.Text) -> None:
        self.sources = [model.tokenizer.encode(line) for line in text.sources]
        self.targets = [model.tokenizer.encode_target(line) for line in text.references]

    def logits(self, model: Model) -> Tensor:
        """float32 [steps of all lines, V]."""
        found = model.generate(
            self.sources,
            num_beams=1,
            max_new_tokens=max(map(len, self.targets)),
            prefix_allowed_tokens_fn=lambda item, row: [self.targets[item][len(row) - 1]],
            output_logits=True,
            return_dict_in_generate=True,
        )
        assert found.logits is not None
        return torch.cat(
            [
                logits[[len(target) > step for target in self.targets]]
                for step, logits in enumerate(found.logits)
            ]
        )


@dataclass(frozen=True)
class Variant:
    """Packed weights of which one layer is in another type than float32, or all are."""

    layer: str
    kept: str
    weights: Bound


def variants(loaded: models.Loaded, dtype: str) -> Iterator[Variant]:
    """Each linear layer in turn as it is in a model of `dtype`, then that model."""
    packer = engine_packer(torch.get_num_threads())
    exact, other = (
        pack(loaded.state, loaded.spec, packer, dtype=each) for each in ("float32", dtype)
    )
    for name in filter(is_linear, loaded.state):
        own = (name, *companions(name))
        changed = {part: other[part] for part in own if part in other}
        kept = name_of(other[name].dtype)
        yield Variant(name.removesuffix(".weight"), kept, exact | changed)
    yield Variant("all", "", other)


def measure(options: argparse.Namespace) -> Iterator[LayerRow]:
    loaded = models.load(options.model)
    text = texts.joined(texts.read(options.text, options.lines))
    model = Model(loaded, threads=options.threads)
    forced = Forced(model, text)
    exact = forced.logits(model)
    for name in options.dtype:
        for variant in variants(loaded, name):
            packed = dataclasses.replace(loaded, state=variant.weights, packed=True)
            logits = forced.logits(Model(packed, dtype=name, threads=options.threads))
            errors = (logits - exact).abs()
            yield LayerRow(
                model=options.model.name,
                text=" ".join(f"{prefix.parent.name}/{prefix.name}" for prefix in options.text),
                lines=len(text.sources),
                steps=len(exact),
                layer=variant.layer,
                dtype=name,
                kept=variant.kept,
                error=float(errors.max()),
                mean=float(errors.mean()),
                deviation=float(exact.std()),
                changed=float((logits.argmax(-1) != exact.argmax(-1)).float().mean()),
                isa=model.isa,
                **asdict(environment()),
            )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layers", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="of Marian's architecture")
    texts.add_arguments(parser, lines=200)
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "int8"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="a CSV file for the rows")
    options = parser.parse_args(arguments)
    show_and_write(measure(options), options.output)


if __name__ == "__main__":
    main()
