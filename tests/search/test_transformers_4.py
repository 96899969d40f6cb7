"""The reference against rows that transformers 4.51.3 gave: what version 5 no longer has.

The model is a table of logits by the last token.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from decoding.reference import (
    Phrase,
    Phrases,
    Rules,
    Tokens,
    constrained_beam_search,
    diverse_beam_search,
)

PROMPT, EOS = 2, 1
TABLE = torch.tensor(
    [[3 * math.sin(1.7 * i * i + 2.3 * i * j + 0.9 * j + 0.4) for j in range(9)] for i in range(9)]
)


def logits(tokens: Tokens) -> Tensor:
    return TABLE[(PROMPT, *tokens)[-1]]


# groups, beams, diversity_penalty, length_penalty, early_stopping, max_new_tokens; rows
DIVERSE: list[tuple[int, int, float, float, bool | str, int, list[tuple[Tokens, float]]]] = [
    (
        2, 2, 0.7, 1.0, False, 6,
        [((8, 0, 8, 0, 8, 0), -0.82928), ((7, 7, 7, 7, 7, 7), -0.9433)],
    ),
    (
        2, 4, 0.3, 0.0, True, 8,
        [
            ((0, 8, 0, 1), -4.18924),
            ((8, 0, 8, 0, 1), -4.57304),
            ((0, 8, 0, 8, 1), -5.74765),
            ((8, 0, 8, 0, 8, 0, 1), -6.1046),
        ],
    ),
    (
        3, 6, 1.0, 2.0, "never", 5,
        [
            ((8, 0, 8, 0, 8), -0.1824),
            ((8, 0, 8, 0, 1), -0.18292),
            ((0, 8, 0, 8, 0), -0.18368),
            ((0, 8, 0, 8, 1), -0.22991),
            ((6, 4, 3, 3, 3), -0.2374),
            ((6, 4, 3, 3, 7), -0.28449),
        ],
    ),
    (
        4, 4, 4.0, 1.0, False, 5,
        [
            ((8, 0, 8, 0, 8), -0.91199),
            ((0, 8, 0, 8, 0), -0.91838),
            ((7, 7, 7, 7, 7), -0.94325),
            ((6, 4, 3, 3, 3), -1.18699),
        ],
    ),
    (
        2, 6, 0.5, 0.6, "never", 7,
        [
            ((8, 0, 1), -1.57331),
            ((8, 0, 8, 0, 1), -1.7411),
            ((8, 0, 8, 0, 8, 0, 8), -1.89525),
            ((0, 8, 0, 1), -2.25875),
            ((7, 4, 3, 3, 3, 3, 3), -2.26361),
            ((0, 8, 0, 8, 0, 8, 0), -2.37188),
        ],
    ),
]  # fmt: skip

# force_words_ids, beams, length_penalty, early_stopping, max_new_tokens; the best row
CONSTRAINED: list[tuple[tuple[Phrase, ...], int, float, bool | str, int, Tokens, float]] = [
    ((((4, 5),),), 3, 1.0, False, 7, (7, 7, 7, 7, 7, 4, 5), -1.28201),
    ((((7,),), ((3, 8),)), 4, 0.0, True, 9, (7, 7, 7, 7, 7, 7, 7, 3, 8), -11.88974),
    ((((6, 6), (5, 2)), ((4,),)), 4, 2.0, "never", 8, (7, 7, 4, 8, 0, 8, 6, 6), -0.27295),
    ((((8, 0, 8),),), 2, 1.0, False, 6, (8, 0, 8, 0, 8, 0), -0.82928),
    ((((3,),), ((3, 4),)), 5, 0.6, "never", 8, (7, 3, 3, 3, 3, 3, 3, 4), -3.12234),
]


@pytest.mark.parametrize(
    "groups, beams, penalty, length_penalty, early_stopping, max_new, rows", DIVERSE
)
def test_diverse_beam_search(
    groups: int, beams: int, penalty: float, length_penalty: float, early_stopping: bool | str,
    max_new: int, rows: list[tuple[Tokens, float]],
) -> None:  # fmt: skip
    ours = diverse_beam_search(
        logits, Rules(max_new, eos=(EOS,)), beams=beams, groups=groups, penalty=penalty, pad=0,
        length_penalty=length_penalty, early_stopping=early_stopping,
    )  # fmt: skip
    assert [row.tokens for row in ours] == [tokens for tokens, _ in rows]
    assert [row.score for row in ours] == pytest.approx([score for _, score in rows], abs=2e-5)


@pytest.mark.parametrize(
    "phrases, beams, length_penalty, early_stopping, max_new, tokens, score", CONSTRAINED
)
def test_constrained_beam_search(
    phrases: tuple[Phrase, ...], beams: int, length_penalty: float, early_stopping: bool | str,
    max_new: int, tokens: Tokens, score: float,
) -> None:  # fmt: skip
    best = constrained_beam_search(
        logits, Rules(max_new, eos=(EOS,)), Phrases(phrases), beams=beams, prompt=(PROMPT,),
        length_penalty=length_penalty, early_stopping=early_stopping,
    )[0]  # fmt: skip
    assert best.tokens == tokens
    assert best.score == pytest.approx(score, abs=2e-5)
