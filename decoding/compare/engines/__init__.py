"""The engines that are compared, behind one interface (base.py).

Libraries are imported when an engine is loaded, so that one that is not installed is missing from
the comparison, by name, and does not stop it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.util import find_spec

from decoding.compare.engines.base import Answer, Engine, EngineConfig, Settings
from decoding.compare.engines.ctranslate2 import CTranslate2
from decoding.compare.engines.huggingface import HuggingFace, HuggingFaceStatic
from decoding.compare.engines.ours import Ours, OursDeterministic

__all__ = ["ENGINES", "Answer", "EngineConfig", "Engine", "Ours", "Settings", "installed"]

ENGINES: dict[str, type[Engine]] = {
    engine.name: engine
    for engine in (HuggingFace, HuggingFaceStatic, CTranslate2, OursDeterministic, Ours)
}


def installed(names: Sequence[str]) -> list[type[Engine]]:
    """The named engines whose libraries are installed; warns about the others."""
    found = []
    for name in names:
        libraries = dict.fromkeys(full.split(".")[0] for full in ENGINES[name].libraries)
        missing = [library for library in libraries if not find_spec(library)]
        if missing:
            said = f"{name} is left out: {' and '.join(missing)} not installed"
            warnings.warn(f"{said}, pip install .[compare]", stacklevel=2)
        else:
            found.append(ENGINES[name])
    return found
