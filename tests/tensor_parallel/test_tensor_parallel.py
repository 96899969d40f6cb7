"""Models that two processes share out: the answers of one, the same bits on both, and ends that
neither waits for.

On a machine with one GPU both ranks are on it, where each exchange takes as long as the GPU lets
one of them wait for the other: the same kernels, slowly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import decoding
from decoding import _C
from decoding.models.spec import ModelSpec
from decoding.models.weights.lazy import Weights
from decoding.models.weights.shapes import shapes
from decoding.models.weights.shards import Shard, part_of
from tests.support.families import DECODER, FAMILIES, Family
from tests.support.random_models import reference
from tests.tensor_parallel.calls import CALLS, FP8, FP8_NAMES, first_step, long_texts, scored
from tests.tensor_parallel.ranks import Ranks

# Fused and shared tables; grouped heads; position tables, biases of scores; parallel blocks; norms
# after blocks and capped logits; one head of keys and values; heads and tokens of an odd number.
FAMILY_NAMES = ("llama", "t5", "bloom", "gptj", "gemma2")
OWN = {
    "mqa": Family("LlamaForCausalLM", DECODER | {"num_key_value_heads": 1, "vocab_size": 61}),
    "three-heads": Family("BloomForCausalLM", FAMILIES["bloom"].config | {
        "hidden_size": 48, "n_head": 3, "vocab_size": 63,
    }),
}  # fmt: skip
COMPARED = ("gpt2", "marian", *FAMILY_NAMES, *OWN)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    models = {name: reference(name) for name in ("gpt2", "marian")}
    models |= {name: (FAMILIES | OWN)[name].model() for name in (*FAMILY_NAMES, *OWN)}
    small = models["gpt2"].config.to_dict()
    models["gpt2-other"] = Family("GPT2LMHeadModel", small).model(1)
    wide = {"n_positions": 128, "n_embd": 256, "vocab_size": 2051}
    models["wide"] = Family("GPT2LMHeadModel", small | wide).model(1)
    for name, model in models.items():
        model.save_pretrained(folder / name)
    return {name: str(folder / name) for name in models}


WAYS = ("cpu", *(pytest.param(way, marks=pytest.mark.gpu) for way in ("cuda", "cuda-on-host")))


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """How the ranks exchange: GPUs do through their own memory, where they can, or the host's."""
    return str(request.param)


@pytest.fixture(scope="module")
def device(way: str) -> str:
    """Of each rank; one GPU for both where there is no other."""
    kind = way.partition("-")[0]
    return "cuda:0" if kind == "cuda" and len(_C.gpus()) == 1 else kind


@pytest.fixture(scope="module")
def found(
    way: str, device: str, paths: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """What both ranks find for every job of jobs.py."""
    peers = {"DECODING_PEER_ACCESS": "0"} if way == "cuda-on-host" else {}
    folder = tmp_path_factory.mktemp("ranks")
    environment = {"DECODING_DEVICE": device, **peers}
    ranks = Ranks("tests.tensor_parallel.jobs", paths, folder, environment=environment)
    results = ranks.results(timeout=500)
    assert ranks.processes[0].returncode == 0, ranks.errors[0]
    yield results


@pytest.fixture(scope="module")
def whole(device: str, paths: dict[str, str]) -> dict[str, Any]:
    return {name: decoding.load(paths[name], device=device, threads=1) for name in COMPARED}


@pytest.mark.parametrize("name", COMPARED)
def test_answers_are_those_of_one_process(name: str, found: Any, whole: dict[str, Any]) -> None:
    for call, run in CALLS.items():
        ours, others = (rank["answers"][name, call] for rank in found)
        expected = run(whole[name])
        np.testing.assert_array_equal(ours["sequences"], expected["sequences"], call)
        for part in expected:
            assert np.array_equal(ours[part], others[part], equal_nan=True), (call, part)
            finite = np.isfinite(expected[part])
            np.testing.assert_allclose(
                ours[part][finite], expected[part][finite], rtol=1e-4, atol=1e-4, err_msg=call
            )


@pytest.mark.parametrize("name", COMPARED)
def test_scores_are_those_of_one_process(name: str, found: Any, whole: dict[str, Any]) -> None:
    ours, others = (rank["scores"][name] for rank in found)
    np.testing.assert_array_equal(ours, others)
    np.testing.assert_allclose(ours, scored(whole[name]), rtol=1e-4, atol=1e-4)


def test_many_tokens_at_once(found: Any, device: str, paths: dict[str, str]) -> None:
    expected = long_texts(decoding.load(paths["wide"], device=device, threads=1))
    ours, others = (rank["many_tokens"] for rank in found)
    np.testing.assert_array_equal(ours["sequences"], expected["sequences"])
    for part in expected:
        np.testing.assert_array_equal(ours[part], others[part], part)
    np.testing.assert_allclose(ours["scores"], expected["scores"], rtol=1e-4, atol=1e-4)


def test_half_precision(found: Any, whole: dict[str, Any]) -> None:
    ours, others = (rank["in_half"] for rank in found)
    for name in ours:
        np.testing.assert_array_equal(ours[name], others[name], name)
        np.testing.assert_allclose(ours[name], scored(whole[name]), rtol=0.02, atol=0.02)


def test_keys_and_values_in_fp8(found: Any, device: str, paths: dict[str, str]) -> None:
    """Each rank rounds those of its own heads, as one GPU does: what differs is the order of sums.
    A CPU has no such type."""
    ours, others = (rank["in_fp8"] for rank in found)
    if device == "cpu":
        for refused in (ours, others):
            assert isinstance(refused, NotImplementedError) and "not supported on cpu" in str(
                refused
            )
        return
    for name in FP8_NAMES:
        kind, logits, scores = ours[name]
        assert kind == "torch.float8_e4m3fn"
        np.testing.assert_array_equal(logits, others[name][1], name)
        np.testing.assert_array_equal(scores, others[name][2], name)
        expected, expected_scores = first_step(decoding.load(paths[name], device, **FP8))
        np.testing.assert_allclose(logits, expected, 0, 0.05 * abs(expected).max(), err_msg=name)
        allowed = 0.2 * abs(expected_scores).max() + 0.1  # behind another token all differs
        np.testing.assert_allclose(scores, expected_scores, 0, allowed, err_msg=name)


def test_no_rank_has_the_whole_model(found: Any, device: str, whole: dict[str, Any]) -> None:
    """But for norms and positions nothing is there twice: 2 % of the demo model."""
    models = whole | {"demo": decoding.load("models/demo", device, "float32", threads=1)}
    for name, model in models.items():
        parts, counts = zip(*(rank["sizes"][name] for rank in found), strict=True)
        assert max(parts) < model.weight_bytes, name
        assert set(counts) == {model.num_parameters()}
    demo = [rank["sizes"]["demo"][0] for rank in found]
    assert sum(demo) < 1.03 * models["demo"].weight_bytes
    assert max(demo) < 0.52 * models["demo"].weight_bytes


def test_who_splits_a_small_model_is_warned_once(found: Any) -> None:
    [message] = found[0]["warned"]
    assert "is faster whole" in message
    assert found[1]["warned"] == []


REFUSED = {
    "other_types": (ValueError, "dtype is 'float32' on rank 0, 'bfloat16' on rank 1"),
    "other_models": (ValueError, "the checkpoint is"),
    "other_versions": (ValueError, f"the version is '{decoding.__version__}' on rank 0, '0.0.9'"),
    "other_builds": (ValueError, "the build is 'sources 0' on rank 0, 'sources 1' on rank 1"),
    "attentions": (NotImplementedError, "keeps no attention"),
    "other_texts": (decoding.Error, "asks for something else"),
    "other_seeds": (decoding.Error, "asks for something else"),
}


@pytest.mark.parametrize("job", REFUSED)
def test_what_ranks_cannot_do_together_is_refused_by_both(job: str, found: Any) -> None:
    kind, message = REFUSED[job]
    for rank in found:
        assert isinstance(rank[job], kind), rank[job]
        assert message in str(rank[job])


def test_an_error_of_one_rank_is_told_by_the_other(found: Any) -> None:
    ours, theirs = (rank["missing"] for rank in found)
    assert isinstance(theirs, FileNotFoundError)
    assert isinstance(ours, decoding.Error) and "rank 1 failed: FileNotFoundError" in str(ours)
    ours, theirs = (rank["failing"] for rank in found)
    assert isinstance(theirs, KeyError)
    assert isinstance(ours, decoding.Error) and "failed: KeyError: 'of rank 1'" in str(ours)


def test_calls_go_on_after_one_that_has_failed(found: Any, device: str) -> None:
    rounding = 0.0 if device == "cpu" else 1e-5  # a GPU's products may be others by then
    for rank in found:
        again, before = rank["again"], rank["answers"]["gpt2", "greedy"]
        np.testing.assert_array_equal(again["sequences"], before["sequences"])
        np.testing.assert_allclose(again["logits"], before["logits"], rounding, rounding)


def test_max_time_ends_a_call_at_one_step_on_all_ranks(found: Any) -> None:
    ours, others = (rank["out_of_time"] for rank in found)
    assert ours == others
    assert len(ours[0]) < 45  # tokens that 0.02 s each leave no time for


def test_a_rank_that_is_killed_ends_the_other(found: Any) -> None:
    message, seconds = found[0]["killed"]
    assert "rank 1 of 2 (process " in message and "has ended" in message
    assert seconds < 60  # it would wait for ever
    assert "killed" not in found[1]


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (6, 3), (8, 2), (6, 1), (5, 5)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_shards_are_all_of_a_model_and_nothing_twice(heads: int, kv_heads: int, ranks: int) -> None:
    """Heads of keys and values are there several times where there are fewer than ranks."""
    spec = spec_of(heads, kv_heads)
    if kv_heads < ranks and (ranks % kv_heads or heads // kv_heads < ranks // kv_heads):
        with pytest.raises(ValueError, match="tensor_parallel=|there are only"):
            [Shard(rank, ranks).spec(spec) for rank in range(ranks)]
        return
    rng = np.random.default_rng(0)
    state = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes(spec).items()}
    parts = [Shard(rank, ranks) for rank in range(ranks)]
    held = [part.weights(spec, state) for part in parts]
    for rank, part in enumerate(parts):
        own = part.spec(spec)
        assert {name: held[rank].lazy(name).shape for name in held[rank]} == shapes(own)
        assert list(own.decoder.tokens) == list(part_of(spec.decoder.vocab, rank, ranks))
    x = rng.standard_normal(heads * 8, np.float32)
    out = state["decoder.layers.0.self_attention.out.weight"] @ x
    np.testing.assert_allclose(summed(held, parts, spec, x), out, rtol=1e-4, atol=1e-4)
    tokens = np.concatenate([each.lazy("decoder.embed.tokens").read() for each in held])
    np.testing.assert_array_equal(tokens, state["decoder.embed.tokens"])


def summed(held: list[Weights], parts: list[Shard], spec: ModelSpec, x: np.ndarray) -> np.ndarray:
    """The output product of attention, over ranks, each of which reads its own heads of x."""
    total, first = np.zeros(spec.decoder.hidden, np.float32), 0
    for weights, part in zip(held, parts, strict=True):
        weight = weights.lazy("decoder.layers.0.self_attention.out.weight").read()
        total += weight @ x[first : first + weight.shape[1]]
        first += part.spec(spec).decoder.sizes(0).heads * spec.decoder.head_dim
    return total


def spec_of(heads: int, kv_heads: int) -> ModelSpec:
    config = DECODER | {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": 8 * heads,
        "head_dim": 8,
        "vocab_size": 61,
    }
    from decoding.models import load

    spec = load(Family("LlamaForCausalLM", config).model(1)).spec
    assert isinstance(spec, ModelSpec)
    return spec


def test_one_process_alone_is_told_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match="torchrun --nproc-per-node 2"):
        decoding.load("models/demo", device="cpu", tensor_parallel=2)
