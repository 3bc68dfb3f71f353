"""Links between the words of a sentence and its translation, and the text files that hold them.

A line holds the links of one pair, apart by spaces, words counted from 0, the source word first:

    0-1 2-2      two links (the Pharaoh format)
    0-1 2p3      in a gold alignment "p" marks a link that is possible, "-" one that is sure (the talp format)

An empty line is a pair without links.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

Links = frozenset[tuple[int, int]]
"""Pairs (source word, target word), counted from 0."""


class Gold(NamedTuple):
    """What people have linked; every sure link is possible too (Och and Ney 2003)."""

    sure: Links
    possible: Links


class AlignmentError(ValueError):
    """Links that cannot be read, or do not fit the sentences: which file and line, what was expected, what came."""


def parse_gold(line: str, where: str = "line") -> Gold:
    """The links of one line; `where` opens the message of an error.

    >>> gold = parse_gold("0-0 1p2")
    >>> sorted(gold.sure), sorted(gold.possible)
    ([(0, 0)], [(0, 0), (1, 2)])
    """
    sure, possible = set(), set()
    for text in line.split():
        found = re.fullmatch(r"([0-9]+)([-p])([0-9]+)", text)
        if not found:
            raise AlignmentError(f"{where}: expected links such as 0-1, or 0p1 for a possible one, got {text!r}")
        link = (int(found[1]), int(found[3]))
        possible.add(link)
        if found[2] == "-":
            sure.add(link)
    return Gold(frozenset(sure), frozenset(possible))


def parse_links(line: str, where: str = "line") -> Links:
    """The links of one line of the Pharaoh format.

    >>> sorted(parse_links("1-0 0-2"))
    [(0, 2), (1, 0)]
    """
    gold = parse_gold(line, where)
    if gold.possible != gold.sure:
        raise AlignmentError(f"{where}: expected links such as 0-1, got a possible one (p), which only a gold alignment has")
    return gold.sure


def format_links(links: Iterable[tuple[int, int]]) -> str:
    """One line of the Pharaoh format.

    >>> format_links({(2, 1), (0, 0)})
    '0-0 2-1'
    """
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def swapped(links: Links) -> Links:
    """The same links from target to source."""
    return frozenset((target, source) for source, target in links)


def read_gold(path: str | Path, *, swap: bool = False) -> list[Gold]:
    """The gold alignment of each line of a file; `swap` where the file has the target word first."""
    gold = [parse_gold(line, f"{path}: line {number}") for number, line in enumerate(_lines(path), 1)]
    return [Gold(swapped(each.sure), swapped(each.possible)) for each in gold] if swap else gold


def read_links(path: str | Path) -> list[Links]:
    """The links of each line of a file in the Pharaoh format."""
    return [parse_links(line, f"{path}: line {number}") for number, line in enumerate(_lines(path), 1)]


def write_links(path: str | Path, links: Sequence[Iterable[tuple[int, int]]]) -> None:
    """A line for each pair."""
    Path(path).write_text("".join(f"{format_links(each)}\n" for each in links), encoding="utf-8")


def check_fit(gold: Sequence[Gold], sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]], name: str) -> None:
    """Raise AlignmentError unless there is a line for each pair of sentences and no link points beyond its words."""
    if not len(gold) == len(sources) == len(targets):
        raise AlignmentError(f"{name}: expected a line for each of {len(sources)} pairs of sentences, got {len(gold)}")
    for number, (each, source, target) in enumerate(zip(gold, sources, targets, strict=True), 1):
        for i, j in sorted(each.possible):
            if i >= len(source) or j >= len(target):
                words = f"{len(source)} source and {len(target)} target words"
                raise AlignmentError(f"{name}: line {number}: expected links within {words}, got {i}-{j}")


def _lines(path: str | Path) -> list[str]:
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    return lines[:-1] if lines[-1] == "" else lines
