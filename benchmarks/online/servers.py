"""Servers that answer over HTTP: ours, transformers', and the thinnest before CTranslate2."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.online.base import Job
from benchmarks.online.http import PORT, HttpProvider
from benchmarks.online.huggingface import PAGES_ON_CPU
from decoding.compare import engines


class OursHttp(HttpProvider):
    """`decoding serve`."""

    name = "ours-http"
    engine = engines.Ours

    @classmethod
    def serves(cls, job: Job, has_encoder: bool) -> bool:
        return job.ends and (has_encoder or job.beams == 1)

    def command(self, engine: Any, device: str, rows: int | None) -> list[str]:
        directory, model = self.task.directory, engine.model
        command = [sys.executable, "-m", "decoding", "serve", "--model", f"{directory}={directory}"]
        command += ["--device", device, "--dtype", str(model.dtype).removeprefix("torch.")]
        command += ["--max-queue", "1000000", "--max-queue-seconds", "1000", "--log-level", "error"]
        command += ["--port", str(PORT)]
        if device == "cpu":
            command += ["--threads", str(model.threads)]
        if rows is not None:
            command += ["--max-requests", str(rows)]
        return command


class CTranslate2Http(HttpProvider):
    """See ctranslate2_app.py."""

    name = "ctranslate2-http"
    engine = engines.ENGINES["ctranslate2"]

    @classmethod
    def serves(cls, job: Job, has_encoder: bool) -> bool:
        return has_encoder and job.ends

    def command(self, engine: Any, device: str, rows: int | None) -> list[str]:
        settings = engine.settings
        command = [sys.executable, "-m", "benchmarks.online.ctranslate2_app"]
        command += ["--model", str(self.task.directory), "--device", device, "--port", str(PORT)]
        command += ["--dtype", settings.dtype, "--threads", str(settings.threads)]
        return command + ([] if rows is None else ["--rows", str(rows)])


class HuggingFaceHttp(HttpProvider):
    """`transformers serve` with its continuous batching."""

    name = "huggingface-http"
    engine = engines.ENGINES["huggingface"]

    @classmethod
    def serves(cls, job: Job, has_encoder: bool) -> bool:
        return not has_encoder and job.beams == 1 and job.ends

    def command(self, engine: Any, device: str, rows: int | None) -> list[str]:
        program = Path(sys.executable).with_name("transformers")
        command = [str(program), "serve", str(self.task.directory), "--continuous-batching"]
        command += ["--device", device, "--dtype", str(engine.model.dtype).removeprefix("torch.")]
        command += ["--port", str(PORT), "--log-level", "error"]
        return command + (["--cb-num-blocks", str(PAGES_ON_CPU)] if device == "cpu" else [])
