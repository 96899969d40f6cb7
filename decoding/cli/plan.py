"""Prints the memory that a model plans for given sizes: every buffer, and the total.

The weights are not part of it. On a GPU also the number of nodes in the graph of a decoding step.
"""

from __future__ import annotations

import argparse

import decoding
from decoding.cli.arguments import add_model_arguments, load_model, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    sizes = {
        "batch": "sentences of a batch (default: 1)",
        "beams": "beams or samples of a sentence (default: 1)",
        "source": "source tokens of a sentence (default: 64; for encoder-decoders)",
        "prompt": "prompt tokens of a sentence (default: 1)",
        "target": "new tokens of a row (default: 64)",
    }
    for name, help in sizes.items():
        parser.add_argument(f"--{name}", type=positive, metavar="N", help=help)


def run(args: argparse.Namespace) -> None:
    model = load_model(args)
    reads_source = model.is_encoder or model.spec.encoder is not None
    if args.source and not reads_source:
        raise ValueError("this model has a decoder alone: leave --source out")
    limits = decoding.Limits(
        batch=args.batch or 1,
        beams=args.beams or 1,
        source=(args.source or 64) if reads_source else 0,
        prompt=args.prompt or 1,
        target=args.target or 64,
    )
    print(model.memory_plan(limits))
    if model.device.type == "cuda" and not model.is_encoder:
        model.generate([[0]], num_beams=limits.beams, max_new_tokens=1, attention_mask=[[1]])
        print(f"a decoding step is a graph of {model.graph_nodes} nodes")
