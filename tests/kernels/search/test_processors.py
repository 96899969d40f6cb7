"""process against Hugging Face's own logits processors, on random scores and random histories; and
two of OpenAI's in plain torch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor

from decoding import _kernels as kernels
from tests.conftest import Place, assert_same_bits
from tests.kernels.search.processed_search import INF, Search
from tests.support.comparison import needs_newest


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    """The same tokens are banned; the others' scores differ by rounding."""
    assert ours.shape == theirs.shape
    assert torch.equal(ours.isfinite(), theirs.isfinite())
    special = ~theirs.isfinite()
    assert torch.equal(ours[special].nan_to_num(0.0), theirs[special].nan_to_num(0.0))
    torch.testing.assert_close(ours[~special], theirs[~special], rtol=1e-6, atol=1e-5)


def words(draw: random.Random, count: int) -> list[list[int]]:
    """Of one to three tokens that texts have, and of some that they have not."""
    return [
        [draw.choice([*range(6), 3, 11, 70]) for _ in range(draw.choice([1, 2, 2, 3]))]
        for _ in range(count)
    ]


DRAWN: dict[str, Callable[[random.Random], Any]] = {
    "sequence_bias": lambda d: [
        [list(w), d.choice([-INF, 2.5, -1.25, 0.5])] for w in {tuple(w) for w in words(d, 60)}
    ],
    "encoder_repetition_penalty": lambda d: d.choice([0.7, 1.4]),
    "repetition_penalty": lambda d: d.choice([0.7, 1.3]),
    "frequency_penalty": lambda d: d.choice([-0.5, 0.3, 1.25]),
    "presence_penalty": lambda d: d.choice([-0.75, 1.5]),
    "no_repeat_ngram_size": lambda d: d.choice([1, 2, 3, 40]),
    "encoder_no_repeat_ngram_size": lambda d: d.choice([1, 2, 3, 40]),
    "bad_words_ids": lambda d: words(d, 20),
    "min_new_tokens": lambda d: d.choice([1, 8, 9, 20]),
    "forced_eos_token_id": lambda d: d.choice([[3], [3, 5]]),
    "remove_invalid_values": lambda d: True,
    "exponential_decay_length_penalty": lambda d: (d.choice([0, 7, 8, 20]), d.choice([0.9, 1.2])),
    "suppress_tokens": lambda d: d.sample([i for i in range(71) if i not in (3, 8)], 9),
    "begin_suppress_tokens": lambda d: d.sample(range(71), 9),
    "renormalize_logits": lambda d: True,
}


@needs_newest
@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("step", [1, 2, 9])
@pytest.mark.parametrize("beams", [1, 3])
def test_every_processor_alone(name: str, step: int, beams: int, place: Place) -> None:
    changed = 0
    for seed in range(4):
        search = Search(seed, step=step, beams=beams, max_new=[9, 9, 30])
        draw = random.Random(seed)
        options = {name: DRAWN[name](draw)}
        logits = search.logits().to(place.dtype)
        scores, lse, _ = search.process(logits, options, place, competing=beams > 1)
        assert_same(scores, search.expected(logits, options, competing=beams > 1))
        torch.testing.assert_close(lse, logits[: len(lse)].float().logsumexp(-1))
        without = search.expected(logits, {}, competing=beams > 1)
        changed += not torch.equal(search.expected(logits, options, competing=beams > 1), without)
    late = name in ("forced_eos_token_id", "exponential_decay_length_penalty")
    late |= step == 1 and name in ("frequency_penalty", "presence_penalty")
    early = name == "begin_suppress_tokens"
    if name not in ("remove_invalid_values", "renormalize_logits") and (step == 9 or not late):
        assert changed > 0 or (early and step > 1), "the test shows nothing"


def random_case(seed: int) -> tuple[Search, dict[str, Any], bool]:
    draw = random.Random(seed)
    beams = draw.choice([1, 1, 2, 4])
    sentences, step = draw.choice([1, 2, 3]), draw.choice([1, 1, 2, 3, 9, 24])
    search = Search(
        seed,
        step=step,
        sentences=sentences,
        beams=beams,
        width=draw.choice([1, 1, 2, 5]),
        vocab=draw.choice([71, 75, 96, 257]),
        base=draw.choice([0, 4]),
        max_new=[draw.choice([step, step + 1, 40]) for _ in range(sentences)],
    )
    if search.width == 1 and draw.random() < 0.5:
        search.forced_first = [draw.choice([-1, 3, 8]) for _ in range(sentences)]
    names = draw.sample(list(DRAWN), draw.randrange(2, len(DRAWN)))
    options = {name: DRAWN[name](draw) for name in names}
    forced = set(options.get("forced_eos_token_id", ()))
    if forced & set(options.get("begin_suppress_tokens", ())):
        del options["forced_eos_token_id"]  # a step might have nothing to choose
    return search, options, beams > 1


@needs_newest
@pytest.mark.parametrize("batch", range(10))
def test_random_compositions(batch: int, place: Place) -> None:
    for seed in range(100 * batch, 100 * batch + 30):
        search, options, competing = random_case(seed)
        logits = search.logits().to(place.dtype)
        scores, _, _ = search.process(logits, options, place, competing=competing)
        assert_same(scores, search.expected(logits, options, competing=competing))


def test_stages_one_by_one_are_the_whole(place: Place) -> None:
    for seed in range(20):
        search, options, competing = random_case(seed)
        logits = search.logits().to(place.dtype)
        whole, _, _ = search.process(logits, options, place, competing=competing)
        scores = torch.zeros(len(logits), search.vocab)
        for stage in (kernels.PRE, kernels.MID, kernels.POST):
            scores[: len(whole)], _, _ = search.process(
                logits, options, place, competing=competing, stages=stage, scores=scores
            )
        torch.testing.assert_close(scores[: len(whole)], whole, rtol=0, atol=1e-6)


@needs_newest
@pytest.mark.parametrize("beams", [1, 2])
def test_guidance(beams: int, place: Place) -> None:
    search = Search(5, beams=beams)
    logits = search.logits().to(place.dtype)
    without = search.logits(seed=1).to(place.dtype)
    scores, _, _ = search.process(
        logits,
        {"guidance_scale": 1.7, "repetition_penalty": 1.2},
        place,
        unconditional=without,
        competing=beams > 1,
    )
    theirs = UnbatchedClassifierFreeGuidanceLogitsProcessor(1.7, None)
    rows = slice(0, len(search.rows))
    theirs.get_unconditional_logits = lambda _: without[rows, None].float()
    guided = theirs(search.rows, logits[rows].float())
    penalty = search.theirs(0, {"repetition_penalty": 1.2})[0]
    penalty.prompt_ignore_length = torch.from_numpy(
        search.masked[search.active].repeat(beams)  # of all sentences at once
    )
    assert_same(scores, penalty(search.rows, guided))


@pytest.mark.parametrize("value", [float("nan"), INF])
@pytest.mark.parametrize("competing", [False, True])
def test_broken_rows_are_known_by_their_lse(value: float, competing: bool, place: Place) -> None:
    search = Search(3)
    logits = search.logits().to(place.dtype)
    logits[1, 40], logits[2, 50] = value, -INF
    forced = {"forced_eos_token_id": [3], "repetition_penalty": 1.3}
    _, lse, _ = search.process(logits, forced, place, competing=competing)
    assert lse.isfinite().tolist() == [True, False, True, True]
    valid = {"remove_invalid_values": True, **forced}
    scores, lse, _ = search.process(logits, valid, place, competing=competing)
    assert lse.isfinite().all()
    assert_same(scores, search.expected(logits, valid, competing=competing))


def test_a_source_of_other_tokens_than_the_decoder_has(place: Place) -> None:
    search = Search(1)
    logits = search.logits().to(place.dtype)
    options = {"encoder_repetition_penalty": 1.3, "encoder_no_repeat_ngram_size": 1}
    expected = search.expected(logits, options, competing=False)
    search.source = np.concatenate([search.source, np.full((3, 1), 2000)], 1)
    assert_same(search.process(logits, options, place)[0], expected)


def test_thousands_of_words_and_several_for_one_token(place: Place) -> None:
    search = Search(2, used=4)
    draw = random.Random(2)
    many = {tuple(draw.randrange(4) for _ in range(draw.choice([2, 3, 5]))) for _ in range(3000)}
    options = {
        "sequence_bias": [[list(word), draw.uniform(-1, 1)] for word in sorted(many)]
        + [[[token], draw.uniform(-1, 1)] for token in range(0, 75, 2)],
        "bad_words_ids": [[draw.randrange(4, 75) for _ in range(2)] for _ in range(2000)] + [[9]],
    }
    logits = search.logits().to(place.dtype)
    scores, _, _ = search.process(logits, options, place)
    assert_same(scores, search.expected(logits, options, competing=False))


def test_a_single_token_again(isa: str) -> None:
    """reprocess: the whole pass with a penalty on some tokens' scores right behind their biases,
    which are added to the logits here."""
    place, tested = Place(isa), 0
    for seed in range(40):
        search, options, _ = random_case(seed)
        options.pop("renormalize_logits", None)
        logits = search.logits()
        biased = (
            {"sequence_bias": options.pop("sequence_bias")}
            if seed % 2 and ("sequence_bias" in options)
            else {}
        )
        options.pop("sequence_bias", None)
        draw = random.Random(seed)
        rows = len(search.rows)
        tokens = [
            (draw.randrange(rows), draw.randrange(search.vocab), draw.choice([0.0, 1.5]))
            for _ in range(10)
        ]
        _, _, again = search.process(
            logits, {**options, **biased}, place, competing=True, again=tokens
        )
        for (row, token, less), ours in zip(tokens, again, strict=True):
            lowered = {"sequence_bias": [[[token], -less]]}
            x = search.expected(logits, biased, competing=True)
            full = torch.cat([x, x.new_zeros(len(logits) - rows, search.vocab)])
            # competing=False: the scores are log-probabilities already
            theirs = search.expected(full, {**options, **lowered}, competing=False)[row, token]
            assert_same(torch.tensor([ours]), theirs[None])
            tested += int(less > 0 and bool(theirs.isfinite()))
    assert tested > 40


def test_rows_depend_on_nothing_but_themselves(isa: str) -> None:
    search, options, competing = random_case(7)
    logits = search.logits()
    named = {"competing": competing}
    both = search.process(logits, options, Place(isa), **named)[0]
    active = search.active
    for i, sentence in enumerate(active):
        own = search.state["active"][search.state["active"][:, 0] == sentence][0]
        search.state["active"], search.state["state"][1] = own.repeat(search.sentences, 1), 1
        mine = slice(i * search.beams, (i + 1) * search.beams)
        alone = torch.full_like(logits, float("nan"))
        alone[: search.beams] = logits[mine]
        ids = search.state["ids"].clone()
        search.state["ids"][: search.beams] = ids[mine]
        scores = search.process(alone, options, Place(isa), **named)[0][: search.beams]
        assert torch.equal(scores.nan_to_num(-1.0), both[mine].nan_to_num(-1.0))
        search.state["ids"] = ids


def put_beside(search: Search, other: Search) -> None:
    """The second active sentence becomes that of `other`, which is the same search but for its
    step; `search` is further on."""
    mine = slice(search.active[1] * search.beams, (search.active[1] + 1) * search.beams)
    state, its = search.state, other.state
    state["active"][1] = its["active"][1]
    state["ids"][search.beams : 2 * search.beams] = its["ids"][search.beams : 2 * search.beams]
    state["tokens"][: len(its["tokens"]), mine] = its["tokens"][:, mine]
    state["cache_indirection"][:, mine, : its["cache_indirection"].shape[2]] = its[
        "cache_indirection"
    ][:, mine]


@pytest.mark.parametrize("step", [1, 2, 8])
def test_sentences_at_steps_of_their_own(step: int, place: Place) -> None:
    """To the bit as each of them is processed among others at the same step."""
    for seed in range(40):
        _, options, _ = random_case(seed)
        both, other = (
            Search(seed, step=s, beams=2, base=4, max_new=[9, step, 40]) for s in (9, step)
        )
        assert both.active == other.active and len(both.active) == 2
        logits = both.logits().to(place.dtype)
        first, second = (
            search.process(logits, options, place, competing=True)[0].split(2)[i]
            for i, search in enumerate((both, other))
        )
        put_beside(both, other)
        scores = both.process(logits, options, place, competing=True)[0]
        assert_same_bits(scores, torch.cat([first, second]))
