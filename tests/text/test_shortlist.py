"""Shortlists: what they list, their files, and the search within a list."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import decoding
from decoding import Limits, Shortlist
from decoding.generation.config import GenerationConfig
from decoding.generation.special_tokens import shortlist_ids
from decoding.text.ibm_model1 import learn
from tests.support.comparison import assert_close_scores
from tests.support.demo import DEMO
from tests.support.random_models import load, ours, reference

SMALL = Shortlist(
    np.array([[4, 2, -1], [7, -1, -1], [-1, -1, -1]], np.int32), np.array([5], np.int32), 8
)


def test_the_list_of_some_sentences() -> None:
    assert SMALL.ids_for(np.array([0])).tolist() == [2, 4, 5]
    assert SMALL.ids_for(np.array([[1, 0], [0, 2]])).tolist() == [2, 4, 5, 7]
    assert SMALL.ids_for(np.array([2]), needed={0, 6}).tolist() == [0, 5, 6]
    assert SMALL.ids_for(np.array([2])).dtype == np.int32


def test_files(tmp_path: Path) -> None:
    SMALL.save(tmp_path / "map")  # the name is not changed
    found = Shortlist.load(tmp_path / "map")
    assert found.target_ids == 8
    for name in ("candidates", "frequent"):
        assert np.array_equal(getattr(found, name), getattr(SMALL, name))
        assert getattr(found, name).dtype == np.int32


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "map.npz"
    with pytest.raises(FileNotFoundError, match="map.npz"):
        Shortlist.load(path)
    SMALL.save(path)
    whole = path.read_bytes()
    middle = len(whole) // 3
    damaged = [b"", b"0 1 2\n", whole[:-9], whole[: len(whole) // 2]]
    damaged.append(whole[:middle] + bytes(9) + whole[middle + 9 :])
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"map.npz is no shortlist.*`decoding shortlist`"):
            Shortlist.load(path)
    np.savez(path, candidates=SMALL.candidates, frequent=SMALL.frequent)
    with pytest.raises(ValueError, match="target_ids"):
        Shortlist.load(path)
    np.savez(path, **(vars(SMALL) | {"target_ids": 7}))
    with pytest.raises(ValueError, match="candidates must hold -1 to 6, got -1 to 7"):
        Shortlist.load(path)
    with path.open("wb") as file:
        np.save(file, SMALL.candidates)
    with pytest.raises(ValueError, match="no shortlist"):
        Shortlist.load(path)


@pytest.mark.parametrize(
    ("candidates", "frequent", "says"),
    [
        (SMALL.candidates.astype(np.int64), SMALL.frequent, "candidates must be int32 of 2 axes"),
        (SMALL.candidates[0], SMALL.frequent, "candidates must be int32 of 2 axes"),
        (SMALL.candidates, SMALL.frequent - 6, "frequent must hold 0 to 7, got -1 to -1"),
    ],
)
def test_arrays_that_are_no_map(candidates: Any, frequent: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Shortlist(candidates, frequent, 8)


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"eos_token_id": (3, 99, -1)}, {3}),  # the first stands in for a pad
        ({"pad_token_id": 4, "eos_token_id": (2,)}, {2, 4}),
        ({"bos_token_id": 1, "decoder_start_token_id": (5, 6)}, {1, 5, 6}),
        ({"forced_bos_token_id": 7, "forced_eos_token_id": (8, 9)}, {7, 8, 9}),
        ({"forced_bos_token_id": (7, None, 2)}, {2, 7}),
        ({"sequence_bias": (((3, 4), 1.0), ((5,), -1.0))}, {3, 4, 5}),
        ({"force_words_ids": (((3,), (4, 5)), ((6,),))}, {3, 4, 5, 6}),
    ],
)
def test_what_an_option_needs_is_in_every_list(options: dict[str, Any], ids: set[int]) -> None:
    settings: dict[str, Any] = {"sequence_bias": (), "force_words_ids": (), "eos_token_id": ()}
    settings |= {"decoder_start_token_id": (), "forced_eos_token_id": ()}
    assert shortlist_ids(GenerationConfig(**(settings | options)), 10) == ids


@pytest.mark.parametrize("given", [3, [1, 2], np.zeros(3)])
def test_what_is_no_map(given: Any) -> None:
    with pytest.raises(TypeError, match="must be a Shortlist or a file of one, got"):
        ours("marian").generate([[4, 5]], shortlist=given)


def test_models_that_can_have_no_map() -> None:
    with pytest.raises(ValueError, match="a decoder alone"):
        ours("gpt2").generate([[4, 5]], shortlist=SMALL)
    with pytest.raises(ValueError, match="3 source and 8 target ids, the model has 60 and 60"):
        ours("marian").generate([[4, 5]], shortlist=SMALL)


@pytest.mark.gpu
def test_a_gpu_has_no_map() -> None:
    with pytest.raises(ValueError, match="shortlist is for the CPU, this model is on cuda"):
        ours("marian", "cuda").generate([[4, 5]], shortlist=drawn("marian"))


NEEDED = [8, 9, 10, 11]  # by options below


@cache
def drawn(name: str) -> Shortlist:
    """Three tokens for each, at random, none of them what greedy search would take."""
    random = np.random.default_rng(3)
    config = reference(name).config
    greedy = ours(name).generate(sources(name, 6)).unique().tolist()
    assert len(greedy) > 3, "more than special tokens"
    others = np.setdiff1d(np.arange(config.vocab_size, dtype=np.int32), greedy)
    candidates = random.choice(others, (config.vocab_size, 3))
    return Shortlist(candidates, np.array(NEEDED, np.int32), config.vocab_size)


def sources(name: str, batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, reference(name).config.vocab_size, (batch, 6), generator=generator)


def list_of(name: str, ids: Tensor) -> list[int]:
    """What generate() lets these sentences have."""
    config = reference(name).generation_config
    special = {config.eos_token_id, config.pad_token_id, config.decoder_start_token_id}
    listed = drawn(name).ids_for(ids.numpy(), special)
    assert len(listed) < 0.8 * drawn(name).target_ids
    return listed.tolist()


def without_others(name: str, listed: list[int], bias: float = -torch.inf) -> Any:
    """The transformers model with -inf, or about `bias`, for the logits of all other tokens."""
    model = copy.deepcopy(reference(name))
    others = torch.ones(model.final_logits_bias.shape[1], dtype=torch.bool)
    others[listed] = False
    model.final_logits_bias[:, others] = bias
    return model


SEARCHES: list[dict[str, Any]] = [
    {},
    {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.7},
    {"num_beams": 3, "early_stopping": True, "min_new_tokens": 3},
    {"num_beams": 2, "forced_bos_token_id": 8, "forced_eos_token_id": 3},
    {"num_beams": 3, "renormalize_logits": True, "bad_words_ids": [[9], [10, 11]]},
    {"num_beams": 3, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    {"sequence_bias": {(9,): 2.0, (10, 11): 3.0}, "suppress_tokens": [8, 7]},
    {"num_beams": 2, "encoder_repetition_penalty": 1.5, "begin_suppress_tokens": [8, 6]},
]
OUTPUT: dict[str, Any] = {
    "max_new_tokens": 12,
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
}


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: "-".join(search) or "greedy")
@pytest.mark.parametrize("name", ["marian", "marian-unscaled", "marian-large"])
def test_within_the_list_the_search_is_transformers(name: str, search: dict[str, Any]) -> None:
    ids = sources(name, 4)
    listed = list_of(name, ids)
    expected = without_others(name, listed).generate(ids, **OUTPUT, **search)
    for threads in (1, 2):
        model = load(name, threads=threads)
        found = model.generate(ids, shortlist=drawn(name), **OUTPUT, **search)
        assert torch.equal(found.sequences, expected.sequences)
        if "num_beams" in search:
            assert_close_scores(found.sequences_scores, expected.sequences_scores)
    assert set(found.sequences.unique().tolist()) <= set(listed)


@pytest.mark.parametrize("name", ["marian", "marian-large"])
def test_scores_and_logits_of_all_others(name: str) -> None:
    ids = sources(name, 4)
    listed = list_of(name, ids)
    options = OUTPUT | {"max_new_tokens": 4, "min_new_tokens": 4}  # no row ends before others
    found = ours(name).generate(ids, shortlist=drawn(name), **options)
    expected = without_others(name, listed).generate(ids, **options)
    for kind in ("scores", "logits"):
        for a, b in zip(getattr(found, kind), getattr(expected, kind), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert (found.logits[0] > -torch.inf).sum(1).tolist() == [len(listed)] * 4


@pytest.mark.parametrize(
    "search",
    [
        {"do_sample": True, "seed": 5, "num_return_sequences": 3, "temperature": 1.5},
        {"do_sample": True, "seed": 5, "top_k": 0, "top_p": 0.9, "typical_p": 0.8},
        {"do_sample": True, "seed": 5, "num_beams": 3},
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
        {"num_beams": 3, "force_words_ids": [[9], [[10, 11], [8]]]},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"num_beams": 3, "diversity_rate": 0.3, "patience": 2.0, "early_stopping": True},
        {"num_beams": 3, "logits_processor": [lambda ids, scores: scores * 0.5]},
    ],
    ids="-".join,
)
def test_every_other_search_is_that_of_a_model_without_others(search: dict[str, Any]) -> None:
    """Of our own, since transformers draws otherwise or has no such search."""
    ids = sources("marian", 5)
    others = without_others("marian", list_of("marian", ids), bias=-1e9)
    expected = decoding.load(others, device="cpu", threads=1)
    options = {"max_new_tokens": 12, **search}
    found = ours("marian").generate(ids, shortlist=drawn("marian"), **options)
    assert torch.equal(found, expected.generate(ids, **options))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_every_kind_of_weights(dtype: str) -> None:
    """A token has the same logit in a list as in the whole vocabulary."""
    name = "marian-large"
    options: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 12}
    options |= {"return_dict_in_generate": True, "output_sequences_scores": True}
    ids = sources(name, 4)
    others = without_others(name, list_of(name, ids), bias=-1e9)
    expected = decoding.load(others, device="cpu", dtype=dtype, threads=1).generate(ids, **options)
    model = load(name, dtype=dtype, threads=1)
    found = model.generate(ids, shortlist=drawn(name), **options)
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores)


def test_fewer_tokens_than_beams_ask_for() -> None:
    """Eight candidates of two special tokens and one other."""
    few = Shortlist(np.zeros((60, 0), np.int32), np.array([8], np.int32), 60)
    ids, options = sources("marian", 2), {"num_beams": 4, "num_return_sequences": 4} | OUTPUT
    found = ours("marian").generate(ids, shortlist=few, **options)
    expected = without_others("marian", few.ids_for(ids.numpy(), {3, 59}).tolist())
    assert torch.equal(found.sequences, expected.generate(ids, **options).sequences)


def test_a_list_of_everything_changes_nothing() -> None:
    every = Shortlist(np.zeros((60, 0), np.int32), np.arange(60, dtype=np.int32), 60)
    for search in SEARCHES:
        found, plain = (
            ours("marian").generate(sources("marian", 4), shortlist=given, **search)
            for given in (every, None)
        )
        assert torch.equal(found, plain)


def test_sentences_that_are_computed_together_share_a_list() -> None:
    """And those that are not have each its own."""
    ids = sources("marian", 6)
    options: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 12}

    def rows(found: Tensor) -> list[list[int]]:
        return [[token for token in row if token != 59] for row in found.tolist()]

    def generate(model: decoding.Model, some: Tensor) -> list[list[int]]:
        return rows(model.generate(some, shortlist=drawn("marian"), **options))

    alone = [row for i in range(6) for row in generate(ours("marian"), ids[i : i + 1])]
    for i, row in enumerate(alone):
        model = without_others("marian", list_of("marian", ids[i : i + 1]))
        assert [row] == rows(model.generate(ids[i : i + 1], **options))
    apart = load("marian", limits=Limits(batch=1, beams=3, source=8, target=12, shortlist=60))
    assert generate(apart, ids) == alone
    assert generate(ours("marian"), ids) != alone


def test_memory_for_lists() -> None:
    """It grows with them, and explicit limits say so."""
    model, ids = load("marian"), sources("marian", 2)
    model.generate(ids)
    assert model.memory_plan().limits.shortlist == 0
    model.generate(ids, shortlist=drawn("marian"))
    planned = model.memory_plan().limits.shortlist
    assert len(list_of("marian", ids)) <= planned <= 60
    model.generate(sources("marian", 4), shortlist=drawn("marian"))
    assert planned < model.memory_plan().limits.shortlist <= 60
    model = load("marian", limits=Limits(batch=2, beams=1, source=8, target=20))
    model.generate(ids)
    with pytest.raises(ValueError, match=r"needs shortlist=\d+, .* limits of shortlist=0"):
        model.generate(ids, shortlist=drawn("marian"))


def test_streams_and_files(tmp_path: Path) -> None:
    drawn("marian").save(tmp_path / "map.npz")
    model, ids = ours("marian"), sources("marian", 1)
    [row] = model.generate(ids, shortlist=str(tmp_path / "map.npz"), max_new_tokens=9).tolist()
    steps = model.stream(ids, shortlist=tmp_path / "map.npz", max_new_tokens=9)
    assert [token for [new] in steps for token in new] == row[1:]
    assert row != model.generate(ids, max_new_tokens=9)[0].tolist()


def test_translations(tmp_path: Path) -> None:
    """A map of a few sentences leaves their translations as they are, and cannot say others."""
    model = decoding.load(DEMO, device="cpu", threads=1)
    known, other = ["Das ist ein Haus.", "Wir haben heute keine Zeit."], "Der Hund schläft."
    translations, foreign = model.translate(known), model.translate([other])
    encode, encode_target = model.tokenizer.encode, model.tokenizer.encode_target
    pairs = [(encode(a), encode_target(b)) for a, b in zip(known, translations, strict=True)]
    table = learn([(np.array(a), np.array(b)) for a, b in pairs], 8000)
    Shortlist(table.likeliest(8000, 20), table.most_frequent(2), 8000).save(tmp_path / "m")
    assert model.translate(known, shortlist=tmp_path / "m") == translations
    assert model.translate([other], shortlist=tmp_path / "m") != foreign
    scored = model.translate(known, n_best=2, shortlist=Shortlist.load(tmp_path / "m"))
    assert [best.text for best, _ in scored] == translations


def test_old_names_warn_and_work() -> None:
    with pytest.warns(DeprecationWarning, match="VocabularyMap is deprecated.* use Shortlist"):
        assert decoding.VocabularyMap is Shortlist
    model, ids = ours("marian"), sources("marian", 2)
    expected = model.generate(ids, shortlist=drawn("marian"))
    with pytest.warns(DeprecationWarning, match="vocabulary_map is deprecated.* shortlist"):
        assert torch.equal(model.generate(ids, vocabulary_map=drawn("marian")), expected)
    with pytest.warns(DeprecationWarning, match="vocabulary_map"):
        steps = list(model.stream(ids, vocabulary_map=drawn("marian")))
    assert len(steps) == expected.shape[1] - 1
    with pytest.raises(TypeError, match="pass shortlist alone"):
        model.generate(ids, shortlist=SMALL, vocabulary_map=SMALL)
    demo: Any = decoding.load(DEMO, device="cpu", threads=1)
    with pytest.warns(DeprecationWarning, match="vocabulary_map"):
        assert demo.translate(["Hallo!"], vocabulary_map=None) == demo.translate(["Hallo!"])
