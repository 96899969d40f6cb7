"""CTranslate2 as a program that translates a file: what `decoding translate` is compared with.

Lines are cut by sentencepiece and translated as its documentation has it for large files:
translate_iterable, which reads ahead, sorts by length and makes batches of a number of tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.translate_arguments import parser

PAD = "<pad>"


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
            yield [*source.encode(line.rstrip("\n"), out_type=str), "</s>"]

    with options.input.open(encoding="utf-8") as lines, options.output.open("w") as sink:
        for result in translator.translate_iterable(
            rows(lines),
            max_batch_size=options.batch_tokens,
            batch_type="tokens",
            beam_size=options.num_beams,
            max_decoding_length=options.max_new_tokens,
            suppress_sequences=[[PAD]],
        ):
            sink.write(target.decode(result.hypotheses[0]) + "\n")


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument(
        "--pieces", type=Path, required=True, help="has source.spm and target.spm"
    )
    translate(arguments.parse_args())
