"""IBM model 1 against a few lines of plain Python, and what is taken from its table."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.text import ibm_model1
from decoding.text.ibm_model1 import TranslationTable, learn

SOURCES, TARGETS = 7, 5
sides = [st.lists(st.integers(0, ids - 1), min_size=1, max_size=6) for ids in (SOURCES, TARGETS)]
corpora = st.lists(st.tuples(*sides), min_size=1, max_size=12)
Corpus = list[tuple[list[int], list[int]]]


def arrays(corpus: Corpus) -> list[ibm_model1.Pair]:
    return [(np.array(s, np.int32), np.array(t, np.int32)) for s, t in corpus]


def plainly(corpus: Corpus, iterations: int) -> dict[tuple[int, int], float]:
    probability: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        share: dict[tuple[int, int], float] = defaultdict(float)
        whole: dict[int, float] = defaultdict(float)
        for source, target in corpus:
            for t in target:
                total = sum(probability[s, t] for s in source)
                for s in source:
                    share[s, t] += probability[s, t] / total
                    whole[s] += probability[s, t] / total
        probability = defaultdict(float, {(s, t): x / whole[s] for (s, t), x in share.items()})
    return dict(probability)


@pytest.mark.parametrize("links", [1, 7, ibm_model1.LINKS])
@given(corpus=corpora, iterations=st.integers(1, 4))
def test_probabilities(links: int, corpus: Corpus, iterations: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ibm_model1, "LINKS", links)  # batches change nothing
        found = learn(arrays(corpus), TARGETS, iterations)
    pairs = zip(found.sources.tolist(), found.targets.tolist(), strict=True)
    ours = dict(zip(pairs, found.probabilities.tolist(), strict=True))
    assert ours == pytest.approx(plainly(corpus, iterations), rel=1e-9, abs=1e-12)
    assert found.counts.tolist() == [
        Counter(token for _, target in corpus for token in target)[token]
        for token in range(TARGETS)
    ]


def test_a_word_is_told_from_the_words_beside_it() -> None:
    """Of das/the, haus/house, buch/book, ein/a, each stands beside two others."""
    das, haus, buch, ein = the, house, book, a = range(4)
    corpus = [([das, haus], [the, house]), ([das, buch], [the, book]), ([ein, buch], [a, book])]
    found = learn(arrays(corpus), 4, iterations=20)
    assert found.likeliest(4, 1)[:, 0].tolist() == [the, house, book, a]
    assert found.probabilities[(found.sources == das) & (found.targets == the)] > 0.9


def test_the_likeliest_come_first() -> None:
    found = TranslationTable(
        sources=np.array([0, 0, 0, 0, 2]),
        targets=np.array([1, 3, 4, 6, 5]),
        probabilities=np.array([0.1, 0.3, 0.3, 0.3, 1.0]),
        counts=np.array([0, 5, 2, 5, 0, 9, 1]),
    )
    assert found.likeliest(3, 3).tolist() == [[3, 4, 6], [-1, -1, -1], [5, -1, -1]]
    assert found.likeliest(3, 5)[0].tolist() == [3, 4, 6, 1, -1]
    assert found.most_frequent(3).tolist() == [5, 1, 3]
    assert found.most_frequent(99).tolist() == [5, 1, 3, 2, 6]


def test_nothing_to_learn_from() -> None:
    with pytest.raises(ValueError, match="no pair of sentences"):
        learn([], TARGETS)
