"""LibreTranslate's own server with our demo model, as a package of Argos Translate."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.online import libretranslate_app
from benchmarks.online.base import Job
from benchmarks.online.http import PORT, HttpProvider
from decoding.compare import engines
from decoding.compare.engines.conversion import convert

PROGRAM = "libretranslate"
BEAMS = 4  # its own number, which a request cannot change
LANGUAGES = {"de": "German", "en": "English"}


class LibreTranslateHttp(HttpProvider):
    """Needs the program `libretranslate` in PATH; its environment is best one of its own, since it
    asks for old versions of what others use."""

    name = "libretranslate-http"
    engine = engines.ENGINES["ctranslate2"]

    @classmethod
    def serves(cls, job: Job, has_encoder: bool) -> bool:
        return has_encoder and job.ends and job.beams == BEAMS

    def command(self, engine: Any, device: str, rows: int | None) -> list[str]:
        settings = engine.settings
        self.home = tempfile.TemporaryDirectory()
        packages = Path(self.home.name) / "argos-translate/packages"
        # It looks for packages to download where there are less than two; nobody asks for this one.
        for source, target in (("de", "en"), ("en", "de")):
            write_package(self.task.directory, packages, source, target)
        given = [self.home.name, device, settings.dtype, str(settings.threads), str(PORT)]
        return [python_of_program(), "-I", libretranslate_app.__file__, *given]

    def version(self, engine: Any) -> str:
        return version_of(python_of_program())

    def body(self, text: str, job: Job) -> tuple[str, dict[str, Any]]:
        return "/translate", {"q": text, "source": "de", "target": "en"}

    def close(self) -> None:
        super().close()
        self.home.cleanup()


def python_of_program() -> str:
    """Raises ImportError where the program is not installed."""
    found = shutil.which(PROGRAM)
    if found is None:
        raise ImportError(f"{PROGRAM} is not installed: pip install it, and let it be in PATH")
    return str(Path(found).with_name("python"))


def version_of(python: str) -> str:
    names = (PROGRAM, "ctranslate2")
    said = "; ".join(f"print({name!r}, version({name!r}))" for name in names)
    command = [python, "-c", f"from importlib.metadata import version; {said}"]
    return ", ".join(subprocess.check_output(command, text=True).splitlines())


def write_package(model: Path, packages: Path, source: str, target: str) -> None:
    """A Marian model whose two sides have the same pieces. Its sources end with a token that Argos
    Translate does not add: CTranslate2 does."""
    folder = packages / f"{source}_{target}"
    folder.mkdir(parents=True)
    convert(model, folder / "model", "float32", numbered=False)
    config = folder / "model/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"add_source_eos": True}))
    shutil.copy(model / "source.spm", folder / "sentencepiece.model")
    said = {"from_code": source, "from_name": LANGUAGES[source]}
    said |= {"to_code": target, "to_name": LANGUAGES[target]}
    said |= {"type": "translate", "package_version": "1.0", "argos_version": "1.9"}
    (folder / "metadata.json").write_text(json.dumps(said))
