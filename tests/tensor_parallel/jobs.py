"""What two ranks do for test_tensor_parallel.py: see ranks.py."""

from __future__ import annotations

import os
import signal
import time
import warnings
from functools import cache
from typing import Any
from unittest import mock

import decoding
from tests.tensor_parallel.calls import CALLS, FP8, FP8_NAMES, first_step, long_texts, scored

RANK = int(os.environ.get("RANK", 0))
DEVICE = os.environ.get("DECODING_DEVICE", "cpu")
Given = dict[str, str]  # models' paths by their names
ENDLESS: dict[str, Any] = {"eos_token_id": None, "max_new_tokens": 45}


@cache
def load(path: str, threads: int = 1, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these models are too small
        return decoding.load(path, device=DEVICE, threads=threads, tensor_parallel=2, **options)


def compared(given: Given) -> dict[str, Any]:
    apart = ("gpt2-other", "wide")
    return {name: load(path) for name, path in given.items() if name not in apart}


def answers(given: Given) -> Any:
    """Of every call of every model."""
    return {
        (name, call): run(model)
        for name, model in compared(given).items()
        for call, run in CALLS.items()
    }


def scores(given: Given) -> Any:
    return {name: scored(model) for name, model in compared(given).items()}


def many_tokens(given: Given) -> Any:
    """More of them in an exchange than a GPU sends as words."""
    return long_texts(load(given["wide"]))


def in_half(given: Given) -> Any:
    name = ("float16", "bfloat16")[DEVICE == "cpu"]
    return {model: scored(load(given[model], dtype=name)) for model in ("gpt2", "marian")}


def in_fp8(given: Given) -> Any:
    """Of models whose keys and values are in fp8, the type that they say, and first_step()."""
    models = {name: load(given[name], **FP8) for name in FP8_NAMES}
    return {name: (str(m.kv_cache_dtype), *first_step(m)) for name, m in models.items()}


def sizes(given: Given) -> Any:
    """The bytes of the weights on each rank, and the numbers of the whole model."""
    return {
        name: (model.weight_bytes, model.num_parameters())
        for name, model in (
            compared(given) | {"demo": load("models/demo", dtype="float32")}
        ).items()
    }


def warned(given: Given) -> Any:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        decoding.load(given["gpt2"], device=DEVICE, threads=1, tensor_parallel=2).close()
    return [str(each.message) for each in found if "GPU" not in str(each.message)]


def other_types(given: Given) -> Any:
    dtype = ("float32", "bfloat16")[RANK]
    return str(decoding.load(given["gpt2"], device=DEVICE, tensor_parallel=2, dtype=dtype))


def other_models(given: Given) -> Any:
    """The same architecture and sizes, other numbers."""
    path = given[("gpt2", "gpt2-other")[RANK]]
    return str(decoding.load(path, device=DEVICE, tensor_parallel=2))


def other_versions(given: Given) -> Any:
    version = (decoding.__version__, "0.0.9")[RANK]
    with mock.patch("decoding.tensor_parallel.VERSION", version):
        return str(decoding.load(given["gpt2"], device=DEVICE, tensor_parallel=2))


def other_builds(given: Given) -> Any:
    """The same version, made of other sources."""
    with mock.patch.object(decoding._C, "sources_hash", f"sources {RANK}"):
        return str(decoding.load(given["gpt2"], device=DEVICE, tensor_parallel=2))


def missing(given: Given) -> Any:
    path = given["gpt2"] + "-none" * RANK
    return str(decoding.load(path, device=DEVICE, tensor_parallel=2))


def attentions(given: Given) -> Any:
    model = load(given["marian"])
    shown = {"return_dict_in_generate": True, "output_attentions": True}
    return model.generate([[5, 6, 3]], max_new_tokens=3, **shown)


def other_texts(given: Given) -> Any:
    return load(given["gpt2"]).generate([[5, 6 + RANK]], max_new_tokens=3)


def other_seeds(given: Given) -> Any:
    return load(given["gpt2"]).generate([[5, 6]], do_sample=True, seed=RANK, max_new_tokens=3)


def failing(given: Given) -> Any:
    """A function that raises on one rank."""

    def process(ids: Any, scores: Any) -> Any:
        if RANK == 1 and ids.shape[1] == 5:
            raise KeyError("of rank 1")
        return scores

    return load(given["gpt2"]).generate([[5, 6]], logits_processor=[process], **ENDLESS)


def again(given: Given) -> Any:
    """Calls after those that have failed."""
    return CALLS["greedy"](load(given["gpt2"]))


def out_of_time(given: Given) -> Any:
    """max_time ends a call at the same step on both, though rank 1 never finds it over."""

    def slowly(ids: Any, scores: Any) -> Any:
        time.sleep(0.02)
        return scores

    most = (0.1, 1e6)[RANK]
    options = {"logits_processor": [slowly], "max_time": most, **ENDLESS}
    return load(given["gpt2"]).generate([[5, 6]], **options).tolist()


def killed(given: Given) -> Any:
    """Rank 1 dies in the middle of a call. What the other says, and after how many seconds."""
    died = []

    def process(ids: Any, scores: Any) -> Any:
        if ids.shape[1] == 5:
            died.append(time.monotonic())
            if RANK == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        return scores

    try:
        load(given["gpt2"]).generate([[5, 6]], logits_processor=[process], **ENDLESS)
    except decoding.Error as error:
        return str(error), time.monotonic() - died[0]
    return None


JOBS = {
    job.__name__: job
    for job in (
        answers,
        scores,
        many_tokens,
        in_half,
        in_fp8,
        sizes,
        warned,
        other_types,
        other_models,
        other_versions,
        other_builds,
        missing,
        attentions,
        other_texts,
        other_seeds,
        failing,
        again,
        out_of_time,
        killed,  # the last
    )
}
