"""The engines' answers to a text beside the reference's, before anything is timed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from decoding.compare.engines import Contender
from decoding.compare.lineup import Lineup
from decoding.compare.results import Check, Difference
from decoding.compare.task import Search
from decoding.compare.text import Text, batches
from decoding.compare.worker import Given, Worker
from decoding.text.tokenizers import Tokenizer

ROWS = 16  # of a call: transformers keeps the scores of all of their steps
SHOWN = 5  # lines that differ


@dataclass(frozen=True)
class Answers:
    """Of one engine to all lines: tokens before the end, [lines][tokens], and in beam search scores
    [lines]. who: engine, type and device."""

    who: str
    tokens: list[list[int]]
    scores: list[float]


def answers(lineup: Lineup, text: Text, search: Search) -> dict[Contender, Answers]:
    """Of all lines, from those who do not fail."""
    lineup.start(search.beams, fresh=False)
    found = {
        contender: Answers(str(contender), [[]] * len(text.ids), [math.nan] * len(text.ids))
        for contender in lineup.workers
    }
    ends = set(lineup.task.config.eos_token_id)
    for places in batches(text, max(1, ROWS // search.beams)):
        given = given_of(text, places, lineup.text)
        ask = partial(Worker.run_once, given=given, search=search)
        for contender, answer in lineup.each(ask).items():
            for i, place in enumerate(places):
                found[contender].tokens[place] = before_end(answer.tokens[i], ends)
                if answer.scores:
                    found[contender].scores[place] = answer.scores[i]
    return {contender: found[contender] for contender in lineup.workers}


def given_of(text: Text, places: Sequence[int], as_text: bool) -> Given:
    if as_text:
        return [text.sources[i] for i in places]
    return [text.ids[i] for i in places]


def before_end(row: Sequence[int], ends: set[int]) -> list[int]:
    """Engines differ in whether they give the end token back, and in what is behind it."""
    end = next((i for i, token in enumerate(row) if token in ends), len(row))
    return list(row[:end])


def check(
    contender: Contender,
    beams: int,
    found: Answers,
    reference: Answers,
    text: Text,
    tokenizer: Tokenizer,
) -> Check:
    """`found` beside `reference`."""
    pairs = list(zip(found.tokens, reference.tokens, strict=True))
    same = [i for i, (ours, theirs) in enumerate(pairs) if ours == theirs]
    distances = [abs(found.scores[i] - reference.scores[i]) for i in same]
    texts = [tokenizer.decode(row) for row in found.tokens]
    bleu, chrf = quality(texts, text.references)
    return Check(
        engine=contender.engine.name,
        dtype=contender.settings.dtype,
        device=contender.settings.device,
        beams=beams,
        reference=reference.who,
        sentences=len(pairs),
        identical=len(same),
        largest=max(distances, default=math.nan),
        mean=sum(distances) / len(distances) if distances else math.nan,
        bleu=bleu,
        chrf=chrf,
        differing=tuple(differences(texts, reference, text, tokenizer, set(same))),
    )


def differences(
    texts: Sequence[str], reference: Answers, text: Text, tokenizer: Tokenizer, same: set[int]
) -> Iterator[Difference]:
    """The first few."""
    places = [i for i in range(len(texts)) if i not in same]
    for i in places[:SHOWN]:
        expected = tokenizer.decode(reference.tokens[i])
        yield Difference(text.numbers[i], text.sources[i], expected, texts[i])


def failed(contender: Contender, beams: int, reason: str) -> Check:
    settings = contender.settings
    return Check(
        contender.engine.name, settings.dtype, settings.device, beams, reference="", error=reason
    )


def quality(texts: Sequence[str], references: Sequence[str]) -> tuple[float, float]:
    """BLEU and chrF (sacrebleu's defaults); NaN without references."""
    if not references:
        return math.nan, math.nan
    import sacrebleu

    return (
        sacrebleu.corpus_bleu(texts, [references]).score,
        sacrebleu.corpus_chrf(texts, [references]).score,
    )
