"""Every search strategy in plain torch, one sentence at a time: slow and simple. One file each.

The kernels' tests compare with it, and it defines the meaning of each strategy. A model is
a function from the tokens generated so far to the logits of the next one, float32 [V].
"""

from __future__ import annotations

from decoding.reference.beams import FILL_IN, Hypothesis, Scoring, beam_sample, beam_search
from decoding.reference.constrained import Phrase, Phrases, constrained_beam_search
from decoding.reference.contrastive import contrastive_search
from decoding.reference.diverse import diverse_beam_search
from decoding.reference.draws import Draws, gumbel, philox, sample
from decoding.reference.filters import filtered
from decoding.reference.rules import Logits, Rules, Tokens, greedy

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
    "filtered",
    "philox",
    "sample",
]
