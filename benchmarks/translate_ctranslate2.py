"""CTranslate2 as a program that translates a file: what `decoding translate` is compared with.

Lines are cut by sentencepiece and translated as its documentation has it for large files:
translate_iterable, which reads ahead, sorts by length and makes batches of a number of tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.translate_arguments import parser

EOS, PAD = "</s>", "<pad>"


def translate(options: argparse.Namespace) -> None:
    import ctranslate2
    import sentencepiece

    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(options.pieces / f"{side}.spm"))
        for side in ("source", "target")
    )
    translator = ctranslate2.Translator(
        str(options.model),
        device=options.device,
        compute_type=options.dtype,
        inter_threads=1,
        intra_threads=options.threads,
    )

    def rows(lines: Iterable[str]) -> Iterator[list[str]]:
        for line in lines:
            yield [*source.encode(line.rstrip("\n"), out_type=str), EOS]

    def translations(lines: Iterable[str], most: int, banned: Sequence[str]) -> Iterator[str]:
        for result in translator.translate_iterable(
            rows(lines),
            max_batch_size=options.batch_tokens,
            batch_type="tokens",
            beam_size=options.num_beams,
            max_decoding_length=most,
            suppress_sequences=[[token] for token in banned],
        ):
            yield target.decode(result.hypotheses[0]) + "\n"

    with options.input.open(encoding="utf-8") as lines, options.output.open("w") as sink:
        if options.limits is None:
            sink.writelines(translations(lines, options.max_new_tokens, [PAD]))
            return
        limits, given = map(int, options.limits.read_text().split()), list(lines)
        found = [""] * len(given)
        for most, numbers in grouped(limits).items():  # a call has one limit
            group = translations([given[i] for i in numbers], most, [PAD, EOS])
            for i, text in zip(numbers, group, strict=True):
                found[i] = text
        sink.writelines(found)


def grouped(limits: Iterable[int]) -> dict[int, list[int]]:
    """The numbers of the lines that have each limit."""
    found: dict[int, list[int]] = {}
    for i, limit in enumerate(limits):
        found.setdefault(limit, []).append(i)
    return found


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument(
        "--pieces", type=Path, required=True, help="has source.spm and target.spm"
    )
    arguments.add_argument(
        "--limits", type=Path, help="tokens of each line's translation, of which none ends before"
    )
    translate(arguments.parse_args())
