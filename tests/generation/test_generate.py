"""generate() beyond parity: independence of neighbours, random numbers, defaults, bad arguments."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
import transformers
from scipy.stats import chisquare
from torch import Tensor

import decoding
from decoding import GenerationConfig
from decoding.generation import batching
from decoding.reference import Rules, sample
from tests.support.random_models import GPT2, MARIAN, ours, reference

SEARCHES: list[dict[str, Any]] = [
    {},
    {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.7},
    {"num_beams": 3, "early_stopping": True, "min_new_tokens": 3},
    {"do_sample": True, "seed": 7, "num_return_sequences": 2, "temperature": 1.5},
]


def ragged(name: str, batch: int, width: int = 7, seed: int = 0) -> dict[str, Tensor]:
    """Rows of all lengths, padded on the family's side."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(12, 40, (batch, width), generator=generator)
    tokens = torch.randint(1, width + 1, (batch, 1), generator=generator)
    columns = torch.arange(width)
    mask = columns < tokens if name in MARIAN else columns >= width - tokens
    return {"input_ids": ids, "attention_mask": mask.long()}


def run(name: str, inputs: dict[str, Tensor], device: str = "cpu", **options: Any) -> Any:
    options = {"max_new_tokens": 12, "return_dict_in_generate": True} | options
    return ours(name, device).generate(**inputs, output_scores=True, **options)


FILL = 5


def item_of(found: Any, item: int, copies: int) -> list[Any]:
    """One item's rows and scores, to compare bit for bit, without the fill behind the rows: there
    is as much of it as the longest row of the batch needs."""
    place = slice(item * copies, (item + 1) * copies)
    scores = getattr(found, "sequences_scores", None)
    return [
        [stripped(row) for row in found.sequences[place].tolist()],
        None if scores is None else scores[place].tolist(),
    ]


def same(a: Any, b: Any, device: str) -> bool:
    """To the bit on the CPU. On a GPU the order of a sum may depend on the number of rows."""
    slack = 0.0 if device == "cpu" else 1e-5
    return torch.allclose(a, b, rtol=slack, atol=slack)


def same_items(a: list[Any], b: list[Any], device: str) -> bool:
    """Lists of item_of()."""
    return all(
        rows == other_rows
        and (scores is None or same(torch.tensor(scores), torch.tensor(other_scores), device))
        for (rows, scores), (other_rows, other_scores) in zip(a, b, strict=True)
    )


def stripped(row: list[int]) -> list[int]:
    while row and row[-1] == FILL:
        row = row[:-1]
    return row


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


FILTERS: list[dict[str, Any]] = [
    {"top_k": None},
    {"top_k": 5},
    {"top_k": None, "top_p": 0.8},
    {"temperature": 0.6, "top_k": 9},
    {"temperature": 1.7, "top_k": 20, "top_p": 0.7},
]


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("name", ["marian-unscaled", "gpt2-tied"])
def test_samples_follow_the_reference(name: str, filters: dict[str, Any], device: str) -> None:
    """Support and chi-square of first and second tokens against transformers' own distribution."""
    ids, copies = torch.tensor([[15, 21, 33]]), 4000
    options = {"do_sample": True, "bad_words_ids": [[6]], "min_new_tokens": 1} | filters
    found = ours(name, device).generate(
        ids, max_new_tokens=2, seed=11, num_return_sequences=copies, **options
    )
    prompt = found[:, :-2]
    first, second = found[:, -2], found[:, -1]
    check_frequencies(first, distribution(name, ids, prompt[:1], options))
    common = int(first.mode().values)
    eos = reference(name).generation_config.eos_token_id
    assert common != eos
    start = torch.cat([prompt[:1], torch.tensor([[common]])], 1)
    more = {key: value for key, value in options.items() if key != "min_new_tokens"}
    check_frequencies(second[first == common], distribution(name, ids, start, more))


def distribution(name: str, ids: Tensor, start: Tensor, options: dict[str, Any]) -> Tensor:
    """Probabilities [V] of the next token, by transformers."""
    inputs = (
        {"input_ids": ids, "decoder_input_ids": start} if name in MARIAN else {"input_ids": start}
    )
    found = reference(name).generate(
        **inputs,
        **options,
        attention_mask=torch.ones_like(inputs["input_ids"]),
        max_new_tokens=1,
        return_dict_in_generate=True,
        output_scores=True,
    )
    return found.scores[0][0].softmax(-1)


def check_frequencies(tokens: Tensor, probabilities: Tensor) -> None:
    counts = tokens.bincount(minlength=len(probabilities))
    assert bool((counts[probabilities == 0] == 0).all()), "outside of the support"
    expected = probabilities.double() * len(tokens)
    often = expected >= 5
    bins = [*counts[often].tolist(), int(counts[~often].sum())]
    theory = [*expected[often].tolist(), float(expected[~often].sum())]
    assert len(bins) > 2 and len(tokens) >= 200
    if theory[-1] < 1:  # too rare for a bin of its own
        bins, theory = bins[:-1], theory[:-1]
    scale = sum(bins) / sum(theory)
    assert chisquare(bins, [scale * x for x in theory]).pvalue > 1e-3


@pytest.mark.parametrize("filters", FILTERS)
def test_samples_are_those_of_our_reference(filters: dict[str, Any], device: str) -> None:
    """Token for token: the engine's random numbers are Philox's, keyed as documented."""
    model = reference("gpt2")
    ids = ragged("gpt2", 3)
    off = {"top_k": 0} if filters.get("top_k", 50) is None else {}
    found = ours("gpt2", device).generate(
        **ids, do_sample=True, seed=2**63 + 5, num_return_sequences=2, max_new_tokens=6, **filters
    )
    for row in range(6):
        given = ids["input_ids"][row // 2][ids["attention_mask"][row // 2] == 1]

        def logits(tokens: tuple[int, ...], given: Tensor = given) -> Tensor:
            return model(torch.cat([given, torch.tensor(tokens, dtype=torch.int64)])[None]).logits[
                0, -1
            ]

        rules = Rules(max_new=6, eos=(1,))
        expected = sample(logits, rules, seed=2**63 + 5, row=row, **(filters | off))
        tokens = found[row, 7:].tolist()
        assert tuple(tokens[: len(expected)]) == expected
        assert set(tokens[len(expected) :]) <= {1}


def test_seeds(device: str) -> None:
    inputs = ragged("gpt2", 3)
    options = {"do_sample": True, "num_return_sequences": 4, "eos_token_id": None, "top_k": 0}
    generate = ours("gpt2", device).generate

    def draw(**more: Any) -> Any:
        return generate(**inputs, max_new_tokens=8, **options, **more)

    assert torch.equal(draw(seed=1), draw(seed=1))
    assert not torch.equal(draw(seed=1), draw(seed=2))
    assert len({tuple(row) for row in draw(seed=1)[:4].tolist()}) == 4, "copies draw for themselves"
    torch.manual_seed(3)
    first, second = draw(), draw()
    torch.manual_seed(3)
    assert torch.equal(draw(), first) and not torch.equal(first, second)
    drawn = set(draw(seed=1)[:, 7:].flatten().tolist())
    never = next(id for id in range(60) if id not in drawn)
    other_options = draw(seed=1, bad_words_ids=[[never]], min_new_tokens=3)
    assert torch.equal(other_options, draw(seed=1)), "other options do not shift the stream"


def test_a_seed_for_each_row(device: str) -> None:
    """Its draws then do not depend on its place; values of the others change nothing."""
    inputs = ragged("gpt2", 3)
    options = {"do_sample": True, "num_return_sequences": 2, "max_new_tokens": 8, "top_k": 0}
    generate = ours("gpt2", device).generate
    found = generate(**inputs, **options, seed=[7, 8, 7])
    back = generate(**{k: v.flip(0) for k, v in inputs.items()}, **options, seed=[7, 8, 7])
    assert torch.equal(back.view(3, 2, -1).flip(0), found.view(3, 2, -1))
    alone = {k: v[:1] for k, v in inputs.items()}
    assert torch.equal(generate(**alone, **options, seed=[7]), found[:2])
    assert torch.equal(generate(**alone, **options, seed=7), found[:2]), "the first row's own"
    assert found[0].tolist() != found[1].tolist(), "copies draw for themselves"


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


def test_forced_tokens_when_sampling(device: str) -> None:
    found = ours("marian", device).generate(
        [[12, 13]],
        do_sample=True,
        num_return_sequences=200,
        seed=1,
        max_new_tokens=3,
        forced_bos_token_id=20,
        forced_eos_token_id=[4, 9],
        eos_token_id=None,
    )
    assert set(found[:, 1].tolist()) == {20}
    counts = found[:, 3].bincount(minlength=10)
    assert counts[4] + counts[9] == 200 and 60 < int(counts[4]) < 140


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
    loaded.generate(ids, token_healing=None)


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
