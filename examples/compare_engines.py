"""Compares this library with transformers and CTranslate2 on a model and a text of yours.

    python -m examples.compare_engines --model DIR --text FILE

Each engine runs in a process of its own. First their answers are compared, then calls are timed in
turns. The command `decoding compare` has more options; this is its Python interface. Other engines
need `pip install .[compare]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from decoding.compare.comparison import Plan, compare
from decoding.compare.engines import installed
from decoding.compare.report.terminal import terminal
from decoding.compare.task import Task
from decoding.compare.text import read_text

DEMO = Path(__file__).parent.parent / "models/demo"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--text", type=Path, default=DEMO / "sentences.de.txt")
    parser.add_argument("--against", nargs="*", default=["huggingface", "ctranslate2"])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(arguments)

    task = Task.read(args.model)
    text = read_text(args.text, None, task.load_tokenizer(), fits=range(1, 200), lines=100)
    plan = Plan(
        name=args.model.name,
        task=task,
        text=text,
        engines=installed([*args.against, "ours"]),
        # The grid: each combination is a point on which all engines are timed.
        batch=[1, 8],
        beams=[1, 4],
        lengths=[32],
        dtypes=["float32"],
        devices=["cpu"],
        threads=1,
        rounds=args.rounds,
    )
    # compare() yields the comparison so far after each finding; the last one has them all.
    *_, found = compare(plan)
    print(terminal(found))


if __name__ == "__main__":
    main()
