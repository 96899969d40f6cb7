"""Makes a shortlist from parallel text, for `translate --shortlist`.

A shortlist says which target tokens each source token may become. The better the text resembles
the texts to translate, the fewer translations differ from those without a shortlist; with the
model's own translations as target they differ least. 29,000 short pairs take 10 seconds of one core
and 0.5 GB, 164,000 pairs 15 seconds and 0.8 GB.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import decoding
from decoding.cli.arguments import add_source_arguments, load_model, positive
from decoding.cli.reading import Input, add_format_arguments, check_apart
from decoding.cli.records import paired, texts_of
from decoding.cli.writing import refuse_overwriting

if TYPE_CHECKING:
    from decoding.text.ibm_model1 import Pair

LONGEST = 200  # tokens; the work of a pair grows with the product of its lengths
SAMPLE = 1000  # pairs whose lists are made, to say how long they are


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_source_arguments(parser)
    add("--source", required=True, metavar="FILE", help="a sentence in each line")
    add("--target", required=True, metavar="FILE", help="their translations, line by line")
    add("-o", "--output", required=True, metavar="FILE", help="the shortlist, an .npz archive")
    add(
        "--candidates",
        type=positive,
        default=100,
        metavar="N",
        help="target tokens that each source token may become (default: 100)",
    )
    add(
        "--frequent",
        type=positive,
        default=100,
        metavar="M",
        help="most frequent target tokens, in the list of every sentence (default: 100)",
    )
    add_format_arguments(parser, formats=False)


def run(args: argparse.Namespace) -> None:
    from decoding.text.ibm_model1 import learn
    from decoding.text.shortlist import Shortlist

    source, target = (Input(args, [name], "text") for name in (args.source, args.target))
    check_apart(source, target)
    refuse_overwriting((args.source, args.target), args.output)
    model = load_model(args, device="cpu")
    start = time.perf_counter()
    pairs = list(token_pairs(model, paired(texts_of(source), texts_of(target))))
    encoder, decoder = model.spec.encoder, model.spec.decoder
    assert encoder is not None  # token_pairs
    table = learn(pairs, decoder.vocab)
    found = Shortlist(
        table.likeliest(encoder.vocab, args.candidates),
        table.most_frequent(args.frequent),
        decoder.vocab,
    )
    found.save(args.output)
    seconds = time.perf_counter() - start
    sizes = [len(found.ids_for(source)) for source, _ in pairs[:: max(1, len(pairs) // SAMPLE)]]
    print(
        f"{len(pairs)} pairs in {seconds:.1f} s: a sentence may have "
        f"{sum(sizes) / len(sizes):.0f} of {decoder.vocab} tokens",
        file=sys.stderr,
    )


def token_pairs(model: decoding.Model, texts: Iterable[tuple[str, str]]) -> Iterator[Pair]:
    """Token ids of each pair, but for pairs with a blank or very long side. Raises ValueError for a
    model without an encoder."""
    import numpy as np

    if model.spec.encoder is None:
        raise ValueError("a shortlist needs a source text, this model has a decoder alone")
    for source, target in texts:
        if source.strip() and target.strip():
            ids = model.tokenizer.encode(source), model.tokenizer.encode_target(target)
            if max(map(len, ids)) <= LONGEST:
                yield np.array(ids[0], np.int32), np.array(ids[1], np.int32)
