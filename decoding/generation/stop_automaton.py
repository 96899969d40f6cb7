"""The automaton of stop strings over characters (Aho and Corasick 1975), and what whole tokens do
to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoding.common.arrays import Array
from decoding.text.token_texts import Text

MATCHED = -1  # csrc/kernels/search/stop.h


class Automaton:
    """States are prefixes of the strings; 0 is the empty one.

    moves: int32 [states, letters + 1], the longest prefix of a string that the text ends with after
    a letter, or, in the last column, after a character that no string has. matched: bool [states],
    where a string ends.
    """

    def __init__(self, strings: Sequence[Text]) -> None:
        read = [codes(string) for string in strings]
        self._letters = np.unique(np.concatenate(read))
        trie, matched = [dict[int, int]()], [False]
        for string in read:
            state = 0
            for letter in self.columns(string).tolist():
                if letter not in trie[state]:
                    trie[state][letter] = len(trie)
                    trie.append({})
                    matched.append(False)
                state = trie[state][letter]
            matched[state] = True
        self.matched = np.array(matched)
        self.moves = np.zeros((len(trie), len(self._letters) + 1), np.int32)
        fail = [0] * len(trie)
        order = [0]
        for state in order:  # breadth first: what it falls back to is complete
            row = self.moves[state] = self.moves[fail[state]]
            for letter, target in trie[state].items():
                fail[target] = int(row[letter])
                self.matched[target] |= self.matched[fail[target]]
                self.moves[state, letter] = target
                order.append(target)

    def columns(self, characters: Array) -> Array:
        """Of `moves`, for each character."""
        found = np.searchsorted(self._letters, characters)
        known = self._letters[np.minimum(found, len(self._letters) - 1)] == characters
        return np.where(known, found, len(self._letters))


def codes(text: Text) -> Array:
    """The numbers of its characters or bytes."""
    if isinstance(text, bytes):
        return np.frombuffer(text, np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


class TokenReader:
    """Tells where texts bring an automaton. texts: of tokens, at least one, none empty."""

    def __init__(self, automaton: Automaton, texts: Sequence[Text]) -> None:
        self._automaton = automaton
        ends = np.cumsum([len(text) for text in texts])
        self._starts, self._last = np.append(0, ends[:-1]), ends - 1  # among all characters
        joined: Text = texts[0][:0].join(texts)  # type: ignore[arg-type]  # they are of one type
        self._columns = automaton.columns(codes(joined))
        self._first = self._columns[self._starts]
        self._path = self._states_from_0()
        self._targets = self._path[self._last]
        self._matched = np.logical_or.reduceat(automaton.matched[self._path], self._starts)

    def _states_from_0(self) -> Array:
        """After each character of each text."""
        path = np.zeros(len(self._columns), np.int32)
        positions, last = self._starts, self._last
        state = np.zeros(len(positions), np.int32)
        while len(positions):
            path[positions] = state = self._automaton.moves[state, self._columns[positions]]
            going = positions < last
            positions, last, state = positions[going] + 1, last[going], state[going]
        return path

    def read(self, state: int) -> tuple[Array, Array]:
        """The state after each text, and whether a string ended within it."""
        moves, matched = self._automaton.moves, self._automaton.matched
        targets, found = self._targets.copy(), self._matched.copy()
        # Once it is where state 0 has come to, the rest is the same: most texts are not read on.
        [texts] = np.nonzero((moves[state] != moves[0])[self._first])
        positions, states = self._starts[texts], np.full(len(texts), state, np.int32)
        while len(texts):
            states = moves[states, self._columns[positions]]
            found[texts] |= matched[states]
            over = positions == self._last[texts]
            targets[texts[over]] = states[over]
            going = ~over & (states != self._path[positions])
            texts, positions, states = texts[going], positions[going] + 1, states[going]
        return targets, found


def build(strings: Sequence[Text], texts: Sequence[Text | None], vocab: int) -> tuple[Array, Array]:
    """`StopTable`'s two tables. strings: none empty. texts: of each token, of the strings'
    type; None where an id has none: after it nothing of what came before counts."""
    automaton = Automaton(strings)
    states = len(automaton.moves)
    table = np.zeros((states, vocab), np.int32)
    prompt_table = np.zeros((states, vocab), np.int32)
    known = {token: text for token, text in enumerate(texts[:vocab]) if text}
    if known:
        tokens, reader = np.array(list(known)), TokenReader(automaton, list(known.values()))
        for state in range(states):
            targets, matched = reader.read(state)
            prompt_table[state, tokens] = targets
            table[state, tokens] = np.where(matched, MATCHED, targets)
    empty = [token for token, text in enumerate(texts[:vocab]) if text is not None and not text]
    table[:, empty] = prompt_table[:, empty] = np.arange(states)[:, None]
    return table, prompt_table
