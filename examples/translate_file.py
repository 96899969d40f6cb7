"""Translates a text file, line by line, with any encoder-decoder model.

    python -m examples.translate_file INPUT OUTPUT

The default model, models/demo, translates German to English.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import decoding
from decoding.text.translate import Translator

DEMO = Path(__file__).parent.parent / "models/demo"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", type=Path, default=DEMO)
    args = parser.parse_args(arguments)

    model = decoding.load(args.model)
    # Options are those of generate(); without n_best there is one translation of each line.
    translator = Translator(model, num_beams=4, n_best=1)
    with (
        args.input.open(encoding="utf-8", newline="\n") as source,  # a lone "\r" ends no line
        args.output.open("w", encoding="utf-8") as target,
    ):
        # stream() reads ahead only as far as a batch, so files of any size fit into memory. It
        # sorts what it has read by length, and yields translations in the order of the lines.
        lines = (line.rstrip("\r\n") for line in source)
        for [best] in translator.stream(lines):
            target.write(best.text + "\n")
    print(f"{translator.tokens} tokens written to {args.output}")


if __name__ == "__main__":
    main()
