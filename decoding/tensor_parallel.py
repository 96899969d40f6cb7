"""Splits a checkpoint over the processes that torchrun has started (tensor parallelism)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from decoding import _C
from decoding.common import environment
from decoding.common.device import Device
from decoding.common.environment import instruction_set
from decoding.common.shapes import counted
from decoding.common.version import VERSION
from decoding.common.warn import warn
from decoding.engine.devices import choose_gpu, gpu_name, usual_threads
from decoding.engine.ranks import Group, Ranks, join
from decoding.generation.checks import whole
from decoding.models import Loaded
from decoding.models.spec import EncoderSpec
from decoding.models.weights.fingerprint import fingerprint
from decoding.models.weights.lazy import Weights
from decoding.models.weights.shapes import shapes
from decoding.models.weights.shards import Shard

PAYS = 1_000_000_000  # weights, from which on a split model is faster than a whole one


def group_of(tensor_parallel: int) -> Group | None:
    """None: the model stays whole. Raises TypeError and ValueError for what is no number of
    processes that there are."""
    size = whole(1)("tensor_parallel", tensor_parallel)
    return None if size == 1 else Group(size)


def together(group: Group | None) -> AbstractContextManager[None]:
    return nullcontext() if group is None else group.together()


def own_gpu(group: Group) -> Device:
    """The one with the rank's number. Raises ValueError where there are fewer."""
    there = len(_C.gpus())
    if group.local_rank >= there:
        raise ValueError(
            f"rank {group.rank} has no GPU of its own: it sees {there}. Start fewer ranks, let all "
            'see all GPUs, or, for a test, have them share one: device="cuda:0"'
        )
    return choose_gpu(group.local_rank)


def own_threads(threads: int | None, group: Group | None) -> int | None:
    """Those that were asked for, else a rank's part of the usual ones; None: all of these."""
    asked = environment.threads() if threads is None else threads
    return asked if group is None or asked is not None else max(1, usual_threads() // group.size)


def shard_of(
    loaded: Loaded, place: Device, group: Group, options: Mapping[str, object]
) -> tuple[Loaded, Ranks]:
    """This rank's shard. options: of load(), which must be the same on all ranks.

    Raises NotImplementedError and ValueError for a model that cannot be split so, ValueError where
    ranks differ, decoding.Error where there is no memory that they can share.
    """
    check_splittable(loaded)
    spec = loaded.spec
    assert not isinstance(spec, EncoderSpec)
    weights = loaded.state if isinstance(loaded.state, Weights) else Weights(loaded.state)
    shard = Shard(group.rank, group.size)
    own = shard.spec(spec)
    facts = {
        "the version": VERSION,
        "the build": _C.sources_hash,
        "the instruction set": instruction_set(_C.isas()),
        "the device": place.type if place.index is None else gpu_name(place),
        **options,
        "the configuration": dict(loaded.config),
        "the checkpoint": fingerprint(weights),
    }
    group.check_equal(facts)
    stacks = [spec.decoder] if spec.encoder is None else [spec.encoder, spec.decoder]
    tokens = -(-spec.decoder.vocab // group.size)
    ranks = join(group, max(tokens, *(stack.hidden for stack in stacks)), place)
    count = sum(math.prod(weights.lazy(name).shape) for name in shapes(spec) if name in weights)
    if count < PAYS and group.rank == 0:
        warn(
            f"a model of {counted(count)} weights is faster whole than with tensor_parallel="
            f"{group.size}, which pays from {counted(PAYS)} on: give each process sentences of its "
            "own instead (docs/how-to/several-gpus.md)"
        )
    state = shard.weights(spec, weights)
    return replace(loaded, spec=own, state=state, whole_spec=spec), ranks


def check_splittable(loaded: Loaded) -> None:
    if isinstance(loaded.spec, EncoderSpec):
        raise NotImplementedError("tensor_parallel is for models that generate, not for encoders")
    if loaded.packed:
        raise NotImplementedError(
            "a converted model is packed as a whole: pass tensor_parallel with the checkpoint that "
            "it was made from"
        )
