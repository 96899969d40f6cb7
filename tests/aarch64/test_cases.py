"""That the program for aarch64 calls every CPU kernel, and that its answers are on record."""

from __future__ import annotations

import json
import re

from tests.aarch64.__main__ import ANSWERS, EXPECTED, PROCESSORS, ROOT, Answers, differences

DEFINED = re.compile(r"^ *template void (\w+)\(cpu::Stream<cpu::Isa::DECODING_ISA>&", re.MULTILINE)


def text_of(folder: str, pattern: str) -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / folder).glob(pattern)))


def test_every_cpu_kernel_has_a_case() -> None:
    kernels = set(DEFINED.findall(text_of("csrc/kernels", "*/cpu/*.cc")))
    program = text_of("tests/aarch64", "*_cases.cc") + text_of("tests/aarch64", "*_setup.h")
    called = set(re.findall(r"\b(\w+)\(stream, ", program))
    assert len(kernels) > 30
    assert sorted(kernels - called) == []


def test_a_changed_answer_is_named() -> None:
    recorded = json.loads(ANSWERS.read_text())
    found: Answers = {}
    for isa in [*PROCESSORS["max"], "bfloat16_model"]:
        found[isa] = {}
        for name in EXPECTED[isa]:
            found[isa] |= recorded[name]
    assert differences("max", found, recorded) == []
    found["neon_i8mm"]["linear/int8/5x37/0"] = "0"
    del found["portable"]["topk"]
    assert differences("max", found, recorded) == [
        "max: neon_i8mm: linear/int8/5x37/0 differs from fused",
        "max: portable: topk differs from portable",
    ]
    assert "not ['neon', 'portable']" in differences("cortex-a53", found, recorded)[0]
