"""transformers as a program that translates a file: what `decoding translate` is compared with.

Its documentation asks for batches of similar lengths: all lines are tokenised, sorted by length,
longest first, and put into batches of a number of tokens, padding included.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from benchmarks.translate_arguments import parser


def batches(rows: Sequence[Sequence[int]], tokens: int) -> Iterator[list[int]]:
    """Indices of rows of similar lengths, longest first, whose padded rows have at most so many
    tokens together; a longer row is alone."""
    batch: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: len(rows[i]), reverse=True):
        if batch and (len(batch) + 1) * len(rows[batch[0]]) > tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def translate(options: argparse.Namespace) -> None:
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if options.threads:
        torch.set_num_threads(options.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        options.model, dtype=getattr(torch, options.dtype)
    )
    model = model.eval().to(options.device)
    lines = options.input.read_text(encoding="utf-8").split("\n")[:-1]
    rows = tokenizer(lines).input_ids
    found = [""] * len(lines)
    for batch in batches(rows, options.batch_tokens):
        padded = tokenizer.pad({"input_ids": [rows[i] for i in batch]}, return_tensors="pt")
        ids = model.generate(
            **padded.to(options.device),
            num_beams=options.num_beams,
            max_new_tokens=options.max_new_tokens,
        )
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        for i, text in zip(batch, texts, strict=True):
            found[i] = text
    options.output.write_text("".join(text + "\n" for text in found), encoding="utf-8")


if __name__ == "__main__":
    translate(parser(__doc__).parse_args())
