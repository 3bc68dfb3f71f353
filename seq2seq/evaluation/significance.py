"""Whether one system is better than another on the same text: paired bootstrap (Koehn 2004, section 5).

Both systems are scored on the same resamples of the sentences.  With d the difference of the scores on the text and d_r that on
resample r, of R, the interval is that of the d_r, and the p-value for two sides, as sacrebleu has it (Riezler and Maxwell 2005),

    p = (1 + |{r : |d_r - mean d| >= |d|}|) / (R + 1).

Each test stands for itself: among twenty p-values below 0.05 one is expected without any difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from seq2seq.config import EvaluationConfig
from seq2seq.evaluation.bootstrap import Estimate
from seq2seq.evaluation.scores import bucket_label, by_length, sentence_statistics

ALL = "all"
"""The slice that holds every sentence."""


@dataclass(frozen=True)
class PairedTest:
    """Two systems on the same sentences."""

    first: str
    second: str
    slice: str
    """The source lengths, as `Bucket.label` writes them, or ALL."""
    n: int
    """Sentences."""
    difference: Estimate
    """Score of the first less that of the second, and its 95 % interval."""
    p_value: float | None
    """None for a single sentence."""


def paired_tests(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    source_lengths: Sequence[int],
    config: EvaluationConfig,
    *,
    metric: str = "bleu",
    target_language: str = "",
    seed: int = 0,
) -> tuple[PairedTest, ...]:
    """Every two systems, on all sentences and on each bucket of source lengths that has enough of them.

    Args:
        systems: by label the hypotheses, one for each reference.
        references, source_lengths, config, target_language, seed: as for `score`.
        metric: bleu, chrf or token_accuracy.

    Raises:
        ValueError: hypotheses of another number than references; the system is named.
    """
    for label, hypotheses in systems.items():
        if len(hypotheses) != len(references):
            raise ValueError(f"{label}: expected {len(references)} hypotheses, one for each reference, got {len(hypotheses)}")
    slices = {ALL: np.arange(len(references))}
    for low, high, indices in by_length(np.array(source_lengths), config.edges):
        if len(indices) and (metric != "bleu" or len(indices) >= config.min_bleu_sentences):
            slices[bucket_label(low, high)] = indices
    scores = {label: _scores(h, references, target_language, metric, slices, config, seed) for label, h in systems.items()}
    return tuple(
        _test(a, b, name, len(indices), scores[a][name], scores[b][name])
        for a, b in combinations(systems, 2)
        for name, indices in slices.items()
    )


def _scores(hypotheses, references, language: str, metric: str, slices, config: EvaluationConfig, seed: int):
    """By slice the score of all its sentences and those of its resamples."""
    statistics = sentence_statistics(hypotheses, references, language, [metric])[0][metric]
    parts = {name: statistics.take(indices) for name, indices in slices.items()}
    return {name: (part.value(), np.array(part.resampled(config.bootstrap_samples, seed))) for name, part in parts.items()}


def _test(first: str, second: str, name: str, n: int, a: tuple[float, np.ndarray], b: tuple[float, np.ndarray]) -> PairedTest:
    difference, resampled = a[0] - b[0], a[1] - b[1]
    if n < 2:
        return PairedTest(first, second, name, n, Estimate(difference, None, None), None)
    low, high = np.percentile(resampled, [2.5, 97.5])
    extreme = int((np.abs(resampled - resampled.mean()) >= abs(difference)).sum())
    estimate = Estimate(difference, float(low), float(high))
    return PairedTest(first, second, name, n, estimate, (1 + extreme) / (len(resampled) + 1))
