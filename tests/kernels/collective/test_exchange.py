"""Exchanges of GPUs: to the bit what their formulas say, in words and behind flags, in graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.tensor_parallel.ranks import Ranks

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["peers", "host"])
def found(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Any]:
    """What both ranks say of each job of exchanges.py, through their own memory and the host's."""
    environment = {
        "DECODING_DEVICE": "cuda" if torch.cuda.device_count() > 1 else "cuda:0",
        "DECODING_PEER_ACCESS": str(int(request.param == "peers")),
    }
    folder = tmp_path_factory.mktemp("ranks")
    ranks = Ranks("tests.tensor_parallel.exchanges", {}, folder, environment=environment)
    results = ranks.results(timeout=200)
    assert ranks.processes[0].returncode == 0, ranks.errors[0]
    yield results


@pytest.mark.parametrize("job", ["sums", "columns", "captured"])
def test_exchanges_are_what_their_formulas_say(job: str, found: Any) -> None:
    assert [rank[job] for rank in found] == ["", ""]
