"""Compares the engines' answers to a text with the reference's, before anything is timed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from decoding.compare.engine_pool import EnginePool
from decoding.compare.engines import EngineConfig
from decoding.compare.results import Check, Difference
from decoding.compare.task import Search
from decoding.compare.text import Text, batches
from decoding.compare.worker import Given, Worker
from decoding.text.tokenizers import Tokenizer

ROWS = 16  # of a call: transformers keeps the scores of all of their steps
SHOWN = 5  # lines that differ


@dataclass(frozen=True)
class Answers:
    """One engine's answers to all lines: tokens before the end, [lines][tokens], and in beam search
    scores [lines]. who: engine, type and device."""

    who: str
    tokens: list[list[int]]
    scores: list[float]


def answers(pool: EnginePool, text: Text, search: Search) -> dict[EngineConfig, Answers]:
    """The answers to all lines of the engines that do not fail."""
    pool.start(search.beams, fresh=False)
    found = {
        config: Answers(str(config), [[]] * len(text.ids), [math.nan] * len(text.ids))
        for config in pool.workers
    }
    ends = set(pool.task.config.eos_token_id)
    for places in batches(text, max(1, ROWS // search.beams)):
        given = given_of(text, places, pool.text)
        ask = partial(Worker.run_once, given=given, search=search)
        for config, answer in pool.each(ask).items():
            for i, place in enumerate(places):
                found[config].tokens[place] = before_end(answer.tokens[i], ends)
                if answer.scores:
                    found[config].scores[place] = answer.scores[i]
    return {config: found[config] for config in pool.workers}


def given_of(text: Text, places: Sequence[int], as_text: bool) -> Given:
    if as_text:
        return [text.sources[i] for i in places]
    return [text.ids[i] for i in places]


def before_end(row: Sequence[int], ends: set[int]) -> list[int]:
    """The tokens before the end token: engines differ in whether they return it, and in the padding
    after it."""
    end = next((i for i, token in enumerate(row) if token in ends), len(row))
    return list(row[:end])


def check(
    config: EngineConfig,
    beams: int,
    found: Answers,
    reference: Answers,
    text: Text,
    tokenizer: Tokenizer,
) -> Check:
    """Compares the answers of one engine, `found`, with those of the reference."""
    pairs = list(zip(found.tokens, reference.tokens, strict=True))
    same = [i for i, (ours, theirs) in enumerate(pairs) if ours == theirs]
    distances = [abs(found.scores[i] - reference.scores[i]) for i in same]
    texts = [tokenizer.decode(row, skip_special_tokens=True) for row in found.tokens]
    bleu, chrf = quality(texts, text.references)
    return Check(
        engine=config.engine.name,
        dtype=config.settings.dtype,
        device=config.settings.device,
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
    """The first SHOWN lines that are answered differently."""
    places = [i for i in range(len(texts)) if i not in same]
    for i in places[:SHOWN]:
        expected = tokenizer.decode(reference.tokens[i], skip_special_tokens=True)
        yield Difference(text.numbers[i], text.sources[i], expected, texts[i])


def failed(config: EngineConfig, beams: int, reason: str) -> Check:
    settings = config.settings
    return Check(
        config.engine.name, settings.dtype, settings.device, beams, reference="", error=reason
    )


def quality(texts: Sequence[str], references: Sequence[str]) -> tuple[float, float]:
    """BLEU and chrF with sacrebleu's defaults; NaN without references."""
    if not references:
        return math.nan, math.nan
    import sacrebleu

    return (
        sacrebleu.corpus_bleu(texts, [references]).score,
        sacrebleu.corpus_chrf(texts, [references]).score,
    )
