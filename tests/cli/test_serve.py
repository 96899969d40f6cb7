"""`decoding serve`: its arguments, and what they become."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import decoding.server
from decoding.cli.serve.models import named, shared_memory
from decoding.common.device import CPU, Device
from decoding.serving import Settings
from decoding.serving.planning import SHARE
from tests.cli.program import Program, one_line
from tests.support.demo import DEMO

STORIES = DEMO.parents[1] / "tests/data/stories260K"


def test_arguments(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    for words, says in {
        "": "the following arguments are required: -m/--model",
        f"--model {DEMO} --memory 5X": "must be bytes such as 500M or 4G, got '5X'",
        f"--model {DEMO} --deadline 0": "must be seconds above 0",
        f"--model {DEMO} --port 0 --model demo={DEMO}": "two models are named demo: pass --model",
        f"--model {DEMO} --ssl-keyfile nowhere.pem": "there is no file 'nowhere.pem'",
        f"--model {DEMO} --ssl-keyfile {__file__}": "needs the certificate: pass --ssl-certfile",
        f"--model {DEMO} --port 65536": "must be from 0 to 65535, got '65536'",
        f"--model {DEMO} --max-beam 3": "did you mean --max-beams?",
        "--model nowhere --port 0": "nowhere",
        f"--model {DEMO} --api-key=": "an API key must not be empty",
    }.items():
        status, out, err = program("serve", *words.split())
        assert (status, out) == (2, "") and says in err
    served = list[Any]()
    monkeypatch.setattr("decoding.server.run.run", lambda app, **given: served.append((app, given)))
    monkeypatch.setenv("DECODING_API_KEY", "secret")
    words = f"--model one={DEMO} --model two={STORIES} --memory 64M --max-beams 3 --threads 1"
    more = "--max-queue-seconds 1.5 --log-level error --port 0 --cors-origin https://a.example"
    assert program("serve", *words.split(), *more.split()).status == 0
    [(app, given)] = served
    site = app.state.site
    settings = Settings(
        max_beams=3,
        max_queue_seconds=1.5,
        api_keys=("secret",),
        cors_origins=("https://a.example",),
    )
    assert list(site.models) == ["one", "two"] and site.settings == settings
    assert site.models["one"].engine.memory_plan().bytes <= 64 << 20
    assert (given["port"], given["host"], given["drain"]) == (0, "127.0.0.1", 30)
    assert given["timeout_keep_alive"] == 75
    site.close()


def test_where_nothing_can_listen(program: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        taken = program("serve", "--model", str(DEMO), "--port", port)
    assert taken.status == 2 and one_line(taken.err) and "already in use" in taken.err
    unknown = program("serve", "--model", str(DEMO), "--host", "300.1.1.1")
    assert unknown.status == 2 and one_line(unknown.err)
    assert "error: --host 300.1.1.1 --port 8000: " in unknown.err


def test_names_of_models(tmp_path: Path) -> None:
    (tmp_path / "a=b").mkdir()
    assert named("models/demo") == ("demo", "models/demo")
    assert named("x=models/demo") == ("x", "models/demo")
    assert named(str(tmp_path / "a=b")) == ("a=b", str(tmp_path / "a=b"))
    assert named("google/some-model") == ("google/some-model", "google/some-model")


def test_the_extra_is_named(program: Program) -> None:
    program.monkeypatch.setitem(sys.modules, "starlette", cast(Any, None))
    program.monkeypatch.setattr(decoding, "server", decoding.server)  # which an import sets anew
    for name in [
        name for name in sys.modules if name.startswith(("decoding.server", "starlette."))
    ]:
        program.monkeypatch.delitem(sys.modules, name)
    status, _, err = program("serve", "--model", str(DEMO))
    assert status == 2 and "pip install decoding[serve]" in err and os.linesep not in err[:-1]


def test_models_of_a_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = decoding.load(STORIES, device="cpu", threads=1).spec
    monkeypatch.setattr("decoding.cli.serve.models.available_memory", lambda device: 1000)

    def shared(*places: Device, spec: object = spec) -> int | None:
        models: Any = {i: SimpleNamespace(any_spec=spec, place=p) for i, p in enumerate(places)}
        return shared_memory(models)

    gpu = Device("cuda", 0)
    assert shared(gpu, gpu) == 1000 * SHARE["cuda"] / 2
    assert shared(gpu) is shared(CPU, CPU) is None, "each takes what it takes by itself"
    assert shared(gpu, gpu, spec=None) is None, "encoders have no engine"
