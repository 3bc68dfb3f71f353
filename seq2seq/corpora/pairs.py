"""Pairs of sentences, and the three-part corpora made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Pair(NamedTuple):
    """A sentence, its translation and where it stands in the corpus."""

    source: str
    target: str
    id: str


@dataclass(frozen=True)
class ParallelCorpus:
    """Training, development and test pairs, with the report of how they came about."""

    train: Sequence[Pair]
    dev: Sequence[Pair]
    test: Sequence[Pair]
    report: dict[str, Any] = field(default_factory=dict)

    def splits(self) -> Iterator[tuple[str, Sequence[Pair]]]:
        """("train", pairs), ("dev", pairs), ("test", pairs)."""
        yield from (("train", self.train), ("dev", self.dev), ("test", self.test))


@dataclass
class Built:
    """What a recipe returns: the splits, and how many pairs it read and dropped, by reason."""

    train: list[Pair]
    dev: list[Pair]
    test: list[Pair]
    read: int
    dropped: Counter[str]
    notes: dict[str, Any] = field(default_factory=dict)


def drop_blank(pairs: Iterable[Pair], dropped: Counter[str]) -> list[Pair]:
    """Pairs with text on both sides; the others go whole and are counted."""
    kept = []
    for pair in pairs:
        if pair.source and pair.target:
            kept.append(pair)
        else:
            dropped["blank on one side or both"] += 1
    return kept


def length_histogram(texts: Iterable[str], width: int = 10, last: int = 71) -> dict[str, int]:
    """Number of texts by whitespace words, in bins 1-10, 11-20, ..., 61-70, 71+.

    >>> length_histogram(["a b c", "d " * 12])
    {'1-10': 1, '11-20': 1}
    """
    counts = Counter(min((max(len(text.split()), 1) - 1) // width, (last - 1) // width) for text in texts)
    names = {b: f"{b * width + 1}-{(b + 1) * width}" if b * width + 1 < last else f"{last}+" for b in counts}
    return {names[b]: counts[b] for b in sorted(counts)}
