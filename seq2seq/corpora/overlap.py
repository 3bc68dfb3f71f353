"""Leakage: text that training shares with dev or test, found by word n-grams and exact copies, and kept apart."""

from __future__ import annotations

import random
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence

from seq2seq.corpora.pairs import Pair

NGRAM = 8


class _Unspoken(dict[int, int | None]):
    """Table for ``str.translate`` that drops combining marks and invisible format characters, filled as characters come."""

    def __missing__(self, code: int) -> int | None:
        self[code] = None if unicodedata.category(chr(code)) in ("Mn", "Cf") else code
        return self[code]


_UNSPOKEN = _Unspoken()


def words(text: str) -> list[str]:
    """Words for comparison: lower case, without punctuation, vowel points and joiners.

    >>> words("L'Éternel dit:")
    ['l', 'éternel', 'dit']
    """
    return re.findall(r"\w+", text.lower().translate(_UNSPOKEN))


def sentence_key(text: str) -> str:
    """Two texts with one key are the same sentence, whatever the case and punctuation."""
    return " ".join(words(text)) or text


def ngrams(text: str, n: int = NGRAM) -> set[tuple[str, ...]]:
    """The word n-grams of `text`."""
    listed = words(text)
    return {tuple(listed[i : i + n]) for i in range(len(listed) - n + 1)}


class HeldOutText:
    """What dev and test say, on either side: a train pair that repeats any of it is a leak."""

    def __init__(self, held_out: Iterable[Pair], n: int = NGRAM):
        self._n = n
        self._keys: tuple[set[str], set[str]] = (set(), set())
        self._ngrams: tuple[set[tuple[str, ...]], set[tuple[str, ...]]] = (set(), set())
        for pair in held_out:
            for side in (0, 1):
                self._keys[side].add(sentence_key(pair[side]))
                self._ngrams[side].update(ngrams(pair[side], n))

    def copied_by(self, pair: Pair) -> bool:
        """Whether either side of `pair` is a dev or test sentence."""
        return any(sentence_key(pair[side]) in self._keys[side] for side in (0, 1))

    def shared_with(self, pair: Pair) -> set[tuple[str, ...]]:
        """The word n-grams, of either side, that `pair` shares with dev or test."""
        return (ngrams(pair.source, self._n) & self._ngrams[0]) | (ngrams(pair.target, self._n) & self._ngrams[1])

    def repeated_by(self, pair: Pair) -> bool:
        """Whether `pair` copies a sentence of dev or test or shares an n-gram with it."""
        return self.copied_by(pair) or bool(self.shared_with(pair))


def count_shared_ngrams(train: Iterable[Pair], held_out: Iterable[Pair], n: int = NGRAM) -> int:
    """Number of train pairs that share a word n-gram with `held_out` in either language."""
    text = HeldOutText(held_out, n)
    return sum(bool(text.shared_with(pair)) for pair in train)


def group_repeats(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Pairs that share a source or a target, directly or through others, in one group; groups and pairs keep their order."""
    leader = list(range(len(pairs)))

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = i = leader[leader[i]]
        return i

    first: dict[tuple[int, str], int] = {}
    for i, pair in enumerate(pairs):
        for side in (0, 1):
            a, b = sorted((find(first.setdefault((side, sentence_key(pair[side])), i)), find(i)))
            leader[b] = a
    groups: dict[int, list[Pair]] = defaultdict(list)
    for i, pair in enumerate(pairs):
        groups[find(i)].append(pair)
    return list(groups.values())


def hold_out(groups: Sequence[Sequence[Pair]], counts: Sequence[int], seed: int = 0) -> tuple[list[list[Pair]], list[Pair]]:
    """Take whole groups, in an order shuffled by `seed`, until each part has its count of pairs; the rest stays.

    Returns:
        The parts, one for each count (each may be smaller if no group fits any more), and the rest in its old order.
    """
    order = list(range(len(groups)))
    random.Random(seed).shuffle(order)
    taken: set[int] = set()
    parts: list[list[Pair]] = []
    for count in counts:
        part: list[Pair] = []
        for i in order:
            if i not in taken and len(part) + len(groups[i]) <= count:
                taken.add(i)
                part += groups[i]
            if len(part) == count:
                break
        parts.append(part)
    return parts, [pair for i, group in enumerate(groups) if i not in taken for pair in group]
