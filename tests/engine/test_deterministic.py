"""deterministic=True: a sentence's tokens and scores are the same bits alone and among others."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import decoding
from tests.support.families import encoder
from tests.support.random_models import load, ours, reference

DTYPES = ["float32", "float16", "bfloat16", "int8"]
SHORT = ["marian-large", "gpt2-large"]
MOST = 90  # sentences
PARTS = [(0, 1), (1, 2), (33, 34), (89, 90), (0, 7), (30, 66)]
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 2},
    "samples": {"do_sample": True, "seed": list(range(MOST)), "top_k": 0},
}


@cache
def deterministic(name: str, dtype: str, device: str = "cuda") -> decoding.Model:
    source = long_model() if name == "long" else reference(name)
    model = decoding.load(source, device, dtype, deterministic=True)
    assert model.deterministic
    return model


def long_model() -> GPT2LMHeadModel:
    """With histories that several blocks of a GPU share."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 320, "n_embd": 128, "n_layer": 2, "n_head": 2, "n_positions": 1024}
    return GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.2, eos_token_id=1)).eval()


def sentences(name: str) -> list[list[int]]:
    """Of all lengths."""
    longest, vocab = {"long": (900, 320), "gpt2": (20, 60)}.get(name, (60, 3000))
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, longest + 1, (MOST,), generator=generator).tolist()
    return [torch.randint(12, vocab - 1, (n,), generator=generator).tolist() for n in lengths]


def outcome(
    model: decoding.Model, given: list[list[int]], **options: Any
) -> list[tuple[list[int], Any]]:
    """The new tokens of each row, and what scores of it there are."""
    found = model.generate(given, max_new_tokens=24, return_dict_in_generate=True, **options)
    first = found.sequences.shape[1] - int(found.lengths.max())
    rows = []
    for i, length in enumerate(found.lengths.tolist()):
        logprobs = None if found.token_logprobs is None else found.token_logprobs[i, :length]
        score = getattr(found, "sequences_scores", None)
        scores = [] if logprobs is None else logprobs.tolist()
        scores += [] if score is None else [float(score[i])]
        rows.append((found.sequences[i, first : first + length].tolist(), scores))
    return rows


def check(name: str, dtype: str, device: str, **options: Any) -> None:
    """Sentences alone, among few and among many."""
    model, given = deterministic(name, dtype, device), sentences(name)
    together = outcome(model, given, **options)
    returned = len(together) // MOST
    for first, end in PARTS:
        if "seed" in options:
            options = options | {"seed": list(range(first, end))}
        expected = together[first * returned : end * returned]
        assert outcome(model, given[first:end], **options) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*SHORT, "long"])
def test_a_sentence_does_not_depend_on_its_batch(name: str, dtype: str, search: str) -> None:
    check(name, dtype, "cuda", **SEARCHES[search], output_sequences_scores=True)


@pytest.mark.gpu
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHORT)
def test_scores_do_not_depend_on_the_batch(name: str, dtype: str, search: str) -> None:
    check(name, dtype, "cuda", **SEARCHES[search], output_scores=True, output_logits=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_states_of_an_encoder_do_not_depend_on_the_batch(dtype: str) -> None:
    model = decoding.load(encoder("bert"), "cuda", dtype, deterministic=True)
    given = [row[:12] for row in sentences("gpt2")]
    together = model.encode(given).last_hidden_state
    for first, end in PARTS:
        alone = model.encode(given[first:end]).last_hidden_state
        assert torch.equal(alone, together[first:end, : alone.shape[1]])


@pytest.mark.parametrize("search", SEARCHES)
def test_so_it_is_on_a_cpu(search: str) -> None:
    check("gpt2", "float32", "cpu", **SEARCHES[search], output_sequences_scores=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_given_tokens_have_the_same_scores(dtype: str) -> None:
    model, given = deterministic("marian-large", dtype), sentences("marian-large")
    labels = [row[:9] for row in given]
    together = model.score(given, labels).token_logprobs
    for first, end in PARTS:
        alone = model.score(given[first:end], labels[first:end]).token_logprobs
        assert torch.equal(alone, together[first:end, : alone.shape[1]])


def test_it_is_given_to_load() -> None:
    model = load("gpt2", threads=1, deterministic=True)
    assert model.deterministic and not ours("gpt2").deterministic
    found, expected = (m.generate([[5, 6]], max_new_tokens=9) for m in (model, ours("gpt2")))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("wrong", [1, 0, "yes", None])
def test_what_is_no_bool_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="deterministic must be True or False"):
        load("gpt2", threads=1, deterministic=wrong)
