"""Stop strings: the same ends as transformers' StopStringCriteria, for any texts of tokens."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import StopStringCriteria

from decoding.common.device import CPU
from decoding.generation import stop_strings
from decoding.generation.stop_automaton import MATCHED, build
from decoding.generation.stop_strings import StopTable, has_stop_table, stop_table
from decoding.models.weights.dtypes import as_array
from decoding.text.token_texts import Text, token_texts
from decoding.text.tokenizers import BackendTokenizer, load_tokenizer
from tests.support.demo import DEMO
from tests.support.stand_in import Words


def words(texts: list[str], **decoder: Any) -> tokenizers.Tokenizer:
    """A tokenizer with these tokens."""
    model = tokenizers.models.WordLevel({text: i for i, text in enumerate(texts)}, unk_token="?")
    made = tokenizers.Tokenizer(model)
    made.decoder = tokenizers.decoders.Fuse()
    for kind in decoder.values():
        made.decoder = kind
    return made


def random_texts(seed: int) -> list[str]:
    """Tokens of few letters, so that stop strings are hit in many ways; "abcdef" is one, since
    transformers wants to tokenize it."""
    rng = random.Random(seed)
    texts = {"".join(rng.choices("abc ", k=rng.randint(1, 5))) for _ in range(60)}
    return ["abcdef", "?", *sorted(texts)]


def ends(table: StopTable, ids: torch.Tensor, prompt: int) -> list[int]:
    """For each row the token, counted from `prompt`, that ends it; -1: none."""
    found = []
    states = table.states_after(ids[:, :prompt].numpy()).tolist()
    for row, state in zip(ids[:, prompt:].tolist(), states, strict=True):
        end = -1
        for at, token in enumerate(row):
            state = int(as_array(table.table)[state, token])
            if state == MATCHED:
                end = at
                break
        found.append(end)
    return found


def their_ends(criterion: StopStringCriteria, ids: torch.Tensor, prompt: int) -> list[int]:
    hits = [criterion(ids[:, : n + 1], None) for n in range(prompt, ids.shape[1])]
    every = torch.stack(hits, 1)
    return [int(row.int().argmax()) if row.any() else -1 for row in every]


def test_the_same_ends_as_transformers() -> None:
    found: list[int] = []
    for seed in range(12):
        rng = random.Random(seed)
        backend = words(random_texts(seed))
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
        lengths = [rng.randint(1, 6) for _ in range(rng.randint(1, 4))]
        strings = ["".join(rng.choices("abc ", k=length)) for length in lengths]
        vocab = backend.get_vocab_size() + 3  # a model may have more ids than its tokenizer
        ids = torch.randint(0, vocab, (200, 9), generator=torch.Generator().manual_seed(seed))
        expected = their_ends(StopStringCriteria(theirs, strings), ids, 3)
        for tokenizer in (theirs, backend):
            table = stop_table(tokenizer, strings, vocab, CPU)
            assert ends(table, ids, 3) == expected, strings
        found += expected
    assert min(found.count(end) for end in range(-1, 6)) > 20, "too easy"


@pytest.mark.parametrize("fallback", [False, True])
def test_characters_that_are_cut_between_tokens(fallback: bool) -> None:
    if fallback:
        texts = ["?", "abcdef", "x", "<0xC3>", "<0xA9>", "<0xa0>", "é", "é!", "!", "<0x21>"]
        kind: Any = tokenizers.decoders.Sequence(
            [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
        )
    else:
        level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        cut = ["".join(piece for piece, _ in level.pre_tokenize_str(t)) for t in ("é", " é!", "x")]
        texts = ["?", "abcdef", *cut, cut[0][0], cut[0][1], cut[0][1] + "!", "!", "Ġ"]
        kind = tokenizers.decoders.ByteLevel()
    backend = words(texts, kind=kind)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    ids = torch.randint(0, len(texts), (300, 7), generator=torch.Generator().manual_seed(1))
    expected = their_ends(StopStringCriteria(theirs, ["é!", "xé"]), ids, 2)
    assert {-1, *range(3)} <= set(expected), "too easy"
    table = stop_table(theirs, ["é!", "xé"], len(texts), CPU)
    assert ends(table, ids, 2) == expected
    if not fallback:
        mine = BackendTokenizer(backend)
        assert ends(stop_table(mine, ["é!", "xé"], len(texts), CPU), ids, 2) == expected


def test_texts_of_the_demo_models_tokens() -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(DEMO)
    texts = token_texts(theirs)
    mine = token_texts(load_tokenizer(DEMO, {"model_type": "marian"}))
    # transformers' decoding strips what it returns, so it loses a token that is but a space
    assert [None if text == " " else text for text in mine] == [text or None for text in texts]
    vocab, _ = StopStringCriteria.clean_tokenizer_vocab(theirs)
    assert sorted(text for text in texts if text is not None) == sorted(vocab)


def plain_tables(
    strings: Sequence[Text], texts: Sequence[Text | None], vocab: int
) -> tuple[list[list[int]], list[list[int]]]:
    """What build() makes, as it is defined: by the prefixes of strings that a text ends with."""
    states = dict.fromkeys([strings[0][:0], *(s[: n + 1] for s in strings for n in range(len(s)))])
    numbers = {prefix: state for state, prefix in enumerate(states)}
    prefixes = sorted(numbers, key=len, reverse=True)
    table = [[0] * vocab for _ in numbers]
    prompt_table = [[0] * vocab for _ in numbers]
    for prefix, state in numbers.items():
        for token, text in enumerate(texts[:vocab]):
            if text is None:
                continue
            whole: Any = prefix + text  # type: ignore[operator]
            target = numbers[next(each for each in prefixes if whole.endswith(each))]
            ends = range(len(prefix) + 1, len(whole) + 1)
            matched = any(whole[:end].endswith(tuple(strings)) for end in ends)
            prompt_table[state][token] = target
            table[state][token] = MATCHED if matched else target
    return table, prompt_table


def vocabularies(letters: st.SearchStrategy[Text]) -> st.SearchStrategy[Any]:
    strings = st.lists(letters.filter(bool), min_size=1, max_size=4)
    return st.tuples(strings, st.lists(st.none() | letters, max_size=12), st.integers(1, 14))


@settings(max_examples=300)
@given(
    vocabularies(st.text("ab\ud800é😀", max_size=6))
    | vocabularies(st.binary(max_size=6) | st.lists(st.sampled_from([b"a", b"b"])).map(b"".join))
)
def test_tables_are_those_of_their_definition(case: Any) -> None:
    table, prompt_table = build(*case)
    assert (table.tolist(), prompt_table.tolist()) == plain_tables(*case)
    assert table.dtype == prompt_table.dtype == np.int32


def test_texts_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make them of a large vocabulary takes longer than a table."""
    asked: list[Any] = []
    monkeypatch.setattr(stop_strings, "_cache", OrderedDict())

    def asking(tokenizer: Any) -> list[Text | None]:
        asked.append(tokenizer)
        return token_texts(tokenizer)

    monkeypatch.setattr(stop_strings, "token_texts", asking)
    one, other = words(random_texts(1)), words(random_texts(2))
    for tokenizer in (one, other, one, other):
        assert not has_stop_table(tokenizer, [f"a{len(asked)}"], 70, CPU)
        stop_table(tokenizer, [f"a{len(asked)}"], 70, CPU)
    assert asked == [one, other]
    assert has_stop_table(one, ["a0"], 70, CPU)


def test_what_is_refused_and_what_is_kept() -> None:
    with pytest.raises(ValueError, match="tokenizer="):
        stop_table(lambda: None, ["a"], 10, CPU)
    with pytest.raises(TypeError, match="got list"):
        stop_table([1, 2], ["a"], 10, CPU)
    with pytest.raises(ValueError, match="does not tell its tokens: leave stop_strings out"):
        stop_table(Words(), ["a"], 10, CPU)
    backend = words(random_texts(0))
    first = stop_table(backend, ["a"], 70, CPU)
    assert stop_table(lambda: backend, ["a"], 70, CPU).prompt_table is first.prompt_table
    assert stop_table(backend, ["b"], 70, CPU).prompt_table is not first.prompt_table
    assert first.table.dtype == first.prompt_table.dtype == np.int32


def test_the_cache_has_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of large vocabularies are large: the newest one is kept, and others beside it."""
    texts = random_texts(0)
    tokenizer, one = words(texts), 4 * 2 * len(texts)  # bytes of a table of one letter
    monkeypatch.setattr(stop_strings, "_cache", OrderedDict())
    monkeypatch.setattr(stop_strings, "BYTES", 2 * one)
    for strings in ("a", "b", "c"):
        stop_table(tokenizer, [strings], len(texts), CPU)
    assert [key[2] for key in stop_strings._cache] == [("b",), ("c",)]
    stop_table(tokenizer, ["abc"], len(texts), CPU)
    assert [key[2] for key in stop_strings._cache] == [("abc",)]
