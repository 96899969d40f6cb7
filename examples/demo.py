"""`make demo`: translates a few German sentences with the model in models/demo."""

from __future__ import annotations

import time
from pathlib import Path

import decoding
from decoding.cli.arguments import place
from decoding.text.translate import Translator

DEMO = Path(__file__).parents[1] / "models/demo"


def main() -> None:
    model = decoding.load(DEMO)
    lines = (DEMO / "sentences.de.txt").read_text(encoding="utf-8").splitlines()
    translator = Translator(model, num_beams=4, n_best=1)
    start = time.perf_counter()
    for line, [best] in zip(lines, translator.stream(lines), strict=True):
        print(f"{line}\n  {best.text}\n  score {best.score:.3f}\n")
    seconds = time.perf_counter() - start
    speed = f"{translator.tokens / seconds:.0f} tokens/s with {place(model)}"
    print(f"{speed}; memory: {model.memory_plan().summary}")


if __name__ == "__main__":
    main()
