"""Learns lexical translation probabilities from pairs of sentences.

IBM model 1 (Brown et al. 1993, "The Mathematics of Statistical Machine Translation: Parameter
Estimation", section 4.1). Each token t of a target sentence stems from one token s of its source
sentence, whichever, by a probability p(t | s) that is at first equal for all. Expectation
maximisation makes the sentences more probable with each iteration:

    E step   share each t among its sentence's s, in proportion to p(t | s)
    M step   p(t | s) = s's shares of t / s's shares of all tokens

The EOS that ends a source is Brown's empty word: tokens that stem from no word in particular, like
articles, stem from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from decoding.common.arrays import Array

Pair = tuple[Array, Array]  # int32, ids of a source and of its translation, none of them empty

ITERATIONS = 5
LINKS = 1 << 22  # of a batch


@dataclass(frozen=True)
class TranslationTable:
    """The table p(t | s) of all pairs of tokens that occur in a pair of sentences, ascending."""

    sources: Array  # int64 [pairs]
    targets: Array  # int64 [pairs]
    probabilities: Array  # float64 [pairs], p(t | s)
    counts: Array  # int64 [target ids], occurrences of each

    def likeliest(self, tokens: int, most: int) -> Array:
        """int32 [tokens, most]: for each source token the target tokens of the highest p(t | s),
        the lower id first among equals, padded with -1. tokens: size of the source vocabulary."""
        order = np.lexsort((self.targets, -self.probabilities, self.sources))
        sources = self.sources[order]
        rank = np.arange(len(order)) - np.searchsorted(sources, sources)
        table = np.full((tokens, most), -1, np.int32)
        kept = rank < most
        table[sources[kept], rank[kept]] = self.targets[order][kept]
        return table

    def most_frequent(self, most: int) -> Array:
        """int32 [at most `most`]: the most frequent target tokens, the lower id first."""
        order = np.argsort(-self.counts, kind="stable")[:most]
        return order[self.counts[order] > 0].astype(np.int32)


@dataclass(frozen=True)
class Links:
    """The pairs of each target token of some sentences with each source token of its sentence."""

    keys: Array  # int64 [pairs], source id * target ids + target id: pairs of tokens, ascending
    pairs: Array  # int32 [links], which of the keys; the links of a target token are neighbours
    counts: Array  # int64 [target tokens], links of each: its sentence's source tokens

    @property
    def first(self) -> Array:
        """int64 [target tokens], the first link of each."""
        return self.counts.cumsum() - self.counts

    def among(self, keys: Array) -> Links:
        """The same links with indices into other keys, a superset of their own."""
        return Links(
            keys, np.searchsorted(keys, self.keys).astype(np.int32)[self.pairs], self.counts
        )


def learn(
    sentences: Iterable[Pair], target_ids: int, iterations: int = ITERATIONS
) -> TranslationTable:
    """The table of these pairs of sentences. target_ids: size of the target vocabulary. Raises
    ValueError for no pairs.

    Takes 4 bytes for each product of a pair's lengths, and about 60 for each pair of tokens; time
    grows with the products too: 29,000 short sentences of 15 tokens are 6 million, some seconds.
    """
    counts = np.zeros(target_ids, np.int64)
    links = []
    for some in batches(sentences):
        links.append(link(some, target_ids))
        counts += np.bincount(np.concatenate([t for _, t in some]), minlength=target_ids)
    if not links:
        raise ValueError("there is no pair of sentences to learn from")
    keys = np.unique(np.concatenate([each.keys for each in links]))
    links = [each.among(keys) for each in links]
    sources, targets = np.divmod(keys, target_ids)
    probabilities = np.ones(len(keys))
    for _ in range(iterations):
        shares = np.zeros(len(keys))
        for each in links:
            share = probabilities[each.pairs]
            share /= np.repeat(np.add.reduceat(share, each.first), each.counts)
            shares += np.bincount(each.pairs, share, minlength=len(keys))
        probabilities = shares / np.bincount(sources, shares)[sources]
    return TranslationTable(sources, targets, probabilities, counts)


def batches(sentences: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Batches of pairs of sentences of about LINKS links each."""
    batch, links = list[Pair](), 0
    for source, target in sentences:
        batch.append((source, target))
        links += len(source) * len(target)
        if links >= LINKS:
            yield batch
            batch, links = [], 0
    if batch:
        yield batch


def link(sentences: list[Pair], target_ids: int) -> Links:
    sources, targets = (np.concatenate(side) for side in zip(*sentences, strict=True))
    source_lengths, target_lengths = (
        np.array([len(tokens) for tokens in side]) for side in zip(*sentences, strict=True)
    )
    counts = np.repeat(source_lengths, target_lengths)
    begins = np.repeat(source_lengths.cumsum() - source_lengths, target_lengths)
    at = np.arange(counts.sum()) + np.repeat(begins - (counts.cumsum() - counts), counts)
    keys = sources[at].astype(np.int64) * target_ids + np.repeat(targets, counts)
    keys, pairs = np.unique(keys, return_inverse=True)
    return Links(keys, pairs.astype(np.int32), counts)
