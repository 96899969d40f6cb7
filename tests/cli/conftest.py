from __future__ import annotations

import pytest

from tests.cli.program import Program


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Program:
    return Program(monkeypatch, capsysbinary)
