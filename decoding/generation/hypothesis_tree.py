"""The results of each sentence as a tree: what they begin with in common is shown once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from decoding.common.html import Shaded, branch, tree

TokenText = Callable[[int], str]


@dataclass(frozen=True)
class Hypothesis:
    """A result: its tokens, of each token the log-probability where it is known, and its score."""

    tokens: Sequence[int]
    logprobs: Sequence[float] | None
    score: float | None


def as_html(sentences: Sequence[Sequence[Hypothesis]], text: TokenText) -> str:
    """text: of a token. A token's ground is the darker the more probable it is."""
    return "".join(tree(branches(hypotheses, 0, text)) for hypotheses in sentences)


def token_text(tokenizer: Any) -> TokenText:
    """What a tokenizer, or a function that finds one, shows for a token; its piece where that
    has no text, and the id itself where there is no tokenizer."""
    if callable(tokenizer) and not hasattr(tokenizer, "decode"):
        try:
            tokenizer = tokenizer()
        except (OSError, ValueError):  # a directory without one
            tokenizer = None
    if tokenizer is None:
        return str
    return lambda token: str(tokenizer.decode([token]) or tokenizer.convert_ids_to_tokens(token))


def branches(hypotheses: Sequence[Hypothesis], start: int, text: TokenText) -> list[str]:
    """The items below one: of hypotheses that agree before `start`, grouped by their next token."""
    groups: dict[int | None, list[Hypothesis]] = {}
    for each in hypotheses:
        following = each.tokens[start] if start < len(each.tokens) else None
        groups.setdefault(following, []).append(each)
    found = []
    for following, group in groups.items():
        end = start if following is None else agreed(group, start)
        cells = [shaded(group[0], i, text) for i in range(start, end)]
        over = [each for each in group if len(each.tokens) == end]
        rest = [each for each in group if len(each.tokens) > end]
        below = branches(rest, end, text)
        found.append(branch(cells, ", ".join(scored(each) for each in over), below))
    return found


def agreed(group: Sequence[Hypothesis], start: int) -> int:
    """The first position after `start` at which the hypotheses differ, or one of them ends."""
    end = start
    while all(end < len(each.tokens) for each in group):
        if len({each.tokens[end] for each in group}) > 1:
            break
        end += 1
    return end


def shaded(hypothesis: Hypothesis, position: int, text: TokenText) -> str:
    shown = text(hypothesis.tokens[position])
    if hypothesis.logprobs is None:
        return shown
    return Shaded(shown, math.exp(hypothesis.logprobs[position]))


def scored(hypothesis: Hypothesis) -> str:
    score, logprobs = hypothesis.score, hypothesis.logprobs
    said = [] if score is None else [f"score {score:.3f}"]
    said += [] if logprobs is None else [f"probability {math.exp(sum(logprobs)):.3g}"]
    return " ".join(said)
