"""The deployments in examples/serve: each starts the server with arguments that it has."""

from __future__ import annotations

import argparse
import configparser
import importlib
import json
import re
import shlex
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from decoding.cli import serve
from decoding.cli.parser import Parser
from tests.server.models import ROOT

FOLDER = ROOT / "examples/serve"
INSTRUCTIONS = "FROM RUN COPY WORKDIR USER EXPOSE STOPSIGNAL HEALTHCHECK ENTRYPOINT CMD".split()


def parsed(words: list[str]) -> argparse.Namespace:
    parser = Parser("decoding serve", "")
    serve.add_arguments(parser)
    return parser.parse(words)


def test_kubernetes() -> None:
    deployment, service = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    assert (deployment["kind"], service["kind"]) == ("Deployment", "Service")
    pod = deployment["spec"]["template"]
    assert pod["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"]
    assert pod["metadata"]["labels"] == service["spec"]["selector"]
    [container] = pod["spec"]["containers"]
    args = parsed(container["args"])
    assert args.drain < pod["spec"]["terminationGracePeriodSeconds"]
    [port] = container["ports"]
    assert port["containerPort"] == args.port == service["spec"]["ports"][0]["targetPort"]
    probes = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "startup")}
    assert probes == {"/health"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": args.port}


def test_systemd() -> None:
    unit = configparser.ConfigParser(strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # as its documentation says
    unit.read(FOLDER / "decoding.service")
    program, command, *words = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/decoding") and command == "serve"
    assert parsed(words).drain < int(unit["Service"]["TimeoutStopSec"])
    assert unit["Service"]["Restart"] == "on-failure", "a lost engine ends the process"
    assert serve.KEY in (FOLDER / "decoding.service").read_text()


def test_dockerfile() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).split("\n")
    steps = [line.split(maxsplit=1) for line in lines if line.strip()]
    assert {name for name, _ in steps} <= set(INSTRUCTIONS) and steps[0][0] == "FROM"
    last = {name: rest for name, rest in steps}
    entry, words = json.loads(last["ENTRYPOINT"]), json.loads(last["CMD"])
    assert entry[:2] == ["decoding", "serve"] and last["USER"] != "root"
    args = parsed([*entry[2:], *words])
    assert (args.host, str(args.port)) == ("0.0.0.0", last["EXPOSE"])
    for name, rest in steps:
        if name == "COPY" and not rest.startswith(("--from", ".")):
            assert (ROOT / rest.split()[0]).exists()


def test_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for Ray, which calls the builder in each replica."""
    built = list[Any]()

    def ingress(build: Any) -> Any:
        built.append(build())
        return lambda: object

    def deployment(**options: Any) -> Any:
        assert options["max_ongoing_requests"] > 64
        return lambda kind: SimpleNamespace(bind=kind)

    ray = ModuleType("ray")
    monkeypatch.setattr(
        ray, "serve", SimpleNamespace(ingress=ingress, deployment=deployment), False
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("MODEL", str(ROOT / "models/demo"))
    assert importlib.import_module("examples.serve.ray_serve").app is not None
    [app] = built
    assert app.state.site.models["default"].translates
    app.state.site.close()
