"""A row's answer depends on no other row: neighbours, padding, sub-batches, options of each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import decoding
from decoding.generation import batching
from tests.support.calls import FILL, item_of, ragged, run, same, same_items
from tests.support.random_models import load, ours, reference

SEARCHES: list[dict[str, Any]] = [
    {},
    {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.7},
    {"num_beams": 3, "early_stopping": True, "min_new_tokens": 3},
    {"do_sample": True, "seed": 7, "num_return_sequences": 2, "temperature": 1.5},
]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", ["marian", "marian-relu-wide", "gpt2", "gpt2-wide"])
def test_neighbours_change_nothing(name: str, search: dict[str, Any], device: str) -> None:
    """Alone, behind other neighbours, repeated, reversed."""
    inputs = ragged(name, 6)
    copies = search.get("num_return_sequences", 1)

    def items(order: list[int]) -> list[Any]:
        batch = {key: value[order] for key, value in inputs.items()}
        found = run(name, batch, device, pad_token_id=FILL, **search)
        return [item_of(found, place, copies) for place in range(len(order))]

    together = items([0, 1, 2, 3, 4, 5])
    assert same_items(items([0, 1, 2, 3, 4, 5] * 2)[:6], together, device)
    # an item's random numbers belong to its place, so that stays
    placed = [items([0] * item + [item])[item] for item in range(6)]
    assert same_items(placed, together, device)
    if "seed" not in search:
        assert same_items([items([item])[0] for item in range(6)], together, device)
        assert same_items(items([5, 4, 3, 2, 1, 0])[::-1], together, device)


@pytest.mark.parametrize(
    "types",
    [
        {"dtype": "float32"},
        {"dtype": "bfloat16"},
        {"dtype": "int8"},
        {"dtype": "int8", "kv_cache_dtype": "bfloat16"},
    ],
    ids=lambda types: "-".join(types.values()),
)
@pytest.mark.parametrize("name", ["marian-relu-wide", "gpt2-wide"])
def test_types_threads_and_neighbours(name: str, types: dict[str, str]) -> None:
    """In every type of a CPU: one thread and a sentence alone, two threads and a batch."""
    one, two = (load(name, threads=threads, **types) for threads in (1, 2))
    inputs = ragged(name, 5)
    for search in SEARCHES:
        copies = search.get("num_return_sequences", 1)
        options = search | {"max_new_tokens": 12, "pad_token_id": FILL}
        options |= {"return_dict_in_generate": True, "output_sequences_scores": True}
        seeds = {"seed": list(range(5))} if "seed" in search else {}
        together = two.generate(**inputs, **(options | seeds))
        for i in range(5):
            own = {key: value[i : i + 1] for key, value in (inputs | seeds).items()}
            alone = one.generate(**(options | own))
            assert same_items([item_of(alone, 0, copies)], [item_of(together, i, copies)], "cpu")


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_sub_batches_change_nothing(
    name: str, search: dict[str, Any], monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    inputs = ragged(name, 9)
    whole = run(name, inputs, device, **search)
    for rows, tokens in ((1, 10**6), (9, 10**6), (128, 15)):
        monkeypatch.setitem(batching.ROWS, device, rows)
        monkeypatch.setattr(batching, "TOKENS", tokens)
        split = run(name, inputs, device, **search)
        assert torch.equal(split.sequences, whole.sequences)
        for field in ("sequences_scores", "beam_indices"):
            if hasattr(whole, field):
                assert same(getattr(split, field), getattr(whole, field), device)
        # rows of sentences that have ended are undefined
        for a, b in zip(split.scores, whole.scores, strict=True):
            both = (a != 0).any(1) & (b != 0).any(1)
            assert same(a[both], b[both], device)


def test_padding_changes_nothing(device: str) -> None:
    ids = torch.tensor([[12, 13, 14]])
    padded = torch.tensor([[9, 9, 9, 12, 13, 14]])
    mask = torch.tensor([[0, 0, 0, 1, 1, 1]])
    for search in ({}, {"num_beams": 4}):
        alone = ours("gpt2", device).generate(ids, max_new_tokens=12, **search)
        with_padding = ours("gpt2", device).generate(
            padded, attention_mask=mask, max_new_tokens=12, **search
        )
        assert torch.equal(with_padding[:, 3:], alone) and torch.equal(with_padding[:, :6], padded)
        mask_right = mask.flip(1)
        source = torch.tensor([[12, 13, 14, 9, 9, 9]])
        assert torch.equal(
            ours("marian", device).generate(ids, **search),
            ours("marian", device).generate(source, attention_mask=mask_right, **search),
        )


@pytest.mark.parametrize("name", ["marian", "gpt2"])
@pytest.mark.parametrize("search", [{}, {"num_beams": 3}, {"do_sample": True, "seed": [4, 5, 6]}])
def test_options_of_each_row(name: str, search: dict[str, Any], device: str) -> None:
    """The same as each row in a call of its own."""
    inputs = ragged(name, 3)
    model = ours(name, device)
    each: dict[str, list[Any]] = {"max_new_tokens": [3, 11, 7], "forced_bos_token_id": [20, 21, 22]}
    if "seed" in search:
        each |= {"temperature": [0.5, 2.0, 1.0], "top_k": [0, 3, 20], "top_p": [1.0, 0.9, 0.5]}
        each["seed"] = search["seed"]
    options: dict[str, Any] = {"return_dict_in_generate": True, "pad_token_id": FILL} | search
    options["eos_token_id"] = None
    found = model.generate(**inputs, **(options | each))
    assert found.lengths.tolist() == [3, 11, 7]
    width = found.sequences.shape[1] - int(found.lengths.max())
    for row in range(3):
        mine = {key: value[row : row + 1] for key, value in inputs.items()}
        # a seed for each row names a row's draws, a single one the first row's
        own = {key: value[row] for key, value in each.items()}
        alone = model.generate(**mine, **(options | own))
        length = int(found.lengths[row])
        assert int(alone.lengths[0]) == length
        tokens = found.sequences[row].tolist()
        assert tokens[: width + length] == alone.sequences[0, : width + length].tolist()
        assert set(tokens[width + length :]) <= {FILL, -1}


def test_prompts_of_different_lengths(device: str) -> None:
    """The same as each row in a call of its own."""
    prompts = [[59, 8, 9], [59], [59, 7], [59, 10, 11]]
    ids = torch.arange(12, 28).view(4, 4)
    model = ours("marian", device)
    for search in ({}, {"num_beams": 3, "num_return_sequences": 2}):
        options = search | {"max_length": 9, "return_dict_in_generate": True, "output_scores": True}
        found = model.generate(ids, decoder_input_ids=prompts, **options)
        copies = len(found.sequences) // 4
        for row, prompt in enumerate(prompts):
            alone = model.generate(ids[row : row + 1], decoder_input_ids=[prompt], **options)
            place = slice(row * copies, (row + 1) * copies)
            assert torch.equal(found.lengths[place], alone.lengths)
            width = alone.sequences.shape[1]
            assert torch.equal(found.sequences[place, :width], alone.sequences)
            if search:
                assert same(found.sequences_scores[place], alone.sequences_scores, device)
    without_start = [row[1:] or [8] for row in prompts]
    found = model.generate(ids, decoder_input_ids=without_start, max_new_tokens=3)
    assert found[:, 0].tolist() == [59] * 4, "none has the start token, so it is given to all"


def test_guided_calls_are_split_by_limits() -> None:
    ids = torch.tensor([[12, 13, 14], [15, 16, 17]])
    options: dict[str, Any] = {"guidance_scale": 1.5, "max_new_tokens": 6}
    sizes = {"beams": 1, "prompt": 3, "target": 6, "controls": 64}
    small, one = (
        decoding.load(reference("gpt2"), "cpu", limits=decoding.Limits(batch=batch, **sizes))
        for batch in (3, 1)
    )
    expected = ours("gpt2").generate(ids, **options)
    assert torch.equal(small.generate(ids, **options), expected)
    with pytest.raises(ValueError, match="two prompts for each sentence"):
        one.generate(ids[:1], **options)
