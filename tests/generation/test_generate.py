"""generate() beyond parity: inputs, defaults, limits of time, bad arguments."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
import transformers

import decoding
from decoding import GenerationConfig
from tests.support.calls import FILL, ragged, run, stripped
from tests.support.random_models import GPT2, MARIAN, ours, reference


@pytest.mark.parametrize("search", [{}, {"num_beams": 3}])
def test_max_time(search: dict[str, Any], device: str) -> None:
    ids = torch.tensor([[12, 13, 14], [15, 16, 17]])
    options = {"max_new_tokens": 30, "eos_token_id": None, **search}
    model = ours("gpt2", device)
    assert model.generate(ids, max_time=0, **options).shape == (2, 4)
    assert torch.equal(model.generate(ids, max_time=1e6, **options), model.generate(ids, **options))


def test_stop_strings_need_a_tokenizer(device: str) -> None:
    class Words:
        """Token n is the letter n."""

        decoder = None

        def get_vocab(self) -> dict[str, int]:
            return {chr(ord("A") + id): id for id in range(60)} | {"abcdef": 60}

        def encode(self, text: str, add_special_tokens: bool) -> Any:
            return types.SimpleNamespace(tokens=[text])

    ids = torch.tensor([[12, 13, 14], [15, 16, 17]])
    options = {"max_new_tokens": 12, "eos_token_id": None, "pad_token_id": FILL}
    model = ours("gpt2", device)
    plain = model.generate(ids, **options)[:, 3:].tolist()
    strings = ["".join(chr(ord("A") + id) for id in row[4:7]) for row in plain]
    found = model.generate(ids, stop_strings=strings, tokenizer=Words(), **options)[:, 3:].tolist()
    assert found == [row[:7] for row in plain]
    with pytest.raises(ValueError, match="pass tokenizer="):
        model.generate(ids, stop_strings="a")


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_everything_banned(name: str, device: str) -> None:
    vocab = reference(name).config.vocab_size
    eos = reference(name).generation_config.eos_token_id
    options = {"bad_words_ids": [[id] for id in range(vocab)], "max_new_tokens": 3}
    options["eos_token_id"] = None
    ids = torch.tensor([[12, 13]])
    theirs = reference(name).generate(ids, **options)
    assert torch.equal(ours(name, device).generate(ids, **options), theirs)
    assert set(theirs[:, -3:].flatten().tolist()) == {0}
    beams = ours(name, device).generate(
        ids, **options, num_beams=2, return_dict_in_generate=True, output_scores=True
    )
    assert bool((beams.sequences_scores <= -1e8).all())
    with pytest.raises(decoding.Error, match="item 0 at step 1"):
        ours(name, device).generate(ids, **options, do_sample=True)
    assert ours(name, device).generate(ids, max_new_tokens=1, eos_token_id=eos).shape[0] == 1


def test_defaults_of_length() -> None:
    ids = torch.tensor([[12, 13, 14]])
    assert ours("gpt2").generate(ids, eos_token_id=None).shape == (1, 23)
    assert ours("marian").generate(ids, eos_token_id=None).shape == (1, 21)
    long = ids.repeat(1, 14)  # 42 of 48 positions
    expected = reference("gpt2").generate(long, eos_token_id=None)
    assert torch.equal(ours("gpt2").generate(long, eos_token_id=None), expected)
    assert expected.shape == (1, 48)


def test_the_checkpoints_own_options_count() -> None:
    model = reference("marian")
    before = model.generation_config
    try:
        model.generation_config = transformers.GenerationConfig.from_dict(
            before.to_dict()
            | {"num_beams": 3, "max_length": 9, "bad_words_ids": [[59]], "forced_eos_token_id": 3}
        )
        loaded = decoding.load(model, "cpu")
        ids = torch.tensor([[12, 13, 14], [15, 16, 17]])
        for options in (
            {},
            {"num_beams": 2},
            {"generation_config": {"length_penalty": 0.1, "num_beams": 4}},
            {"generation_config": GenerationConfig(max_new_tokens=4), "early_stopping": True},
            {"generation_config": transformers.GenerationConfig(length_penalty=-1.0)},
        ):
            theirs = dict(options)
            config = theirs.pop("generation_config", None)
            if config is not None and not isinstance(config, transformers.GenerationConfig):
                config = config if isinstance(config, dict) else {"max_new_tokens": 4}
                config = transformers.GenerationConfig(**config)
            expected = model.generate(ids, generation_config=config, **theirs)
            assert torch.equal(loaded.generate(ids, **options), expected), options
    finally:
        model.generation_config = before
    strict = dict(loaded.generation_config) | {"token_healing": True}
    loaded.generation_config = strict
    with pytest.raises(NotImplementedError, match="token_healing=True.*checkpoint"):
        loaded.generate(ids)
    loaded.generate(ids, **{"token_healing": None})


def test_ways_to_give_inputs() -> None:
    ids = torch.tensor([[12, 13, 14], [15, 16, 17]])
    expected = ours("marian").generate(ids)
    same: list[Any] = [
        ours("marian").generate(inputs=ids),
        ours("marian").generate(input_ids=ids.int()),
        ours("marian").generate(ids.tolist()),
        ours("marian").generate(ids.numpy()),
        decoding.generate(ours("marian"), ids),
        decoding.generate(reference("marian"), ids),
    ]
    assert all(torch.equal(x, expected) for x in same)
    lists = ours("gpt2-pad").generate([[12, 13, 14], [15]], max_new_tokens=5)
    padded = torch.tensor([[12, 13, 14], [5, 5, 15]])
    assert torch.equal(lists, reference("gpt2-pad").generate(padded, max_new_tokens=5))
    begun = ours("gpt2").generate(max_new_tokens=5)
    assert torch.equal(begun, reference("gpt2").generate(max_new_tokens=5))


def test_start_tokens(device: str) -> None:
    ids = torch.tensor([[12, 13], [15, 16], [17, 18]])
    model, theirs = ours("marian", device).generate, reference("marian").generate
    for options in (
        {"decoder_start_token_id": 8},
        {"decoder_start_token_id": [8, 9, 10]},
        {"decoder_start_token_id": None, "bos_token_id": 4},
        {"decoder_input_ids": torch.tensor([[59, 8], [7, 9], [6, 8]])},  # one row has the start
        {"decoder_input_ids": torch.tensor([[8], [9], [10]])},
    ):
        assert torch.equal(model(ids, **options), theirs(ids, **options)), options


@pytest.mark.parametrize(
    "name, options, error, words",
    [
        ("marian", {"input_ids": [[12, 60]]}, ValueError, "input_ids holds 60"),
        ("marian", {"input_ids": None}, ValueError, "bos_token_id"),
        ("marian", {"inputs": [[12]]}, ValueError, "two names"),
        ("marian", {"input_ids": [[12] * 49]}, ValueError, "49, the model has 48"),
        ("marian", {"decoder_input_ids": [[1], [2]]}, ValueError, "must have 1 rows"),
        ("marian", {"decoder_input_ids": [[60]]}, ValueError, "decoder_input_ids holds 60"),
        ("marian", {"decoder_start_token_id": None}, ValueError, "decoder_start_token_id or bos"),
        ("marian", {"decoder_start_token_id": [1, 2]}, ValueError, "one for each of 1 rows"),
        ("marian", {"bad_words_ids": [[60]]}, ValueError, "bad_words_ids holds 60.*0 to 59"),
        ("marian", {"forced_bos_token_id": 60}, ValueError, "forced_bos_token_id holds 60"),
        ("marian", {"suppress_tokens": [3, 60]}, ValueError, "suppress_tokens holds 60"),
        ("marian", {"sequence_bias": {(3, 60): 1}}, ValueError, "sequence_bias holds 60"),
        ("marian", {"max_new_tokens": [3, 4]}, ValueError, "one for each of 1 rows, got 2"),
        ("marian", {"seed": [3, 4], "do_sample": True}, ValueError, "each of 1 rows"),
        ("marian", {"guidance_scale": 2}, ValueError, "decoder-only"),
        (
            "marian-two-tables",
            {"input_ids": [[12, 50]], "encoder_no_repeat_ngram_size": 2},
            ValueError,
            "encoder_no_repeat_ngram_size reads input_ids, which holds 50",
        ),
        ("marian", {"forced_eos_token_id": [1, -1]}, ValueError, "forced_eos_token_id holds -1"),
        ("marian", {"max_new_tokens": 49}, ValueError, "max_new_tokens=48 or less"),
        ("marian", {"max_length": 1}, ValueError, "max_length=1 counts the prompt"),
        ("marian", {"attention_mask": [[1]]}, ValueError, r"\[1, 2\]; got \[1, 1\]"),
        ("marian", {"attention_mask": [[0, 0]]}, ValueError, "row 0 is masked"),
        ("gpt2", {"decoder_input_ids": [[1]]}, ValueError, "pass them as input_ids"),
        ("gpt2", {"max_new_tokens": 48}, ValueError, "max_new_tokens=47 or less"),
        ("gpt2", {"input_ids": [[12] * 49]}, ValueError, "48"),
        ("gpt2", {"attention_mask": [[1, 0]]}, ValueError, "pad on the left"),
        ("gpt2", {"num_beam": 2}, TypeError, "num_beams"),
        ("gpt2", {"position_ids": [[0, 1]]}, NotImplementedError, "position_ids"),
    ],
)
def test_bad_calls(name: str, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ours(name).generate(**({"input_ids": [[12, 13]]} | options))


def test_an_eos_outside_the_vocabulary_never_comes() -> None:
    ids = torch.tensor([[12, 13]])
    for eos in (-1, 1000, [-1, 1000]):
        found = ours("gpt2").generate(ids, eos_token_id=eos, max_new_tokens=9)
        assert torch.equal(found, ours("gpt2").generate(ids, eos_token_id=None, max_new_tokens=9))


def test_directories_load_too(tmp_path: Any) -> None:
    for name in ("marian", "gpt2"):
        reference(name).save_pretrained(tmp_path / name)
        model = decoding.load(tmp_path / name)
        ids = torch.tensor([[12, 13, 14]])
        expected = ours(name).generate(ids, num_beams=3)
        assert torch.equal(model.generate(ids, num_beams=3), expected)
        assert torch.equal(decoding.generate(str(tmp_path / name), ids, num_beams=3), expected)


@pytest.mark.parametrize("family", [list(MARIAN), list(GPT2)], ids=["marian", "gpt2"])
def test_the_models_are_worth_comparing(family: list[str]) -> None:
    """Rows end at several lengths, and greedy rows are not what beams find."""
    lengths, changed = set(), 0
    for name in family:
        inputs = ragged(name, 12)
        found = run(name, inputs, num_beams=4, num_return_sequences=4, pad_token_id=FILL)
        lengths |= set((found.beam_indices >= 0).sum(1).tolist())
        greedy = run(name, inputs, pad_token_id=FILL)
        changed += sum(
            stripped(a) != stripped(b)
            for a, b in zip(found.sequences[::4].tolist(), greedy.sequences.tolist(), strict=True)
        )
    assert len(lengths) >= 8 and changed >= 10
