"""What may be imported without torch, which takes more than a second."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from decoding.models.registry import FAMILIES
from tests.support.dependencies import ROOT

# All that a call of a loaded model goes through, but for what takes or gives tensors.
WITHOUT_TORCH = (
    "decoding.engine.session",
    "decoding.generation.call",
    "decoding.loading",
    "decoding.models.formats",
    "decoding.models.registry",
    "decoding.scoring",
    "decoding.serving.dispatch",
    "decoding.serving.planning",
    "decoding.text.complete",
    "decoding.text.stream_text",
    "decoding.text.tokenizers",
    "decoding.text.translate",
)


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_torch_is_not_needed_to_import(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import {module}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_no_family_needs_torch() -> None:
    families = {f"decoding.models.families.{file}" for _, _, file in FAMILIES}
    code = f"import sys; sys.modules['torch'] = None; import {', '.join(sorted(families))}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_what_few_programs_need_does_not_delay_the_others() -> None:
    code = "import sys; sys.modules |= {'asyncio': None, 'yaml': None}; import "
    modules = "decoding.loading, decoding.text.translate, decoding.text.complete"
    subprocess.run([sys.executable, "-c", code + modules], cwd=ROOT, check=True)


def test_programs_start_no_threads_of_numpy() -> None:
    """They would wait in a loop beside the engine's."""
    pytest.importorskip("threadpoolctl", reason="scikit-learn, of lm-eval, brings it")
    environment = {name: value for name, value in os.environ.items() if "BLAS" not in name}
    code = """
import os
from decoding.cli.main import main
main(["translate", "--model", "models/demo", "--threads", "1", os.devnull])
import numpy, threadpoolctl
pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
assert pools and all(pool["num_threads"] == 1 for pool in pools), pools
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
