"""Precision, recall and alignment error rate of links against a gold alignment (Och and Ney 2003, section 6).

With A the links, S the sure and P the possible links of the gold alignment, S within P, all pairs of sentences together:

    precision = |A & P| / |A|      recall = |A & S| / |S|      AER = 1 - (|A & S| + |A & P|) / (|A| + |S|)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seq2seq.alignment.links import AlignmentError, Gold, Links
from seq2seq.evaluation.bootstrap import Estimate, Statistics


@dataclass(frozen=True)
class AlignmentScores:
    """Percentages with 95 % intervals from a bootstrap of the pairs of sentences."""

    aer: Estimate
    precision: Estimate
    recall: Estimate
    links: int
    """|A|."""
    pairs: int
    """Pairs of sentences."""


def score_alignment(links: Sequence[Links], gold: Sequence[Gold], *, samples: int = 1000, seed: int = 0) -> AlignmentScores:
    """Scores of `links`, one set for each pair of sentences.

    >>> gold = [Gold(frozenset({(0, 0)}), frozenset({(0, 0), (1, 1)}))]
    >>> scores = score_alignment([frozenset({(0, 0), (1, 1), (2, 2)})], gold)
    >>> scores.precision.value, scores.recall.value, scores.aer.value
    (66.66666666666667, 100.0, 25.0)

    Raises:
        AlignmentError: another number of pairs, none, or a gold alignment without any sure link.
    """
    if len(links) != len(gold):
        raise AlignmentError(f"links: expected a set for each of {len(gold)} pairs of sentences, got {len(links)}")
    counts = [(len(a & g.sure), len(a & g.possible), len(a), len(g.sure)) for a, g in zip(links, gold, strict=True)]
    rows = np.array(counts, dtype=np.int64).reshape(-1, 4)
    if not rows[:, 3].sum():
        raise AlignmentError(f"gold: expected sure links, got {len(gold)} pairs of sentences without any")
    measures = {"aer": _error_rate, "precision": _precision, "recall": _recall}
    estimates = {name: Statistics(rows, compute).estimate(samples, seed) for name, compute in measures.items()}
    return AlignmentScores(**estimates, links=int(rows[:, 2].sum()), pairs=len(rows))


def _error_rate(sums: Sequence[int]) -> float:
    in_sure, in_possible, links, sure = sums
    return 100.0 * (1 - (in_sure + in_possible) / (links + sure)) if links + sure else 0.0


def _precision(sums: Sequence[int]) -> float:
    _, in_possible, links, _ = sums
    return 100.0 * in_possible / links if links else 100.0


def _recall(sums: Sequence[int]) -> float:
    in_sure, _, _, sure = sums
    return 100.0 * in_sure / sure if sure else 100.0
