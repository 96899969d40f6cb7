"""Records the answers of all cases, and compares them with a record.

A record is a file for each place: the instruction set of a CPU, or the architecture of a GPU. The
first instruction set of a machine has all cases, the others a part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers

import decoding
from tests.golden.answers import answer, is_decoder_only
from tests.golden.cases import Case, base_cases, search_cases, shortlist_cases
from tests.golden.models import GENERATORS, VOCAB, source_of, uniform
from tests.support.families import ENCODERS

FOLDER = Path(__file__).parent
COMPLETE = ("marian", "gpt2")  # models that all options are recorded of
PART = ("marian", "gpt2", "llama", "bert")  # models of the other instruction sets
# Their tables are products of NumPy's, whose last bits differ between processors: so do scores'.
COMPUTED = ("opt-projected",)
# What is given to load().
CPU_TYPES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "int8"},
    "float32, cache bfloat16": {"dtype": "float32", "kv_cache_dtype": "bfloat16"},
}
CUDA_TYPES: dict[str, dict[str, Any]] = {
    dtype: {"dtype": dtype} for dtype in ("float32", "float16", "bfloat16")
}
Answers = dict[str, dict[str, str]]  # by model and type, then by case

torch.set_num_threads(1)
# Autotuning takes the algorithm that is fastest at the moment, and their last bits differ.
os.environ["DECODING_TUNE"] = "0"


def isas() -> list[str]:
    """The instruction sets that this machine has, the one in use first."""
    return list(decoding._C.isas())


def place_of(device: str) -> str:
    """The name of a record's file."""
    if device == "cpu":
        return f"cpu-{isas()[0]}"
    return "cuda-sm{}{}".format(*torch.cuda.get_device_capability())


def answers(place: str, part: bool = False) -> Iterator[tuple[str, str, str]]:
    """Model and type, case, answer. part: only PART, with few options."""
    device, _, isa = place.partition("-")
    forced = [isa] if device == "cpu" else isas()
    types = CPU_TYPES if device == "cpu" else CUDA_TYPES
    with patch.object(decoding._C, "isas", lambda: forced), TemporaryDirectory() as folder:
        shortlist = write_shortlist(Path(folder) / "shortlist.npz") if device == "cpu" else None
        for name in PART if part else [*GENERATORS, *ENCODERS]:
            with source_of(name) as source:
                for kind, options in types.items():
                    if not supports(name, options):
                        continue
                    model = decoding.load(source, device, threads=1, **options)
                    assert device == "cuda" or model.isa == isa
                    for case in cases_of(name, model, shortlist, part):
                        yield f"{name}, {kind}", case.name, answer(model, case)


def supports(name: str, options: dict[str, Any]) -> bool:
    return "kv_cache_dtype" not in options or name in (*COMPLETE, "llama", "t5")


def cases_of(name: str, model: Any, shortlist: str | None, part: bool) -> list[Case]:
    if name in ENCODERS:
        return [Case("encode", "encode"), Case("plan", "memory_plan")]
    cases = base_cases()
    if name in COMPLETE and not part:
        encoder_decoder = not is_decoder_only(model)
        cases += search_cases(encoder_decoder)
        if encoder_decoder and shortlist is not None:
            cases += shortlist_cases(shortlist)
    return cases


def write_shortlist(path: Path) -> str:
    """Four tokens for each of the source, and some that are always there."""
    candidates = (30 * (1 + uniform("candidates", (VOCAB, 4)))).int().numpy()
    np.savez(
        path,
        candidates=candidates.astype(np.int32),
        frequent=np.array([3, 20, 41, 50, 51], np.int32),
        target_ids=np.int32(VOCAB),
    )
    return str(path)


def collect(place: str, part: bool = False) -> Answers:
    found: Answers = {}
    for model, case, result in answers(place, part):
        cases = found.setdefault(model, {})
        assert case not in cases, f"two cases of {model} are named {case}"
        cases[case] = result
    return found


def record(device: str) -> None:
    """Writes the files of this machine's `device`."""
    write(place_of(device))
    if device == "cpu":
        for isa in isas()[1:]:
            write(f"cpu-{isa}", part=True)


def write(place: str, part: bool = False) -> None:
    found = collect(place, part)
    made = f"torch {torch.__version__}, transformers {transformers.__version__}"
    if place.startswith("cuda"):
        made += f", {torch.cuda.get_device_name()}"
    text = json.dumps({"made with": made, "part": part, "answers": found}, indent=0)
    path_of(place).write_text(text + "\n", encoding="utf-8")
    print(f"{path_of(place).name}: {sum(map(len, found.values()))} answers")


def path_of(place: str) -> Path:
    return FOLDER / f"{place}.json"


def recorded_places(device: str) -> list[str]:
    """Those of `device` that this machine can repeat."""
    places = [f"cpu-{isa}" for isa in isas()] if device == "cpu" else [place_of(device)]
    return [place for place in places if path_of(place).exists()]


def differences(place: str) -> list[str]:
    """One line for each case whose answer is not that of the record."""
    stored = json.loads(path_of(place).read_text(encoding="utf-8"))
    old: Answers = stored["answers"]
    new = collect(place, stored["part"])
    lines = []
    for model in [*old, *(new.keys() - old.keys())]:
        before, after = (comparable(model, cases.get(model, {})) for cases in (old, new))
        for case in [*before, *(after.keys() - before.keys())]:
            if before.get(case) != after.get(case):
                change = what_changed(before.get(case), after.get(case))
                lines.append(f"{place}: {model}: {case}: {change}")
    return lines


def comparable(model: str, cases: dict[str, str]) -> dict[str, str]:
    """Answers without the bits of scores that are not ours."""
    if model.partition(",")[0] not in COMPUTED:
        return cases
    parts = {case: result.split() for case, result in cases.items()}
    return {case: f"{tokens} - {size}" for case, (tokens, _, size) in parts.items()}


def what_changed(before: str | None, after: str | None) -> str:
    if before is None:
        return "is not in the record"
    if after is None:
        return "is in the record alone"
    tokens, scores, size = (
        None if a == b else f"{a} -> {b}"
        for a, b in zip(before.split(), after.split(), strict=True)
    )
    said = {"tokens or plan": tokens, "scores' bits": scores, "mean score": size}
    return "; ".join(f"{what} {change}" for what, change in said.items() if change)
