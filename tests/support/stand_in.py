"""A model for tests of what surrounds one: it "translates" by writing words in capitals.

`python -m tests.support.stand_in translate --model NAME ...` is the program with it. Names:
"words", and "slow", which takes a tenth of a second for each call.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import decoding
from decoding.cli.main import main
from decoding.common.device import CPU
from decoding.generation.outputs import (
    GenerateBeamEncoderDecoderOutput,
    GenerateEncoderDecoderOutput,
    GenerateOutput,
)
from decoding.models.spec import ModelSpec, StackSpec
from decoding.scoring import Scores
from decoding.text.rows import Rows
from decoding.text.tokenizers.framed import FramedTokenizer

EOS, START, FIRST = 0, 1, 2


class Words(FramedTokenizer):
    """A tokenizer whose tokens are words, numbered in the order of their first appearance."""

    target_codes = (">>fra<<",)

    def __init__(self) -> None:
        self.words: list[str] = []

    @property
    def tokens(self) -> dict[int, str]:
        return {FIRST + i: word for i, word in enumerate(self.words)}

    def cut(self, text: str) -> list[int]:
        words = text.replace("<<", "<< ").split()
        self.words += sorted(set(words) - set(self.words))
        return [FIRST + self.words.index(word) for word in words]

    def framed(self, first: list[int], second: list[int] | None = None) -> list[int]:
        return [*first, *(second or []), EOS]

    def encode_target(self, text: str) -> list[int]:
        return self.framed(self.cut(text))

    def text_of(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return " ".join(self.words[id - FIRST].upper() for id in ids if id >= FIRST)


def sizes(positions: int) -> ModelSpec:
    stack = StackSpec(1, 8, 1, 8, 8, 9999, positions, "relu", 1, False, False, False, 1e-5, (1,))
    return ModelSpec(encoder=stack, decoder=stack)


@dataclass(frozen=True)
class Later:
    """A call that waits for its result to be asked for."""

    result: Callable[[], GenerateOutput]
    waits = True

    def cancel(self) -> None:
        pass


class StandIn(decoding.Model):
    """Hypothesis k of a sentence repeats its last word k times more and scores -k - length / 100.

    calls: for each call of generate() its ids and its options.
    """

    threads, isa, place = 1, "none", CPU
    busy_seconds = 0.0
    spec = sizes(512)

    def __init__(self, positions: int = 512, seconds: float = 0, **generation_config: Any) -> None:
        self.spec = sizes(positions)
        self.generation_config = {
            "num_beams": 4,
            "eos_token_id": EOS,
            "pad_token_id": START,
            "decoder_start_token_id": START,
            **generation_config,
        }
        self._tokenizer = Words()
        self.seconds = seconds
        self.calls: list[tuple[list[list[int]], dict[str, Any]]] = []
        self.scored: list[dict[str, Any]] = []

    def generate(  # type: ignore[override]  # of one result
        self, input_ids: Any = None, *_: Any, **options: Any
    ) -> GenerateOutput:
        mask = options.pop("attention_mask", None)
        rows = np.asarray(input_ids)
        there = np.ones(rows.shape, bool) if mask is None else mask
        input_ids = Rows.where(rows, there).lists()
        self.calls.append((input_ids, options))
        time.sleep(self.seconds)
        self.busy_seconds += self.seconds
        settings = self.generation_config | options
        limits = np.broadcast_to(settings["max_new_tokens"], len(input_ids)).tolist()
        prompts = options.get("decoder_input_ids", [[START]] * len(input_ids))
        found, counts, scores = [], [], []
        for prompt, row, most in zip(prompts, input_ids, limits, strict=True):
            for k in range(settings["num_return_sequences"]):
                new = (row[:-1] + row[-2:-1] * k + [EOS])[:most]
                found.append([*prompt, *new])
                counts.append(len(new))
                scores.append(-k - len(new) / 100)
        longest = max(map(len, found))
        # Arrays, as inside of the library.
        sequences: Any = np.array([row + [START] * (longest - len(row)) for row in found])
        lengths: Any = np.array(counts)
        ranked: Any = np.array(scores)
        if settings["num_beams"] == 1:
            return GenerateEncoderDecoderOutput(sequences, lengths)
        return GenerateBeamEncoderDecoderOutput(sequences, lengths, ranked)

    def start(self, *args: Any, many: bool = False, **options: Any) -> Later:
        return Later(lambda: self.generate(*args, **options))

    def score_arrays(self, input_ids: Any, labels: Any = None, *_: Any, **options: Any) -> Scores:
        """Each token's log-probability is minus a hundredth of the row's length."""
        self.scored.append(options)
        longest = max(map(len, labels))
        mask: Any = np.array([[i < len(row) for i in range(longest)] for row in labels])
        each: Any = np.array([[-len(row) / 100] for row in labels])
        labelled: Any = np.where(mask, START, -100)
        return Scores(each * mask, mask, mask.astype(np.int64), labelled)


def load(name: str, positions: int = 512, **_: Any) -> StandIn:
    """Takes the place of decoding.load."""
    if name not in ("words", "slow"):
        raise FileNotFoundError(f"{name}/config.json is missing")
    return StandIn(positions, seconds=0.1 if name == "slow" else 0)


if __name__ == "__main__":
    decoding.load = load  # type: ignore[assignment]
    sys.exit(main())
