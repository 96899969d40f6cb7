"""Model.score() against the log-probabilities that transformers' logits give."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import decoding
from decoding.models.weights.dtypes import as_tensor
from tests.conftest import assert_same_bits
from tests.support import random_models

IGNORED = -100
FAMILIES = ["marian", "marian-two-tables", "gpt2", "gpt2-wide"]
LENGTHS = [3, 1, 9, 17, 2, 30, 5]


def ragged(lengths: list[int], vocab: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (n,), generator=generator).tolist() for n in lengths]


def padded(rows: list[list[int]], fill: int, left: bool = False) -> tuple[Tensor, Tensor]:
    """The rows as a table, and their mask."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), fill)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, place], mask[i, place] = torch.tensor(row), 1
    return ids, mask


@torch.no_grad()
def forced(model: Any, ids: Tensor, mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The logits [B, T, V] that stand for each label, and the labels, -100 where they do not count.
    model: of transformers, or a name."""
    model = random_models.reference(model) if isinstance(model, str) else model
    if model.config.is_encoder_decoder:
        read = labels.where(labels >= 0, IGNORED)
        return model(input_ids=ids, attention_mask=mask, labels=read).logits, labels
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    first = mask.argmax(1)
    counts = (mask == 1) & (torch.arange(ids.shape[1], device=ids.device) > first[:, None])
    return logits.roll(1, 1), labels.where(counts, IGNORED)


def reference(model: Any, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    """float32 [B, T], 0 where a label does not count. model: of transformers, or a name."""
    logits, labels = forced(model, ids, mask, labels)
    found = logits.float().log_softmax(-1).gather(2, labels.clamp(min=0)[..., None])[..., 0]
    return found.where(labels != IGNORED, 0.0)


def vocabs(name: str) -> tuple[int, int]:
    """Of what goes in and of the labels."""
    config = random_models.reference(name).config
    return config.vocab_size, getattr(config, "decoder_vocab_size", None) or config.vocab_size


def case(name: str, left: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask and labels of a ragged batch."""
    source, target = vocabs(name)
    ids, mask = padded(ragged(LENGTHS, source, 1), 0, left)
    if name.startswith("gpt2"):
        return ids, mask, ids
    labels, _ = padded(ragged([4, 20, 1, 2, 33, 7, 11], target, 2), IGNORED)
    return ids, mask, labels


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("left", [False, True])
def test_equals_transformers(name: str, left: bool, device: str) -> None:
    ids, mask, labels = case(name, left)
    found = random_models.ours(name, device).score(ids, labels, attention_mask=mask)
    expected = reference(name, ids, mask, labels)
    assert found.token_logprobs.dtype == torch.float32 and found.mask.dtype == torch.bool
    torch.testing.assert_close(found.token_logprobs, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.mask, expected != 0)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("left", [False, True])
def test_ranks_and_most_likely_tokens(name: str, left: bool, device: str) -> None:
    """Of labels that are the most likely tokens in part."""
    ids, mask, labels = case(name, left)
    likely = forced(name, ids, mask, labels)[0].argmax(-1)
    chosen = (torch.arange(labels.numel()).view_as(labels) % 3 == 0) & (labels != IGNORED)
    labels = labels.where(~chosen, likely)
    found = random_models.ours(name, device).score(ids, labels, attention_mask=mask)
    logits, labels = forced(name, ids, mask, labels)
    own = logits.gather(2, labels.clamp(min=0)[..., None])
    counts = labels != IGNORED
    assert found.rank.dtype == found.argmax.dtype == torch.int64
    assert torch.equal(found.rank, (logits >= own).sum(-1).where(counts, 0))
    assert torch.equal(found.argmax, logits.argmax(-1).where(counts, IGNORED))
    first = (found.rank == 1).sum()
    assert 0 < first < counts.sum()
    assert first == ((found.argmax == labels) & counts).sum()


@pytest.mark.parametrize("name", ["marian-large", "gpt2-large"])
def test_more_tokens_than_logits_at_once(name: str, device: str) -> None:
    source, target = vocabs(name)
    ids, mask = padded(ragged([40, 64, 7, 90, 31, 80], source, 1), 0)
    labels = ids if name.startswith("gpt2") else torch.tensor(ragged([90] * 6, target, 2))
    found = random_models.ours(name, device).score(ids, labels, mask)
    expected = reference(name, ids, mask, labels)
    assert int(found.lengths.sum()) > 256
    torch.testing.assert_close(found.token_logprobs, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["marian-large", "gpt2-large"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    """No further from float32 than twice transformers in that type, and a rounding step."""
    source, target = vocabs(name)
    ids, mask = padded(ragged([40, 64, 7, 90, 31, 80], source, 1), 0)
    labels = ids if name.startswith("gpt2") else torch.tensor(ragged([50] * 6, target, 2))
    exact = reference(name, ids, mask, labels)
    half = copy.deepcopy(random_models.reference(name)).to("cuda", dtype)
    theirs = reference(half, ids.cuda(), mask.cuda(), labels.cuda()).cpu()
    model = random_models.load(name, "cuda", dtype=str(dtype).removeprefix("torch."))
    ours = model.score(ids, labels, mask).token_logprobs
    rounding = torch.finfo(dtype).eps * exact.abs().max()
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max() + rounding


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_ignored_labels(name: str) -> None:
    ids, mask, labels = case(name)
    labels = labels.clone()
    labels[::2, 1::3] = IGNORED
    labels[3] = IGNORED
    found = random_models.ours(name).score(ids, labels, mask)
    expected = reference(name, ids, mask, labels)
    torch.testing.assert_close(found.token_logprobs, expected, rtol=1e-4, atol=1e-4)
    assert (found.token_logprobs[labels == IGNORED] == 0).all()
    assert found.lengths[3] == 0 and found.sums[3] == 0 and found.means[3] == 0


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_nothing_counts(name: str) -> None:
    found = random_models.ours(name).score([[5, 6]], [[IGNORED, IGNORED]])
    assert (found.token_logprobs == 0).all() and not found.mask.any() and found.perplexity == 1


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_a_row_does_not_depend_on_its_batch(name: str) -> None:
    """To the bit, on the CPU."""
    ids, mask, labels = case(name)
    model = random_models.ours(name)
    together = model.score(ids, labels, mask).token_logprobs
    for b in range(len(ids)):
        alone = model.score(ids[b : b + 1], labels[b : b + 1], mask[b : b + 1])
        assert_same_bits(alone.token_logprobs, together[b : b + 1])


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_many_rows_are_split(name: str) -> None:
    ids, mask, labels = case(name)
    times = 40
    found = random_models.ours(name).score(*(x.repeat(times, 1) for x in (ids, labels, mask)))
    once = random_models.ours(name).score(ids, labels, mask)
    assert_same_bits(found.token_logprobs, once.token_logprobs.repeat(times, 1))


def test_lists_of_any_lengths() -> None:
    model = random_models.ours("gpt2")
    rows = ragged(LENGTHS, 60, 1)
    ids, mask = padded(rows, 0)
    expected = model.score(ids, attention_mask=mask)
    found = model.score(rows)
    assert_same_bits(found.token_logprobs, expected.token_logprobs)
    assert found.lengths.tolist() == [n - 1 for n in LENGTHS]


def test_sums_are_those_of_beam_search(device: str) -> None:
    """A hypothesis scored is as probable as the search that found it said."""
    model = random_models.ours("marian", device)
    ids = ragged([5, 9, 3], 60, 4)
    options: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 12, "length_penalty": 0.0}
    options |= {"return_dict_in_generate": True, "output_sequences_scores": True}
    out = model.generate(ids, **options)
    labels = []
    for row in out.sequences[:, 1:].tolist():
        labels.append(row[: row.index(3) + 1] if 3 in row else row)
    found = model.score(ids, labels)
    torch.testing.assert_close(found.sums, out.sequences_scores, rtol=1e-4, atol=1e-4)


def test_summaries() -> None:
    found = random_models.ours("gpt2").score([[1, 2, 3, 4], [5, 6]])
    logprobs = found.token_logprobs
    assert found.lengths.tolist() == [3, 1]
    torch.testing.assert_close(found.sums, torch.stack([logprobs[0, 1:].sum(), logprobs[1, 1]]))
    torch.testing.assert_close(found.means, found.sums / torch.tensor([3.0, 1.0]))
    assert found.perplexity == pytest.approx(math.exp(-logprobs.double().sum() / 4))


def test_generation_goes_on_behind_a_score() -> None:
    model = random_models.load("marian", threads=2)
    ids = ragged([5, 9, 3], 60, 4)
    options: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 12}
    before = model.generate(ids, **options)
    model.score(ids, ids)
    assert torch.equal(model.generate(ids, **options), before)


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_nothing_reads_memory_that_was_not_written(name: str, device: str) -> None:
    ids, mask, labels = case(name)
    sizes = {"batch": 9, "beams": 1, "source": 32, "prompt": 3, "target": 4, "labels": 36}
    if name == "gpt2":
        del sizes["source"]
    model = random_models.load(name, device, limits=decoding.Limits(**sizes))
    before = model.score(ids, labels, mask)
    as_tensor(model._session._pool).fill_(255)  # NaN
    after = model.score(ids, labels, mask)
    assert_same_bits(after.token_logprobs, before.token_logprobs)


def test_explicit_limits_need_labels() -> None:
    ids = [[4, 5, 6]]
    sizes = {"batch": 2, "beams": 1, "source": 8, "target": 8}
    model = random_models.load("marian", limits=decoding.Limits(**sizes))
    with pytest.raises(ValueError, match=r"needs labels=3, .* Limits\(labels=3, ...\)"):
        model.score(ids, ids)
    limits = decoding.Limits(**sizes, labels=3)
    model = random_models.load("marian", limits=limits)
    expected = random_models.ours("marian").score(ids * 5, ids * 5)
    found = model.score(ids * 5, ids * 5)  # split to the batch
    assert_same_bits(found.token_logprobs, expected.token_logprobs)
    assert model.memory_plan().limits == limits


@pytest.mark.parametrize(
    ("name", "ids", "labels", "message"),
    [
        ("marian", [[4, 5]], None, "an encoder-decoder needs labels"),
        ("marian", [[4, 5]], [[4], [5]], "labels must have 1 rows, as input_ids; got 2"),
        ("marian", [[4, 5]], [[60]], "labels holds 60, the model's ids are 0 to 59"),
        ("marian", [[4, 5]], [[-1]], "labels holds -1, the model's ids are 0 to 59"),
        ("marian", [[4, 60]], [[4]], "input_ids holds 60"),
        ("marian", [[4] * 49], [[4]], "input_ids has a row that needs 49 positions"),
        ("marian", [[4]], [[4] * 49], "labels has a row that needs 49 positions, the model has 48"),
        ("gpt2", [[4] * 50], None, "input_ids has a row that needs 49 positions"),
        ("gpt2", [[4, 5]], [[4]], r"labels must have the shape of input_ids, \[1, 2\]"),
        ("gpt2", [[4, 5]], [[4, 7000]], "labels holds 7000"),
        ("gpt2", [[4, 0.5]], None, "input_ids must be integers"),
    ],
)
def test_mistakes(name: str, ids: Any, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_models.ours(name).score(ids, labels)


def test_a_broken_model_is_an_error() -> None:
    broken = copy.deepcopy(random_models.reference("gpt2"))
    with torch.no_grad():
        broken.lm_head.weight *= 1e38
    model = decoding.load(broken, device="cpu", dtype="float32")
    with pytest.raises(decoding.Error, match="not finite .* for item 0"):
        model.score([[4, 5, 6]])
