"""The models that `decoding serve` is given, loaded, each with an engine."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import decoding
from decoding.engine.memory import available_memory
from decoding.models.spec import ModelSpec
from decoding.serving.planning import SHARE


def load_models(args: argparse.Namespace) -> dict[str, decoding.Engine | decoding.Model]:
    """An engine for each model; encoders alone have none. Raises ValueError for a name that comes
    twice."""
    models = dict[str, decoding.Model]()
    for given in args.model:
        name, directory = named(given)
        if name in models:
            raise ValueError(f"two models are named {name}: pass --model NAME=DIR")
        models[name] = decoding.load(
            directory,
            device=args.device,
            dtype=args.dtype,
            kv_cache_dtype=args.kv_cache_dtype,
            activation_dtype=args.activation_dtype,
            threads=args.threads,
            download=args.download,
            tensor_parallel=args.tensor_parallel,
        )
    memory = args.memory or shared_memory(models)
    options: dict[str, Any] = {"max_requests": args.max_requests, "overcommit": args.overcommit}
    return {
        name: decoding.Engine(model, memory, **options) if has_decoder(model) else model
        for name, model in models.items()
    }


def follow(models: Mapping[str, decoding.Engine | decoding.Model]) -> None:
    """What a rank other than 0 does: its engines follow those of rank 0 until they are closed.
    Raises decoding.Error where a rank ends before. Signals to end may go to all ranks, and rank 0
    says when."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for engine in models.values():
        assert isinstance(engine, decoding.Engine)  # encoders alone cannot be split
        engine.close()


def named(given: str) -> tuple[str, str]:
    """The name and the directory of --model."""
    name, equals, directory = given.partition("=")
    if equals and not Path(given).exists():
        return name, directory
    return Path(given).resolve().name if Path(given).exists() else given, given


def has_decoder(model: decoding.Model) -> bool:
    return isinstance(model.any_spec, ModelSpec)


def shared_memory(models: dict[str, decoding.Model]) -> int | None:
    """Of each engine, where several share a GPU: the first would take most of it."""
    engines = [model for model in models.values() if has_decoder(model)]
    device = engines[0].place if engines else None
    if len(engines) < 2 or device is None or device.type == "cpu":
        return None
    available = available_memory(device)
    return None if available is None else int(available * SHARE[device.type] / len(engines))
