"""Percentile intervals of scores that are functions of sums over sentences (Efron 1979; Koehn 2004 for translation).

A resample of the n sentences with replacement needs no text, only the sum of the rows that were drawn.  The same number of
sentences and the same seed draw the same resamples, so two systems scored on one test set are resampled alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

_CHUNK = 100


@dataclass(frozen=True)
class Estimate:
    """A score from 0 to 100 and its 95 % interval; no interval for a single sentence."""

    value: float
    low: float | None
    high: float | None


class Statistics(NamedTuple):
    """Per-sentence rows whose sum determines a score."""

    rows: Int[np.ndarray, "n k"]
    compute: Callable[[list[int]], float]

    def take(self, indices: Int[np.ndarray, "m"]) -> Statistics:
        """The same of some sentences."""
        return Statistics(self.rows[indices], self.compute)

    def value(self) -> float:
        """The score of all sentences."""
        return float(self.compute(self.rows.sum(0).tolist()))

    def resampled(self, samples: int, seed: int) -> list[float]:
        """The score of each resample."""
        return [float(self.compute(sums)) for sums in _resampled_sums(self.rows, samples, seed)]

    def estimate(self, samples: int, seed: int) -> Estimate:
        """The score and its interval: the 2.5th and 97.5th percentile over the resamples."""
        if len(self.rows) < 2:
            return Estimate(self.value(), None, None)
        low, high = np.percentile(self.resampled(samples, seed), [2.5, 97.5])
        return Estimate(self.value(), float(low), float(high))


def _resampled_sums(rows: Int[np.ndarray, "n k"], samples: int, seed: int) -> Iterator[list[int]]:
    """Sums of the rows over `samples` resamples of the sentences with replacement.

    How often each sentence is drawn is multinomial, so a resample is one row of counts @ rows.
    """
    generator, n = np.random.default_rng(seed), len(rows)
    for start in range(0, samples, _CHUNK):
        counts = generator.multinomial(n, np.full(n, 1 / n), size=min(_CHUNK, samples - start))
        yield from (counts @ rows).tolist()
