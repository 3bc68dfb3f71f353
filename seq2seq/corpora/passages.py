"""Passages: consecutive verses of a chapter as one long sentence, for tests beyond the lengths of training."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from seq2seq.config import ConfigError
from seq2seq.corpora.pairs import Pair


class Passages(NamedTuple):
    """What `join_verses` returns."""

    pairs: list[Pair]
    left_out: int
    """Verses at the end of a chapter, or before a missing one, that are too few for another passage."""


def join_verses(pairs: Sequence[Pair], count: int) -> Passages:
    """Passages of `count` consecutive verses each, which share none, in the order of the text.

    >>> verses = [Pair("a", "x", "Ruth.1.1"), Pair("b", "y", "Ruth.1.2"), Pair("c", "z", "Ruth.2.1")]
    >>> join_verses(verses, 2)
    Passages(pairs=[Pair(source='a b', target='x y', id='Ruth.1.1-2')], left_out=1)

    Args:
        pairs: verses with ids such as Ruth.1.1, in the order of the text.
        count: verses of a passage.

    Raises:
        ConfigError: a count below 1, or pairs that are no verses.
    """
    if count < 1:
        raise ConfigError("join", "an integer >= 1", count)
    passages, verses, last = [], [], None
    for pair in pairs:
        chapter, verse = _place(pair)
        if last != (chapter, verse - 1):
            verses = []
        verses, last = [*verses, pair], (chapter, verse)
        if len(verses) == count:
            passages.append(_joined(verses, verse))
            verses = []
    return Passages(passages, len(pairs) - count * len(passages))


def _place(pair: Pair) -> tuple[str, int]:
    found = re.fullmatch(r"(.+\.\d+)\.(\d+)", pair.id)
    if not found:
        raise ConfigError("join", "a corpus of verses with ids such as Ruth.1.1 (corpus.name = 'bible')", repr(pair.id))
    return found[1], int(found[2])


def _joined(verses: Sequence[Pair], last: int) -> Pair:
    name = verses[0].id if len(verses) == 1 else f"{verses[0].id}-{last}"
    return Pair(" ".join(v.source for v in verses), " ".join(v.target for v in verses), name)
