"""Prints the memory that a model needs for given sizes: weights, keys and values, a step, in all.

On a GPU also the number of nodes in the graph of a decoding step.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

import decoding
from decoding.cli.arguments import add_model_arguments, load_model, positive, size
from decoding.cli.search import checked

if TYPE_CHECKING:
    from decoding.engine.memory import MemoryPlan

TOKENS = 64  # of a source and of a target, where nobody says how many
BEAMS = ("--num-beams", "--beam-size")


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
        names = [f"--{name}", *(BEAMS if name == "beams" else ())]
        kind = checked("num_beams", int) if name == "beams" else positive
        parser.add_argument(*names, dest=name, type=kind, metavar="N", help=help)
    add = parser.add_argument_group("decoding.Engine").add_argument
    add("--engine", action="store_true", help="plan an engine, and say how many such requests fit")
    add("--memory", type=size, metavar="BYTES", help="of its block; 4G, 500M")
    add("--max-requests", type=positive, metavar="N", help="rows that step at once")
    parser.add_argument("--full", action="store_true", help="every buffer, with its place")


def run(args: argparse.Namespace) -> None:
    if not args.engine and (args.memory or args.max_requests):
        raise ValueError("--memory and --max-requests are of an engine: add --engine")
    if args.engine and args.batch:
        raise ValueError(
            "--batch and --engine do not go together: an engine has pages, not batches"
        )
    model = load_model(args)
    encoder = model.encoder_spec.encoder if model.is_encoder else model.spec.encoder
    positions = model.encoder_spec.longest if model.is_encoder else model.spec.decoder.positions
    if args.source and encoder is None:
        raise ValueError("this model has a decoder alone: leave --source out")
    limits = decoding.Limits(
        batch=args.batch or 1,
        beams=args.beams or 1,
        source=(args.source or min(TOKENS, encoder.positions)) if encoder else 0,
        prompt=args.prompt or 1,
        target=args.target or min(TOKENS, positions),
    )
    plan = engine_plan(model, args) if args.engine else model.memory_plan(limits)
    if args.full:
        print(plan.table(), end="\n\n")
    print(plan)
    if args.engine:
        print(said_to_fit(plan, limits))
    elif model.place.type == "cuda" and not model.is_encoder:
        beams = limits.beams
        model.prepare([[0]], attention_mask=[[1]], num_beams=beams, max_new_tokens=1).run_batches()
        print(f"a decoding step is a graph of {model.graph_nodes} nodes")


def engine_plan(model: decoding.Model, args: argparse.Namespace) -> MemoryPlan:
    """The plan of decoding.Engine, which is not made."""
    from decoding.serving.planning import engine_limits, planned

    engine = model.bind_engine()
    limits = engine_limits(engine, model.spec, model.place, args.memory, args.max_requests)
    return replace(planned(engine, limits), weights=model.weight_bytes)


def said_to_fit(plan: MemoryPlan, limits: decoding.Limits) -> str:
    sizes = {name: getattr(limits, name) for name in ("source", "prompt", "target", "beams")}
    said = ", ".join(f"{name} {size}" for name, size in sizes.items() if size)
    return f"requests of {said} that fit at once: {plan.requests(**sizes)}"
