"""What fails: one request, an engine, the process."""

from __future__ import annotations

import gc
import http.client
import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import transformers

import decoding
from decoding.server.openai import completions
from decoding.server.run import run
from decoding.serving import Settings, create_app
from tests.server.live import Live
from tests.server.models import ROOT, STORIES, engine
from tests.server.ports import free_port
from tests.serving.test_dispatch import ToldEngine, dispatcher_of
from tests.text.trained_tokenizers import text_generation_directory

SICK = 37  # a token whose embedding is beyond all numbers


def test_a_fault_is_its_requests_own(tmp_path: Path) -> None:
    folder = text_generation_directory("gpt2", tmp_path)
    theirs: Any = transformers.GPT2LMHeadModel.from_pretrained(folder)
    theirs.get_input_embeddings().weight.data[SICK] = 3e38
    model = decoding.load(theirs, device="cpu", threads=1, tokenizer=folder)
    with Live({"sick": decoding.Engine(model)}) as live:
        well = live.ask("/v1/completions", {"prompt": [[5, 6]], "max_tokens": 4})
        assert well.status == 200
        said = live.ask("/v1/completions", {"prompt": [[SICK]], "max_tokens": 4})
        assert said.status == 500 and "not finite" in said.json["error"]["message"]
        both = live.ask("/v1/completions", {"prompt": [[5, 6], [SICK]], "stream": True})
        assert both.status == 500 or "not finite" in both.events[-1]["error"]["message"]
        assert live.ask("/health").status == 200
        again = live.ask("/v1/completions", {"prompt": [[5, 6]], "max_tokens": 4})
        assert again.json["choices"] == well.json["choices"]
        live.assert_idle()


@pytest.mark.parametrize("error", [TypeError, ValueError])
def test_a_mistake_of_the_servers_is_none_of_the_clients(
    error: type[Exception], live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise error("a secret")

    monkeypatch.setattr(completions, "usage", broken)
    said = live.ask("/v1/completions", {"model": "stories", "prompt": "a", "max_tokens": 1})
    assert said.status == 500 and "the server's log has more" in said.json["error"]["message"]


class LostEngine(ToldEngine):
    """A compiled engine that fails with the first request."""

    def submit(self, options: Any, batch: Any, **how: Any) -> int:
        self.outputs.put(decoding.Error("the GPU is lost"))
        return super().submit(options, batch, **how)


def broken() -> decoding.Engine:
    found = engine(STORIES)
    found._dispatcher = dispatcher_of(LostEngine())
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_a_lost_engine_answers_everybody(stream: bool) -> None:
    with Live({"broken": broken(), "well": engine(STORIES)}) as live:
        assert live.ask("/health").status == 200
        body = {"model": "broken", "prompt": "a", "max_tokens": 8, "stream": stream}
        said = live.ask("/v1/completions", body)
        assert said.status == 503 and "the engine failed" in said.json["error"]["message"]
        assert live.ask("/v1/completions", body).status == 503
        health = live.ask("/health")
        assert health.status == 503 and "the GPU is lost" in health.json["error"]["message"]
        assert live.ask("/ready").status == 503
        assert live.ask("/metrics").status == 200
        well = live.ask("/v1/completions", {**body, "model": "well", "stream": False})
        assert well.status == 200


def test_a_lost_engine_ends_the_process() -> None:
    port, raised = free_port(), list[BaseException]()
    app = create_app(broken(), Settings())

    def work() -> None:
        try:
            run(app, drain=1, host="127.0.0.1", port=port)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    asked = connected(port)
    assert gc.get_freeze_count(), "the collector leaves models alone"
    asked.sendall(request({"prompt": "a", "max_tokens": 8}))
    assert b"503" in asked.recv(100)
    thread.join(30)
    assert isinstance(raised[0], decoding.Error) and "the engine failed" in str(raised[0])
    assert not gc.get_freeze_count()


def connected(port: int) -> socket.socket:
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=60)
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise AssertionError("no server came up")


def request(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def certificate(folder: Path) -> tuple[Path, Path]:
    """A file with a certificate of this machine for itself, and one with its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    files = folder / "certificate.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(files[0])]
    subprocess.run([*command, "-keyout", str(files[1])], check=True, capture_output=True)
    return files


def test_https_and_how_long_connections_are_kept(tmp_path: Path) -> None:
    trusted, key = certificate(tmp_path)
    port = free_port()
    command = [sys.executable, "-m", "decoding", "serve", "--port", str(port), "--threads", "1"]
    command += ["--model", str(STORIES), "--keep-alive", "1", "--log-level", "error"]
    command += ["--ssl-certfile", str(trusted), "--ssl-keyfile", str(key)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        connected(port).close()
        context = ssl.create_default_context(cafile=str(trusted))
        client = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
        client.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 2}))
        assert json.loads(client.getresponse().read())["usage"]["completion_tokens"] == 2
        began = time.monotonic()
        assert client.sock.recv(1) == b"", "the server ends it"
        assert 0.5 < time.monotonic() - began < 30
        client.close()
        process.terminate()
        assert process.wait(20) == -signal.SIGTERM


@pytest.mark.parametrize("drain", [30, 1])
def test_sigterm_drains_with_a_limit(drain: int) -> None:
    port = free_port()
    command = [sys.executable, "-m", "decoding", "serve", "--port", str(port), "--threads", "1"]
    command += ["--model", str(STORIES), "--drain", str(drain)]
    body = {"prompt": "Once", "max_tokens": 480, "ignore_eos": True, "stream": True}
    body |= {"n": 8, "temperature": 1.0} if drain > 1 else {"prompt": ["Once"] * 400}
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
        connection = connected(port)
        connection.sendall(request(body))
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        process.send_signal(signal.SIGTERM)
        began, answer = time.monotonic(), b""
        while part := connection.recv(1 << 16):
            answer += part
        err = (process.stderr or sys.stdin.buffer).read().decode()
        assert process.wait(20) == -signal.SIGTERM
    seconds = time.monotonic() - began
    assert b"data: [DONE]" in answer
    assert (b"the server is shutting down" in answer) == (drain == 1)
    assert seconds < drain + 14, err
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    last = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert last[0]["path"] == "/v1/completions" and "Traceback" not in err
