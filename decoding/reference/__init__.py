"""Every search strategy in plain torch, one sentence at a time: slow and obvious. One file each.

It is the oracle of the kernels' tests, and the pages to read for what a strategy means. A model is
a function from the tokens generated so far to the logits of the next one, float32 [V].
"""

from __future__ import annotations

from decoding.reference.beams import FILL_IN, Hypothesis, Scoring, beam_sample, beam_search
from decoding.reference.constrained import Phrase, Phrases, constrained_beam_search
from decoding.reference.contrastive import contrastive_search
from decoding.reference.diverse import diverse_beam_search
from decoding.reference.draws import Draws, gumbel, philox, sample
from decoding.reference.rules import Logits, Rules, Tokens, greedy
from decoding.reference.warpers import kept

__all__ = [
    "FILL_IN",
    "Draws",
    "Hypothesis",
    "Logits",
    "Phrase",
    "Phrases",
    "Rules",
    "Scoring",
    "Tokens",
    "beam_sample",
    "beam_search",
    "constrained_beam_search",
    "contrastive_search",
    "diverse_beam_search",
    "greedy",
    "gumbel",
    "kept",
    "philox",
    "sample",
]
