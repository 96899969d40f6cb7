"""Bodies at random: see tests/server/bodies.py."""

from __future__ import annotations

import pytest

from tests.server.bodies import check
from tests.server.live import Live


@pytest.mark.filterwarnings("error:.*has no effect")
def test_no_body_is_a_fault(live: Live) -> None:
    cases = 600
    statuses = check(live, cases, seed=7)
    assert statuses[200] > 0.15 * cases < statuses[400] and set(statuses) <= {200, 400, 404, 413}
    live.assert_idle()
    found = live.ask("/v1/completions", {"prompt": "Once", "max_tokens": 4})
    assert found.status == 200 and found.json["usage"]["completion_tokens"] == 4
