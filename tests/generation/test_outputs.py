"""Results: shapes, fills, order, scores."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
import transformers.generation.utils as theirs

import decoding
from decoding.engine.request import EngineResults
from decoding.generation import outputs, results
from decoding.generation.resolve import resolve
from decoding.generation.results import SubBatchResult
from tests.support.random_models import load, ours, reference


@pytest.mark.parametrize(
    "options, plain, beams",
    [
        ({"pad_token_id": 7, "eos_token_id": 3}, 7, 7),
        ({"pad_token_id": 0, "eos_token_id": 3}, 0, 3),
        ({"eos_token_id": [3, 5]}, 3, 3),
        ({"pad_token_id": 7}, 7, -1),
        ({}, 0, -1),
        ({"eos_token_id": -1}, -1, -1),
    ],
)
def test_what_stands_behind_a_row(options: dict[str, Any], plain: int, beams: int) -> None:
    config = resolve(options, None, {})
    assert outputs.fill_value(config, beams=False) == plain
    assert outputs.fill_value(config, beams=True) == beams
    groups = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0}
    assert outputs.fill_value(resolve(options | groups, None, {}), beams=True) == plain


def found(tokens: list[list[list[int]]]) -> EngineResults:
    """Results with these tokens; scores 10 * sentence + row, and row b * K + k for each token."""
    batch, beams = len(tokens), len(tokens[0])
    longest = max(len(row) for rows in tokens for row in rows)
    results = EngineResults.empty(batch, beams, longest, fill=9)
    for b, rows in enumerate(tokens):
        for k, row in enumerate(rows):
            results.tokens[b, k, : len(row)] = row
            results.parent_rows[b, k, : len(row)] = b * beams + k
            results.lengths[b, k] = len(row)
            results.scores[b, k] = 10 * tokens[b][0][0] + k
    return results


def test_parts_are_put_back_in_order() -> None:
    first = SubBatchResult(
        np.array([2, 0]), np.array([[1, 4], [1, 2]]), found([[[5, 6], [5]], [[3], [3]]])
    )
    second = SubBatchResult(np.array([1]), np.array([[1, 3]]), found([[[4, 4, 4], [4, 7, 7, 7]]]))
    both = [first, second]
    assert results.lengths(both, 1).tolist() == [1, 3, 2]  # the second row, of 4, is not wanted
    assert results.sequences_scores(both, 1).tolist() == [30, 40, 50]
    sequences = results.sequences(both, 1)
    assert sequences.tolist() == [[1, 2, 3, 9, 9], [1, 3, 4, 4, 4], [1, 4, 5, 6, 9]]
    assert sequences.dtype == np.int64
    rows = results.beam_indices(both, 1, 2, 3)
    assert rows.tolist() == [[0, -1, -1], [2, 2, 2], [4, 4, -1]] and rows.dtype == np.int32
    assert results.beam_indices(both, 2, 2, 4)[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert results.sequences(both, 2).shape == (6, 6)
    alone = SubBatchResult(np.array([0]), second.prompt, second.results)
    assert results.sequences([alone], 2).tolist() == [[1, 3, 4, 4, 4, 9], [1, 3, 4, 7, 7, 7]]


def test_prompts_of_several_lengths() -> None:
    several = [
        SubBatchResult(np.array([1]), np.array([[1, 2, 3]]), found([[[5, 6], [5]]])),
        SubBatchResult(np.array([0]), np.array([[1]]), found([[[3], [3, 4, 4]]])),
    ]
    assert results.sequences(several, 1).tolist() == [[1, 3, 9, 9, 9], [1, 2, 3, 5, 6]]
    assert results.lengths(several, 2).tolist() == [1, 3, 2, 1]


@pytest.mark.parametrize("name", ["marian", "gpt2"])
@pytest.mark.parametrize("beams", [1, 3])
def test_types_and_fields_are_those_of_transformers(name: str, beams: int, device: str) -> None:
    ids = torch.tensor([[12, 13, 14]])
    options = {"max_new_tokens": 4, "num_beams": beams, "eos_token_id": None}
    plain = ours(name, device).generate(ids, **options)
    assert isinstance(plain, torch.Tensor) and plain.dtype == torch.int64
    output = ours(name, device).generate(ids, **options, return_dict_in_generate=True)
    kind = "EncoderDecoder" if name == "marian" else "DecoderOnly"
    assert type(output).__name__ == f"Generate{'Beam' * (beams > 1)}{kind}Output"
    known = {field.name for field in fields(getattr(theirs, type(output).__name__))}
    ours_alone = {"lengths", "token_logprobs"}
    if name == "marian":
        ours_alone.add("hypothesis_attentions")
    assert {field.name for field in fields(output)} - known == ours_alone
    assert torch.equal(output.sequences, plain) and output.scores is None
    if beams > 1:
        assert output.sequences_scores is None and output.beam_indices.shape == (1, 4)
        options |= {"return_dict_in_generate": True}
        cheap = ours(name, device).generate(ids, **options, output_sequences_scores=True)
        full = ours(name, device).generate(ids, **options, output_scores=True)
        torch.testing.assert_close(cheap.sequences_scores, full.sequences_scores)
        assert cheap.scores is None and len(full.scores) == 4


@pytest.mark.parametrize("name", ["marian", "gpt2"])
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "num_return_sequences": 2}])
def test_scores_of_every_step(
    name: str, options: dict[str, Any], renormalize: bool, device: str
) -> None:
    """Steps' scores are the reference's, in sub-batches too, and add up to sequences_scores."""
    torch.manual_seed(0)
    ids = torch.randint(12, 40, (5, 4))
    options = options | {
        "max_new_tokens": 9,
        "bad_words_ids": [[13], [21]],
        "renormalize_logits": renormalize,
        "min_new_tokens": 2,
        "forced_eos_token_id": 17,
        "attention_mask": torch.ones_like(ids),
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    expected = reference(name).generate(ids, **options)
    got = ours(name, device).generate(ids, **options)
    assert len(got.scores) == len(expected.scores)
    indices = getattr(got, "beam_indices", None)
    transitions = [
        reference(name).compute_transition_scores(x.sequences, x.scores, indices)
        for x in (got, expected)
    ]
    width = got.sequences.shape[1] - transitions[0].shape[1]
    eos = reference(name).generation_config.eos_token_id
    ended = (got.sequences[:, width:] == eos).cumsum(1).cumsum(1) > 1
    difference = torch.where(ended, 0, transitions[0] - transitions[1])
    assert bool((difference.nan_to_num(0).abs() < 1e-4).all())
    if indices is not None:
        sums = torch.where(indices >= 0, transitions[0], 0).sum(1)
        mean = sums / (indices >= 0).sum(1)
        torch.testing.assert_close(mean, got.sequences_scores, atol=1e-4, rtol=1e-4)


def test_warped_scores_when_sampling(device: str) -> None:
    ids = torch.tensor([[12, 13, 14], [15, 16, 17]])
    options = {
        "max_new_tokens": 1,
        "do_sample": True,
        "temperature": 0.7,
        "top_k": 9,
        "top_p": 0.8,
        "return_dict_in_generate": True,
        "output_scores": True,
        "attention_mask": torch.ones_like(ids),
    }
    expected = reference("gpt2").generate(ids, **options).scores[0]
    got = ours("gpt2", device).generate(ids, **options)
    assert torch.equal(got.scores[0].isinf(), expected.isinf())
    torch.testing.assert_close(got.scores[0], expected, atol=1e-4, rtol=1e-4)


def test_scores_of_sequences_alone(device: str) -> None:
    ids = torch.tensor([[12, 13, 14], [15, 16, 17]])
    options = {"max_new_tokens": 9, "num_beams": 3, "return_dict_in_generate": True}
    every = ours("gpt2", device).generate(ids, output_scores=True, **options)
    alone = ours("gpt2", device).generate(ids, output_sequences_scores=True, **options)
    assert alone.scores is None and alone["sequences"] is alone.sequences
    with pytest.raises(KeyError, match="scores"):
        alone["scores"]
    torch.testing.assert_close(alone.sequences_scores, every.sequences_scores)
    assert ours("gpt2", device).generate(ids, **options).sequences_scores is None


@pytest.mark.parametrize("name", ["marian", "gpt2"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "num_return_sequences": 2}])
@pytest.mark.parametrize("normalize", [False, True])
def test_transition_scores_are_those_of_transformers(
    name: str, options: dict[str, Any], normalize: bool, device: str
) -> None:
    """Its method and ours give the same of its outputs and of ours."""
    ids = torch.tensor([[12, 13, 14], [15, 16, 17]])
    more: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True}
    more |= {"max_new_tokens": 9} | {"attention_mask": torch.ones_like(ids)}
    theirs, mine = reference(name), ours(name, device)
    for found in (theirs.generate(ids, **options, **more), mine.generate(ids, **options, **more)):
        output = (found.sequences, found.scores, getattr(found, "beam_indices", None))
        expected = theirs.compute_transition_scores(*output, normalize_logits=normalize)
        got = mine.compute_transition_scores(*output, normalize_logits=normalize)
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", ["marian", "gpt2"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "num_return_sequences": 2}])
@pytest.mark.parametrize("kept", ["scores", "logits"])
def test_token_logprobs(name: str, options: dict[str, Any], kept: str, device: str) -> None:
    ids = torch.tensor([[12, 13, 14], [15, 16, 17], [18, 12, 13]])
    more = {"return_dict_in_generate": True, f"output_{kept}": True, "repetition_penalty": 1.4}
    found = ours(name, device).generate(ids, max_new_tokens=9, **options, **more)
    plain = ours(name, device).generate(ids, max_new_tokens=9, **options, repetition_penalty=1.4)
    assert torch.equal(found.sequences, plain)
    longest = int(found.lengths.max())
    assert found.token_logprobs.shape == (len(plain), longest)
    for row, length in enumerate(found.lengths.tolist()):
        for step in range(longest):
            if step >= length:
                assert found.token_logprobs[row, step] == 0
                continue
            at = int(found.beam_indices[row, step]) if "num_beams" in options else row
            known = getattr(found, kept)[step][at]
            if not (kept == "scores" and "num_beams" in options):
                known = known.log_softmax(-1)
            token = found.sequences[row, plain.shape[1] - longest + step]
            torch.testing.assert_close(found.token_logprobs[row, step], known[token])


def test_logits_are_the_models_own(device: str) -> None:
    ids = torch.tensor([[12, 13, 14], [15, 16, 17]])
    options = {"return_dict_in_generate": True, "output_logits": True, "suppress_tokens": [20, 21]}
    options |= {"max_new_tokens": 5, "eos_token_id": None}
    expected = reference("gpt2").generate(ids, **options)
    split = decoding.Limits(batch=1, beams=1, prompt=3, target=5, controls=16)
    for limits in (None, split):
        found = load("gpt2", device, limits=limits).generate(ids, **options)
        assert len(found.logits) == 5 and found.scores is None
        for got, wanted in zip(found.logits, expected.logits, strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_steps_of_contrastive_search_are_those_of_its_rows(name: str, device: str) -> None:
    """Not of its candidates: the scores of a step are what the model says behind the row so far."""
    ids = torch.tensor([[12, 13, 14, 15], [16, 17, 18, 19]])
    options: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True}
    options |= {
        "output_logits": True,
        "penalty_alpha": 0.6,
        "top_k": 4,
        "max_new_tokens": 6,
        "eos_token_id": None,
    }
    found = ours(name, device).generate(ids, **options)
    assert len(found.scores) == len(found.logits) == 6
    start = found.sequences.shape[1] - 6
    for step, scores in enumerate(found.scores):
        rows = found.sequences[:, : start + step]
        inputs = {"input_ids": ids, "decoder_input_ids": rows} if name == "marian" else {}
        with torch.no_grad():
            expected = reference(name)(**(inputs or {"input_ids": rows})).logits[:, -1]
        torch.testing.assert_close(found.logits[step], expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-4)
    got = ours(name, device).compute_transition_scores(
        found.sequences, found.scores, normalize_logits=True
    )
    torch.testing.assert_close(got, found.token_logprobs)
