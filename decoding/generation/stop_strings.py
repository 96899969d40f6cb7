"""Stop strings as an automaton over tokens, so that a row's end is found inside the step.

The strings become one automaton over characters; a token's text moves it from state to state
(stop_automaton.py), so the table [states, V] of whole tokens follows matches across their bounds.
A string may end anywhere inside a token, as in transformers' StopStringCriteria. Texts are bytes
where the vocabulary is one of bytes, so that a character may be cut between tokens.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from decoding.common.arrays import Array
from decoding.common.device import Device
from decoding.engine.allocation import copied_to
from decoding.generation.stop_automaton import build
from decoding.models.weights.dtypes import Stored
from decoding.text.token_texts import Text, token_texts

KEPT, BYTES = 8, 1 << 26  # tables in the cache, and bytes of all of them on one side


@dataclass(frozen=True)
class StopTable:
    """The automaton of a call's stop strings over the model's tokens.

    table: int32 [states, V], the state after a token, MATCHED where it completes a string; on the
    model's device. prompt_table: int32 [states, V], the same on the CPU, but after a match the
    state from which the text goes on: a prompt may hold a stop string.
    """

    table: Stored
    prompt_table: Array

    def options(self, prompt: Array) -> dict[str, Any]:
        """The arguments of _C.Request. prompt: int64 [B, P], padding included."""
        return {"stop_table": self.table, "stop_first": self.states_after(prompt)}

    def states_after(self, ids: Array) -> Array:
        """int32 [B], the state after each prompt; ids: int64 [B, P], padding included."""
        states = np.zeros(len(ids), np.int32)
        for column in ids.T:
            states = self.prompt_table[states, column]
        return states


class Kept(NamedTuple):
    """A table, and what it was made of: the tokenizer, so that its id stays its own."""

    tokenizer: Any
    texts: Sequence[Text | None]
    table: StopTable


_cache: OrderedDict[Any, Kept] = OrderedDict()  # those used last at its end
_lock = threading.Lock()  # of the cache
_making = threading.Lock()  # one at a time: several may ask for the same table


def stop_table(tokenizer: Any, strings: Sequence[str], vocab: int, device: Device) -> StopTable:
    """For a tokenizer of transformers, of the `tokenizers` library, or one of ours; or for what a
    function without arguments returns. vocab: ids of the model.

    Raises ValueError where there is none, and for one of ours that does not tell the texts of its
    tokens; TypeError for another's that does not.
    """
    if callable(tokenizer) and not hasattr(tokenizer, "encode"):
        tokenizer = tokenizer()
    if tokenizer is None:
        raise ValueError("stop_strings need a tokenizer: pass tokenizer=")
    key = key_of(tokenizer, strings, vocab, device)
    if (kept := looked_up(key)) is None:
        with _making:
            kept = looked_up(key) or keep(key, made(tokenizer, strings, vocab, device))
    return kept.table


def has_stop_table(tokenizer: Any, strings: Sequence[str], vocab: int, device: Device) -> bool:
    """Whether stop_table() has only to look it up."""
    with _lock:
        return key_of(tokenizer, strings, vocab, device) in _cache


def key_of(tokenizer: Any, strings: Sequence[str], vocab: int, device: Device) -> tuple[Any, ...]:
    return (*vocabulary_of(tokenizer), tuple(strings), vocab, device)


def vocabulary_of(tokenizer: Any) -> tuple[int, int]:
    """What changes with the texts of its tokens, which may become more."""
    size = getattr(tokenizer, "__len__", getattr(tokenizer, "get_vocab_size", int))()
    return id(tokenizer), size


def made(tokenizer: Any, strings: Sequence[str], vocab: int, device: Device) -> Kept:
    own = vocabulary_of(tokenizer)
    with _lock:
        known = next((kept.texts for key, kept in _cache.items() if key[:2] == own), None)
    texts = token_texts(tokenizer) if known is None else known
    in_bytes = any(isinstance(text, bytes) for text in texts)
    read = [string.encode() for string in strings] if in_bytes else strings
    table, prompt_table = build(read, texts, vocab)
    return Kept(tokenizer, texts, StopTable(copied_to(device, table), prompt_table))


def looked_up(key: tuple[Any, ...]) -> Kept | None:
    with _lock:
        if key in _cache:
            _cache.move_to_end(key)
        return _cache.get(key)


def keep(key: tuple[Any, ...], kept: Kept) -> Kept:
    with _lock:
        _cache[key] = kept
        while len(_cache) > KEPT or (len(_cache) > 1 and cached_bytes() > BYTES):
            _cache.popitem(last=False)
    return kept


def cached_bytes() -> int:
    return sum(kept.table.prompt_table.nbytes for kept in _cache.values())
