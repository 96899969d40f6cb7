"""Stop strings as an automaton over tokens, so that a row's end is found inside the step.

The strings become one automaton over characters (Aho and Corasick 1975); a token's text moves it
from state to state, so the table [states, V] of whole tokens follows matches across their bounds.
A string may end anywhere inside a token, as in transformers' StopStringCriteria. Texts are bytes
where the vocabulary is one of bytes, so that a character may be cut between tokens.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decoding.common.arrays import Array
from decoding.common.device import Device
from decoding.engine.allocation import copied_to
from decoding.models.weights.dtypes import Stored
from decoding.text.token_texts import Text, token_texts

MATCHED = -1  # csrc/kernels/search/stop.h
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


class Automaton:
    """States are prefixes of the strings; 0 is the empty one."""

    def __init__(self, strings: Sequence[Text]) -> None:
        self.moves: list[dict[Any, int]] = [{}]
        self.matched = [False]
        for string in strings:
            self._add(string)
        self._fail = [0] * len(self.moves)
        order = list(self.moves[0].values())
        for state in order:  # breadth first: what it falls back to is complete
            for character, target in self.moves[state].items():
                self._fail[target] = self.next(self._fail[state], character)
                self.matched[target] |= self.matched[self._fail[target]]
                order.append(target)

    def _add(self, string: Text) -> None:
        state = 0
        for character in string:
            if character not in self.moves[state]:
                self.moves[state][character] = len(self.moves)
                self.moves.append({})
                self.matched.append(False)
            state = self.moves[state][character]
        self.matched[state] = True

    def next(self, state: int, character: Any) -> int:
        """The longest prefix of a string that the text ends with after `character`."""
        while state and character not in self.moves[state]:
            state = self._fail[state]
        return self.moves[state].get(character, 0)

    def read(self, state: int, text: Text) -> tuple[int, bool]:
        """The state after `text`, and whether a string ended within it."""
        matched = False
        for character in text:
            state = self.next(state, character)
            matched |= self.matched[state]
        return state, matched


def build(strings: Sequence[Text], texts: Sequence[Text | None], vocab: int) -> tuple[Array, Array]:
    """`StopTable`'s two tables. texts: of each token; None where an id has none: after it nothing
    of what came before counts."""
    automaton = Automaton(strings)
    states = len(automaton.moves)
    table = np.zeros((states, vocab), np.int32)
    prompt_table = np.zeros((states, vocab), np.int32)
    letters = {character for string in strings for character in string}
    for token, text in enumerate(texts[:vocab]):
        if text is None:
            continue
        # Most tokens end in a character that no string has, and hold none either.
        if text and text[-1] not in letters and letters.isdisjoint(text):
            continue
        for state in range(states):
            target, matched = automaton.read(state, text)
            prompt_table[state, token] = target
            table[state, token] = MATCHED if matched else target
    return table, prompt_table


# Of the tokenizers seen last; each is kept with its table, so that its id stays its own.
_cache: OrderedDict[Any, tuple[Any, StopTable]] = OrderedDict()
_turn = threading.Lock()  # of the threads that ask for tables


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
    size = getattr(tokenizer, "__len__", getattr(tokenizer, "get_vocab_size", int))()
    key = (id(tokenizer), size, tuple(strings), vocab, device)
    with _turn:
        if key not in _cache:
            texts = token_texts(tokenizer)
            in_bytes = any(isinstance(text, bytes) for text in texts)
            read = [string.encode() for string in strings] if in_bytes else strings
            table, prompt_table = build(read, texts, vocab)
            _cache[key] = (tokenizer, StopTable(copied_to(device, table), prompt_table))
        _cache.move_to_end(key)
        while len(_cache) > KEPT or (len(_cache) > 1 and cached_bytes() > BYTES):
            _cache.popitem(last=False)
        return _cache[key][1]


def cached_bytes() -> int:
    return sum(table.prompt_table.nbytes for _, table in _cache.values())
