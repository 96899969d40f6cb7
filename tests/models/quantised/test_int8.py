"""Checkpoints in int8, and in e4m3 for a GPU: their numbers and scales are those of the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import decoding
from decoding.models import load
from decoding.models.weights.places import companions, is_linear
from decoding.models.weights.shards import Shard
from tests.models.quantised.checkpoints import (
    LAYOUTS,
    Layout,
    assert_equal,
    loaded_plain,
    tensors,
    theirs,
    write_quantised,
)
from tests.support.checkpoints import State
from tests.support.families import ragged
from tests.support.packed import int8_rows, pack


def stored_linears(name: str, layout: Layout) -> tuple[State, State]:
    """The bytes of numbers, int8, and scales as stored, by the names of the modules."""
    state, _ = tensors(theirs(name), layout)
    found = {key: tensor for key, tensor in state.items() if tensor.dtype == layout.dtype}
    stems = [key.removesuffix(".weight") for key in found]
    numbers = {stem: found[f"{stem}.weight"].view(torch.int8) for stem in stems}
    rows = {stem: state[f"{stem}.{layout.scale_name}"].reshape(-1).float() for stem in stems}
    return numbers, {stem: rows[stem].expand(len(numbers[stem])) for stem in stems}


def by_head(rows: Tensor) -> Tensor:
    """Each head's query, key and value together become all queries, all keys, all values."""
    return rows.view(4, 3, -1, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)


STACKED = [f"self_attn.{part}_proj" for part in "qkv"]
# Where the rows of a weight were stored.
STORED: dict[str, tuple[str, Callable[[State], Tensor]]] = {
    "llama": (
        "decoder.layers.1.self_attention.qkv",
        lambda state: torch.cat([state[f"model.layers.1.{part}"] for part in STACKED]),
    ),
    "llama head": ("output", lambda state: state["lm_head"]),
    "phi3": (
        "decoder.layers.0.feed_forward.up",
        lambda state: state["model.layers.0.mlp.gate_up_proj"],
    ),
    "gpt-neox": (
        "decoder.layers.0.self_attention.qkv",
        lambda state: by_head(state["gpt_neox.layers.0.attention.query_key_value"]),
    ),
    "bart": (
        "decoder.layers.0.cross_attention.kv",
        lambda state: torch.cat(
            [state[f"model.decoder.layers.0.encoder_attn.{part}_proj"] for part in "kv"]
        ),
    ),
}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *(("llama", "int-flat-channel"), ("llama head", "int-flat-channel")),
        *(("phi3", "int-tensor"), ("gpt-neox", "int-channel"), ("bart", "int-channel")),
        *(("llama", "fp8-one-scale"), ("phi3", "float-tensor")),
        *(("gpt-neox", "float-channel"), ("bart", "float-channel")),
    ],
)
def test_numbers_and_scales_are_kept(name: str, layout: str, tmp_path: Path) -> None:
    weight, rows = STORED[name]
    family, kind = name.partition(" ")[0], LAYOUTS[layout].dtype
    numbers, scale = map(rows, stored_linears(family, LAYOUTS[layout]))
    if layout == "int-tensor":  # int8 of our own would take other scales
        assert (numbers.abs().amax(1) < 127).any()
    write_quantised(tmp_path, theirs(family), LAYOUTS[layout])
    loaded = load(tmp_path)
    on_gpu = pack(loaded.state, loaded.spec, "cuda", torch.int8)
    assert on_gpu[f"{weight}.weight"].dtype == kind
    assert torch.equal(on_gpu[f"{weight}.weight"].view(torch.int8), int8_rows(numbers))
    assert torch.equal(on_gpu[f"{weight}.scale"], scale)
    if kind != torch.int8:
        return
    on_cpu = pack(loaded.state, loaded.spec, "cpu", torch.int8)
    panels = torch.empty_like(on_cpu[f"{weight}.weight"])
    lines = torch.zeros(64 * len(panels), -(-numbers.shape[1] // 4) * 4, dtype=torch.int8)
    lines[: len(numbers), : numbers.shape[1]] = numbers
    lines = lines.view(len(panels), 64, -1, 4).transpose(1, 2).reshape(panels.shape)
    assert torch.equal(on_cpu[f"{weight}.weight"], lines)
    assert torch.equal(on_cpu[f"{weight}.scale"], scale)
    assert torch.equal(on_cpu[f"{weight}.sums"], numbers.sum(1, dtype=torch.int32))


def test_int8_is_multiplied_as_it_is(tmp_path: Path) -> None:
    """Activations are quantised alone: against float32 with the same weights."""
    write_quantised(tmp_path, theirs("llama"), LAYOUTS["int-flat-channel"])
    ids = ragged(theirs("llama"), 40, 9)["input_ids"]
    found, exact = (
        decoding.load(tmp_path, "cpu", dtype, threads=1).score(ids).token_logprobs[:, 1:]
        for dtype in ("int8", "float32")
    )
    assert not decoding.load(tmp_path, "cpu", "int8", threads=1).unquantized
    assert (found - exact).abs().mean() < 0.05 * exact.std()


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["int-flat-channel", "fp8-blocks"])
def test_int8_on_a_gpu(layout: str, tmp_path: Path) -> None:
    """Of the checkpoint and of what it was converted to: the same logits, close to float32's with
    the same weights."""
    write_quantised(tmp_path / "model", theirs("llama"), LAYOUTS[layout])
    decoding.load(tmp_path / "model", "cpu", "int8", threads=1).save(tmp_path / "converted")
    ids = ragged(theirs("llama"), 40, 9)["input_ids"]
    half: dict[str, Any] = {"kv_cache_dtype": "bfloat16", "deterministic": True}
    models = [
        decoding.load(tmp_path / "model", "cuda", "int8", **half),
        decoding.load(tmp_path / "converted", "cuda", **half),
        decoding.load(tmp_path / "model", "cuda", "float32"),
    ]
    direct, converted, exact = (model.score(ids).token_logprobs[:, 1:] for model in models)
    assert torch.equal(direct, converted)
    assert (direct - exact).abs().mean() < 0.05 * exact.std()


@pytest.mark.gpu
def test_e4m3_on_a_gpu(tmp_path: Path) -> None:
    """Its weights are exact, so that it is as close to float32 as 16 bits are; quantised anew it is
    not."""
    write_quantised(tmp_path, theirs("llama"), replace(LAYOUTS["float-channel"], head=True))
    ids = ragged(theirs("llama"), 40, 9)["input_ids"]
    converted = tmp_path / "converted"
    decoding.load(tmp_path, "cpu", "int8", threads=1).save(converted)
    exact, half, kept, anew = (
        decoding.load(path, "cuda", dtype, kv_cache_dtype=cache).score(ids).token_logprobs[:, 1:]
        for path, dtype, cache in [
            (tmp_path, "float32", "auto"),
            (tmp_path, "float16", "auto"),
            (tmp_path, "int8", "float16"),
            (converted, "auto", "float16"),
        ]
    )
    assert (kept - exact).abs().mean() < 1.5 * (half - exact).abs().mean()
    assert (anew - exact).abs().mean() > 3 * (half - exact).abs().mean()


@pytest.mark.parametrize(
    ("layout", "device"),
    [
        *(("int-asymmetric", "cpu"), ("int-group", "cpu"), ("float-channel", "cpu")),
        *(("int-group", "cuda"), ("fp8-blocks", "cuda")),
    ],
)
def test_other_numbers_are_quantised_anew(layout: str, device: str, tmp_path: Path) -> None:
    write_quantised(tmp_path, theirs("llama"), LAYOUTS[layout])
    loaded, plain = load(tmp_path), loaded_plain("llama", layout)
    assert_equal(
        pack(loaded.state, loaded.spec, device, torch.int8),
        pack(plain.state, plain.spec, device, torch.int8),
    )


@pytest.mark.parametrize("layout", ["int-flat-channel", "float-channel"])
@pytest.mark.parametrize("name", ["llama", "phi3", "bart", "t5"])
def test_ranks_have_the_numbers_of_the_whole(name: str, layout: str, tmp_path: Path) -> None:
    """Of weights that a rank has rows of, and of those that it has columns of."""
    write_quantised(tmp_path, theirs(name), LAYOUTS[layout])
    loaded, whole = load(tmp_path), loaded_plain(name, layout)
    for rank in range(2):
        shard = Shard(rank, 2)
        spec = shard.spec(loaded.spec)  # type: ignore[arg-type]
        own = shard.weights(loaded.spec, loaded.state)  # type: ignore[arg-type]
        assert_equal(own, shard.weights(whole.spec, whole.state))  # type: ignore[arg-type]
        packed = pack(own, spec, "cuda", torch.int8)
        for weight in filter(is_linear, own):
            kept = own.lazy(weight).quantised
            if kept is None:  # the layout leaves it, or it is tied
                assert weight == "output.weight"
                continue
            scale = torch.from_numpy(kept.scale.read())
            numbers = torch.from_numpy(kept.numbers.read()).to(LAYOUTS[layout].dtype)
            assert torch.equal(numbers.float() * scale[:, None], own[weight])
            stored = packed[weight].view(torch.int8)
            assert torch.equal(stored, int8_rows(numbers.view(torch.int8)))
            assert torch.equal(packed[companions(weight)[0]], scale)
