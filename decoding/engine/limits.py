"""The limits that a model's memory is planned for."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.models.spec import EncoderSpec, ModelSpec


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The largest work that a model's memory is planned for.

    batch: sentences that are computed at once; a larger call is split, not refused.
    beams: rows of one sentence: num_beams, or num_return_sequences when sampling.
    source: encoder tokens of a sentence, padding not counted; 0 for decoder-only models.
    prompt: decoder tokens given for a sentence, padding not counted; 1 for an encoder-decoder that
        starts with its start token alone.
    target: tokens generated for a row: max_new_tokens, or max_length less the prompt's width.
    labels: decoder tokens of a sentence that Model.score() reads; 0: it is not planned for.
    eos: ids in eos_token_id; beam search considers (1 + eos) * beams next tokens of a row. 0: only
        searches that consider one, greedy search and sampling.
    finished: rows that have ended which a beam search holds of a sentence: round(beams * patience);
        0: as many as beams.
    controls: 32-bit words for what a call asks of the logits beside beams, lengths and single
        tokens, and memory for the scores that it is done to; 0: none. An error says how many.
    attentions: 1 where attention to the source is asked for.
    hidden: 1 for contrastive search, whose target is one token longer.
    phrases: 32-bit words for force_words_ids, some three for a token of them. An error says how
        many.
    shortlist: tokens of a call's shortlist, on a CPU; 0: it is not planned for.

    Raises ValueError for a size below 1 (source and those with a default of 0: below 0).
    """

    batch: int
    beams: int
    source: int = 0
    prompt: int = 1
    target: int
    eos: int = 4
    labels: int = 0
    finished: int = 0
    controls: int = 0
    attentions: int = 0
    hidden: int = 0
    phrases: int = 0
    shortlist: int = 0

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if size < LEAST[name]:
                raise ValueError(f"Limits.{name} must be at least {LEAST[name]}: {size}")

    def cover(self, other: Limits) -> bool:
        return all(getattr(self, name) >= getattr(other, name) for name in LEAST)

    def joined(self, other: Limits) -> Limits:
        """The least that covers both."""
        return Limits(**{name: max(getattr(self, name), getattr(other, name)) for name in LEAST})

    @property
    def candidates(self) -> int:
        """Next tokens that a beam search considers for a row."""
        return (1 + self.eos) * self.beams if self.eos else 1


LEAST = {"batch": 1, "beams": 1, "source": 0, "prompt": 1, "target": 1, "eos": 0, "labels": 0}
LEAST |= {"finished": 0, "controls": 0, "attentions": 0, "hidden": 0, "phrases": 0, "shortlist": 0}


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """The largest work that an engine's memory is planned for.

    requests: rows that step at once, of all requests. beams: rows of one request. source, prompt,
    target: tokens of one request, as in Limits. pages: of keys and values, 16 cells each.
    tokens: of sources and prompts that are read between two steps. candidates: next tokens that a
    beam search considers for a row. words: 32-bit words of one request's lists. classes: of rows
    for which tokens are chosen in one launch.
    """

    requests: int
    beams: int
    source: int
    prompt: int
    target: int
    pages: int
    tokens: int
    candidates: int
    words: int
    classes: int

    def cover(self, other: EngineLimits) -> bool:
        return self.joined(other) == self

    def joined(self, other: EngineLimits) -> EngineLimits:
        """The least that covers both."""
        return EngineLimits(
            **{name: max(size, vars(other)[name]) for name, size in vars(self).items()}
        )


def check_limits(limits: Limits, spec: ModelSpec | EncoderSpec) -> None:
    """Raises TypeError for other objects, ValueError for lengths beyond a model's positions."""
    if not isinstance(limits, Limits):
        raise TypeError(f"limits must be decoding.Limits(...), got {type(limits).__name__}")
    longest = {"source": spec.encoder.positions} if spec.encoder else {}
    if isinstance(spec, ModelSpec):
        longest |= dict.fromkeys(("prompt", "target", "labels"), spec.decoder.positions)
    for name, most in longest.items():
        if getattr(limits, name) > most:
            raise ValueError(
                f"{name}={getattr(limits, name)} is beyond the model's {most} positions: lower it"
            )


def next_bucket(size: int) -> int:
    """The least of 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, ... that is not below `size`.

    Plans grow in these steps, so that slightly longer sentences do not make a new plan each time,
    and no size is planned more than one and a half times too large.
    """
    if size <= 3:
        return size
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power
