"""Tells whether the compiled engine was built from the C++ sources that lie beside it.

Used by setup.py too, so it imports nothing of the package.
"""

from __future__ import annotations

from pathlib import Path

SUFFIXES = {".h", ".cc", ".cu", ".cuh"}


def sources_hash(folder: Path) -> str:
    """A digest of the names and texts of all C++ sources below `folder`."""
    import hashlib  # a wheel has no sources, and is imported sooner without

    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in SUFFIXES:
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def check_built(package: Path) -> None:
    """Raises ImportError, saying what to run, where the engine is missing or out of date.

    package: the folder of `decoding`. Without sources beside it (an installed wheel) only the
    engine's presence is checked.
    """
    command = "run `pip install -e .` (or `python setup.py build_ext --inplace`) in the checkout"
    try:
        from decoding import _C
    except ImportError as error:
        message = f"decoding's compiled engine is missing from {package} or cannot be loaded"
        raise ImportError(f"{message} ({error}): {command}") from error
    sources = package.parent / "csrc"
    if sources.is_dir() and _C.sources_hash != sources_hash(sources):
        raise ImportError(f"decoding's compiled engine is older than {sources}: {command}")
