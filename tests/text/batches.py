"""Whether a tokenizer's methods for many texts give what those for one text give."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.text.rows import Rows
from decoding.text.tokenizers import Tokenizer


def check_batches(tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    given = [*texts, "", *texts]
    ids = [tokenizer.encode(text) for text in given]
    assert tokenizer.encode_batch(given).lists() == ids
    assert [tokenizer.encode_batch([text]).lists() for text in given] == [[row] for row in ids]
    targets = [tokenizer.encode_target(text) for text in given]
    assert tokenizer.encode_target_batch(given).lists() == targets
    check_texts(tokenizer, [*ids, [], *targets])


def check_texts(tokenizer: Tokenizer, rows: Sequence[Sequence[int]]) -> None:
    for skip in (True, False):
        expected = [tokenizer.decode(row, skip_special_tokens=skip) for row in rows]
        assert tokenizer.decode_batch(Rows.of(rows), skip_special_tokens=skip) == expected
        alone = [tokenizer.decode_batch(Rows.of([row]), skip_special_tokens=skip) for row in rows]
        assert alone == [[text] for text in expected]
