"""Arguments of the peers' programs. Nothing of decoding is imported here: it brings torch, whose
loading must not count where a program does not need it."""

from __future__ import annotations

import argparse
from pathlib import Path


def parser(description: str | None) -> argparse.ArgumentParser:
    """As `decoding translate` calls them."""
    made = argparse.ArgumentParser(description=description)
    add = made.add_argument
    add("--model", type=Path, required=True, help="a directory")
    add("--input", type=Path, required=True, help="UTF-8, a sentence in each line")
    add("--output", type=Path, required=True)
    add("--device", choices=("cpu", "cuda"), required=True)
    add("--dtype", required=True)
    add("--threads", type=int, default=0, help="of the CPU; 0: as the library likes")
    add("--num-beams", type=int, required=True)
    add("--max-new-tokens", type=int, required=True)
    add("--batch-tokens", type=int, required=True, help="source tokens in one batch")
    return made
