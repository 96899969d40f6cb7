"""Token ids in: what is dropped, inferred, refused, and how a call is split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from decoding.generation import batching
from decoding.generation.batching import TokenBatch, prompt_batch, source_batch, split

PAD = 9


def prompts(ids: Any, mask: Any = None, pad: int | None = PAD, eos: tuple[int, ...] = (3,)) -> Any:
    return prompt_batch(ids, mask, 10, pad=pad, eos=eos)


def counting(rows: TokenBatch) -> list[list[bool]]:
    mask = np.ones_like(rows.ids, dtype=bool) if rows.mask is None else rows.mask
    return mask.tolist()


def test_packing_drops_masked_tokens_and_keeps_their_places() -> None:
    ids = torch.tensor([[4, 5, 6, 7], [1, 2, 3, 4], [8, 8, 5, 8]])
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 1], [0, 0, 1, 0]])
    rows = source_batch(ids, mask, 10)
    packed = rows.select(np.array([1, 2, 0])).pack()
    assert packed.ids.tolist() == [1, 3, 4, 5, 4, 5]
    assert packed.positions.tolist() == [0, 2, 3, 2, 0, 1]
    assert packed.offsets.tolist() == [0, 3, 4, 6]
    assert (len(packed), packed.longest, rows.lengths.tolist()) == (3, 3, [2, 3, 1])
    assert {packed.ids.dtype, packed.offsets.dtype, packed.positions.dtype} == {np.dtype(np.int32)}


def test_lists_may_be_ragged() -> None:
    source = source_batch([[4, 5, 6], [7]], None, 10)
    assert counting(source) == [[True, True, True], [True, False, False]]
    prompt = prompts([[4, 5, 6], [7]])
    assert prompt.ids.tolist() == [[4, 5, 6], [PAD, PAD, 7]]
    assert counting(prompt) == [[True, True, True], [False, False, True]]
    # a pad that is an EOS counts as a token where it is given, not where it fills up
    prompt = prompts([[PAD, 5, 6], [7]], eos=(PAD,))
    assert counting(prompt) == [[True, True, True], [False, False, True]]
    masked = prompts([[4, 5, 6], [7, 8]], [[0, 1, 1], [1, 1]])
    assert counting(masked) == [[False, True, True], [False, True, True]]
    with pytest.raises(ValueError, match="pad_token_id"):
        prompts([[4, 5], [7]], pad=None, eos=())


@pytest.mark.parametrize("convert", [np.array, torch.tensor, lambda x: torch.tensor(x).int(), list])
def test_kinds_of_arrays(convert: Any) -> None:
    rows = source_batch(convert([[4, 5], [6, 7]]), convert([[1, 1], [1, 0]]), 10)
    assert rows.ids.tolist() == [[4, 5], [6, 7]] and rows.ids.dtype == np.int64
    assert counting(rows) == [[True, True], [True, False]]


@pytest.mark.parametrize(
    "pad, eos, expected",
    [
        (PAD, (3,), [False, True]),
        (PAD, (3, PAD), [True, True]),  # a pad that is an EOS tells nothing
        (PAD, (), [False, True]),
        (None, (3,), [True, True]),
        (8, (3,), [True, True]),  # does not occur
    ],
)
def test_a_missing_mask_of_a_prompt_is_inferred(
    pad: int | None, eos: tuple[int, ...], expected: list[bool]
) -> None:
    assert counting(prompts([[PAD, 4]], pad=pad, eos=eos)) == [expected]
    assert counting(source_batch([[PAD, 4]], None, 10)) == [[True, True]]


@pytest.mark.parametrize(
    "ids, mask, words",
    [
        ([], None, "at least one row"),
        ([[]], None, "empty"),
        ([[1], []], None, "empty"),
        ([1, 2], None, "two dimensions"),
        (torch.zeros(2, 0, dtype=torch.int64), None, r"\[2, 0\]"),
        (torch.zeros(0, 2, dtype=torch.int64), None, r"\[0, 2\]"),
        (torch.zeros(1, 2, 3, dtype=torch.int64), None, r"\[1, 2, 3\]"),
        ([[[1]]], None, "two dimensions"),
        ([[1.5]], None, "integers"),
        (torch.ones(1, 2), None, "float32"),
        (torch.ones(1, 2, dtype=torch.bool), None, "bool"),
        (["a b"], None, "integers"),
        ("a b", None, "integers"),
        ([[1, 10]], None, "holds 10, the model's ids are 0 to 9"),
        ([[1, -1]], None, "holds -1"),
        ([[1, 2]], [[1]], r"\[1, 2\]; got \[1, 1\]"),
        ([[1, 2]], torch.ones(1, 1, 2, 2), r"got \[1, 1, 2, 2\]"),
        ([[1, 2]], [[2, 1]], "1 for tokens"),
        ([[1, 2]], torch.tensor([[0.5, 1]]), "1 for tokens"),
        ([[1, 2], [3, 4]], [[1, 1], [0, 0]], "every token of row 1"),
    ],
)
def test_refused(ids: Any, mask: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        source_batch(ids, mask, 10)
    with pytest.raises(ValueError, match=words):
        prompts(ids, mask)


def test_prompts_are_padded_on_the_left() -> None:
    with pytest.raises(ValueError, match="row 1 ends with padding"):
        prompts([[1, 2], [3, 4]], [[1, 1], [1, 0]])
    with pytest.raises(ValueError, match="row 0 ends with padding"):
        prompts([[1, PAD]])
    source_batch([[1, 2]], [[1, 0]], 10)


def test_split_takes_each_sentence_once_longest_first_where_it_must(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = np.array([3, 9, 1, 9, 5, 2, 7])
    assert [part.tolist() for part in split(lengths, 1, None, "cpu")] == [[0, 1, 2, 3, 4, 5, 6]]
    assert [part.tolist() for part in split(lengths, 4, 3, "cpu")] == [[1, 3, 6], [4, 0, 5], [2]]
    monkeypatch.setitem(batching.ROWS, "cpu", 8)
    assert [len(part) for part in split(lengths, 4, None, "cpu")] == [2, 2, 2, 1]
    assert [len(part) for part in split(lengths, 20, None, "cpu")] == [1] * 7
    monkeypatch.setitem(batching.ROWS, "cpu", 100)
    monkeypatch.setattr(batching, "TOKENS", 18)
    assert [part.tolist() for part in split(lengths, 1, None, "cpu")] == [[1, 3], [6, 4], [0, 5, 2]]
