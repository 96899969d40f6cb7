"""Models of random weights that translate text: each line into as many tokens as its reference has.

The text is cut by another model's tokenizer. Its vocabulary is filled up to the size that the
weights have, with words that no text contains but random weights may say.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import sentencepiece

from benchmarks.cases.workloads import WORKLOADS, save

EOS, PAD = "</s>", "<pad>"
TOKENIZER = ("source.spm", "target.spm", "tokenizer_config.json")


def save_model(workload: str, tokenizer: Path, directory: Path) -> None:
    """Of a name in WORKLOADS that has an encoder. tokenizer: a directory of Marian's files."""
    save(WORKLOADS[workload], directory)
    for name in TOKENIZER:
        shutil.copy(tokenizer / name, directory)
    words: dict[str, int] = json.loads((tokenizer / "vocab.json").read_text("utf-8"))
    assert words[EOS] == 0  # as in the configurations of WORKLOADS, where PAD is the last
    kept = sorted(words.keys() - {PAD}, key=words.__getitem__)
    more = [f"▁word{i}" for i in range(len(kept), WORKLOADS[workload].vocabulary - 1)]
    numbered = {word: i for i, word in enumerate([*kept, *more, PAD])}
    (directory / "vocab.json").write_text(json.dumps(numbered, ensure_ascii=False), "utf-8")


def limits(tokenizer: Path, references: Sequence[str]) -> list[int]:
    """Tokens of each reference, its end among them."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer / "target.spm"))
    return [len(row) + 1 for row in pieces.encode(list(references))]


def write_lines(path: Path, sources: Sequence[str], limits: Sequence[int]) -> None:
    """As `decoding translate --input-format json` reads them."""
    with path.open("w", encoding="utf-8") as file:
        for text, limit in zip(sources, limits, strict=True):
            line = {"text": text, "max_new_tokens": limit}
            print(json.dumps(line, ensure_ascii=False), file=file)
