from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.server.live import Live
from tests.server.models import all_models


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """All kinds of models."""
    with Live(all_models(tmp_path_factory.mktemp("models")), deadline=60) as live:
        yield live


@pytest.fixture(scope="session")
def client(live: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
