"""Translates a file in several processes with joblib; they share the memory of the weights.

    python -m examples.parallel_processes INPUT OUTPUT --processes 4

One process is enough on most machines, as the engine uses all cores. Several help where the text
work, such as tokenizers and sorting, takes longer than the model. It needs `pip install joblib`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed  # pyright: ignore[reportMissingTypeStubs]

import decoding

DEMO = Path(__file__).parent.parent / "models/demo"
CHUNK = 512  # lines of one call


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args(arguments)

    with args.input.open(encoding="utf-8", newline="\n") as source:  # a lone "\r" ends no line
        lines = [line.rstrip("\r\n") for line in source]
    chunks = [lines[i : i + CHUNK] for i in range(0, len(lines), CHUNK)]
    with tempfile.TemporaryDirectory() as folder:
        # A converted model is mapped when it is loaded: all processes read the same pages.
        with decoding.load(args.model, device="cpu") as original:
            original.save(folder)
        with decoding.load(folder, threads=1) as model:
            # A model is pickled as its path: each process loads it once for each chunk.
            work = (delayed(model.translate)(chunk, num_beams=4) for chunk in chunks)
            found: Any = Parallel(n_jobs=args.processes)(work)
    translations = [translation for chunk in found for translation in chunk]
    args.output.write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
    print(f"{len(translations)} lines written to {args.output}")


if __name__ == "__main__":
    main()
