"""Scores of translations: BLEU, chrF and token accuracy, overall and by source length, with bootstrap intervals.

BLEU (Papineni et al. 2002) and chrF (Popović 2015) are sacrebleu's.  Both are functions of sums over sentences: n-gram
matches, n-gram totals and lengths.  The plain sum of all rows gives the corpus score itself (held by a test), that of a
resample the score that its interval is made from (bootstrap.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from sacrebleu.metrics import CHRF

from seq2seq.bleu import UNSPACED, bleu_metric
from seq2seq.config import EvaluationConfig
from seq2seq.evaluation.bootstrap import Estimate, Statistics

METRICS = {"bleu": "BLEU", "chrf": "chrF", "token_accuracy": "token accuracy"}
_MAX_TOKENISED = 0.1


@dataclass(frozen=True)
class SliceScores:
    """Scores of one set of n sentences; a score that cannot be given is None."""

    n: int
    bleu: Estimate | None
    chrf: Estimate | None
    token_accuracy: Estimate | None
    length_ratio: float | None
    """Words of the hypotheses / words of the references."""
    empty: float | None
    """Share of hypotheses without a word."""
    unfinished: float | None
    """Share of hypotheses cut at the length limit, without `</s>`."""
    mean_source_length: float | None


@dataclass(frozen=True)
class Bucket:
    """Scores of the sentences with `low` to `high` source words, both included; `high` None is open-ended."""

    low: int
    high: int | None
    scores: SliceScores

    @property
    def label(self) -> str:
        """The range as text.

        >>> nothing = SliceScores(0, None, None, None, None, None, None, None)
        >>> Bucket(11, 20, nothing).label, Bucket(5, 5, nothing).label, Bucket(71, None, nothing).label
        ('11–20', '5', '71+')
        """
        return bucket_label(self.low, self.high)


def bucket_label(low: int, high: int | None) -> str:
    """The range of lengths as text; None is open-ended."""
    if high is None:
        return f"{low}+"
    return str(low) if low == high else f"{low}–{high}"


@dataclass(frozen=True)
class Scores:
    """What `score` returns."""

    headline: str
    """The metric to look at: a key of METRICS."""
    overall: SliceScores
    buckets: tuple[Bucket, ...]
    signatures: dict[str, str]
    length_unit: str
    """What source lengths count: words, characters for a language written without spaces, or subwords."""
    bootstrap_samples: int
    bootstrap_seed: int
    min_bleu_sentences: int
    warnings: tuple[str, ...]


def word_list(text: str, language: str = "") -> list[str]:
    """Words between white space; characters for a language written without spaces.

    >>> word_list("a b  c"), word_list("你 好", "zh")
    (['a', 'b', 'c'], ['你', '好'])
    """
    return list("".join(text.split())) if language in UNSPACED else text.split()


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    source_lengths: Sequence[int],
    config: EvaluationConfig,
    *,
    finished: Sequence[bool] | None = None,
    length_unit: str = "words",
    target_language: str = "",
    token_accuracy: bool = False,
    seed: int = 0,
) -> Scores:
    """Score detokenised hypotheses against untouched references, overall and by source length.

    Args:
        hypotheses: one translation for each sentence.
        references: the reference translations, in the same order.
        source_lengths: of each source sentence (see `word_list`).
        config: bucket edges, number of resamples, fewest sentences for BLEU.
        finished: whether each hypothesis ended in `</s>`; None when that is not known.
        length_unit: what they count.
        target_language: code that decides what target words are and sacrebleu's tokeniser.
        token_accuracy: also score positions that agree / longer of the two lengths, and make that the headline.
        seed: of the bootstrap.

    Raises:
        ValueError: no sentences, or unequal counts (both are named).
    """
    _check_counts(hypotheses, references, source_lengths, finished)
    metrics = ("bleu", "chrf", "token_accuracy") if token_accuracy else ("bleu", "chrf")
    statistics, signatures = sentence_statistics(hypotheses, references, target_language, metrics)
    table = _Table(
        statistics,
        np.array([len(word_list(text, target_language)) for text in hypotheses]),
        np.array([len(word_list(text, target_language)) for text in references]),
        np.array(source_lengths),
        None if finished is None else np.array(finished),
    )
    everything = np.arange(len(hypotheses))
    overall = _slice_scores(table, everything, config, seed, bleu_from=1)
    buckets = tuple(
        Bucket(low, high, _slice_scores(table, indices, config, seed, bleu_from=config.min_bleu_sentences))
        for low, high, indices in by_length(table.source_lengths, config.edges)
    )
    return Scores(
        headline="token_accuracy" if token_accuracy else "bleu",
        overall=overall,
        buckets=buckets,
        signatures=signatures,
        length_unit=length_unit,
        bootstrap_samples=config.bootstrap_samples,
        bootstrap_seed=seed,
        min_bleu_sentences=config.min_bleu_sentences,
        warnings=tuple(_tokenised_warnings(hypotheses, references)),
    )


class _Table(NamedTuple):
    """Everything about each sentence that the scores are made from."""

    statistics: dict[str, Statistics]
    hypothesis_lengths: np.ndarray
    reference_lengths: np.ndarray
    source_lengths: np.ndarray
    finished: np.ndarray | None


def _check_counts(
    hypotheses: Sequence[str], references: Sequence[str], source_lengths: Sequence[int], finished: Sequence[bool] | None
) -> None:
    if len(hypotheses) != len(references):
        raise ValueError(f"hypotheses and references: expected equal counts, got {len(hypotheses)} and {len(references)}")
    if len(source_lengths) != len(references):
        raise ValueError(f"source_lengths: expected {len(references)}, one for each reference, got {len(source_lengths)}")
    if finished is not None and len(finished) != len(references):
        raise ValueError(f"finished: expected {len(references)}, one for each reference, got {len(finished)}")
    if not references:
        raise ValueError("hypotheses and references: expected at least one sentence, got none")


def sentence_statistics(
    hypotheses: Sequence[str], references: Sequence[str], language: str, metrics: Sequence[str]
) -> tuple[dict[str, Statistics], dict[str, str]]:
    """The rows that each metric is made from, one for each sentence, and the signature of the metric."""
    statistics, signatures = {}, {}
    for name in metrics:
        if name == "token_accuracy":
            rows = [agreement(h.split(), r.split()) for h, r in zip(hypotheses, references, strict=True)]
            compute, signature = _accuracy, "positions that agree / longer of the two lengths|words"
        else:
            metric = CHRF() if name == "chrf" else bleu_metric(language)
            rows = metric._extract_corpus_statistics(list(hypotheses), [list(references)])
            compute = lambda sums, metric=metric: metric._compute_score_from_stats(sums).score  # noqa: E731
            signature = metric.get_signature().format()
        statistics[name], signatures[name] = Statistics(np.array(rows, dtype=np.int64), compute), signature
    return statistics, signatures


def agreement(hypothesis: Sequence[str], reference: Sequence[str]) -> tuple[int, int]:
    """Positions that agree, and the longer of the two lengths.

    >>> agreement(["a", "b"], ["a", "c", "b"])
    (1, 3)
    """
    return sum(h == r for h, r in zip(hypothesis, reference, strict=False)), max(len(hypothesis), len(reference))


def _accuracy(sums: list[int]) -> float:
    agree, total = sums
    return 100.0 * agree / total if total else 100.0


def by_length(lengths: np.ndarray, edges: Sequence[int]) -> Iterator[tuple[int, int | None, np.ndarray]]:
    """(low, high, indices) of each bucket; lengths below the first edge, 0 included, are in the first one."""
    bucket = np.searchsorted(np.array(edges), lengths, side="left")
    lows, highs = (1, *(edge + 1 for edge in edges)), (*edges, None)
    for index, (low, high) in enumerate(zip(lows, highs, strict=True)):
        yield low, high, np.flatnonzero(bucket == index)


def _slice_scores(table: _Table, indices: np.ndarray, config: EvaluationConfig, seed: int, bleu_from: int) -> SliceScores:
    n = len(indices)
    if n == 0:
        return SliceScores(0, None, None, None, None, None, None, None)
    shown = {name: s for name, s in table.statistics.items() if name != "bleu" or n >= bleu_from}
    estimates = {name: s.take(indices).estimate(config.bootstrap_samples, seed) for name, s in shown.items()}
    reference_words = int(table.reference_lengths[indices].sum())
    hypothesis_lengths = table.hypothesis_lengths[indices]
    return SliceScores(
        n=n,
        bleu=estimates.get("bleu"),
        chrf=estimates["chrf"],
        token_accuracy=estimates.get("token_accuracy"),
        length_ratio=int(hypothesis_lengths.sum()) / reference_words if reference_words else None,
        empty=float((hypothesis_lengths == 0).mean()),
        unfinished=None if table.finished is None else float((~table.finished[indices]).mean()),
        mean_source_length=float(table.source_lengths[indices].mean()),
    )


def _tokenised_warnings(hypotheses: Sequence[str], references: Sequence[str]) -> Iterator[str]:
    shares = [sum(line.endswith(" .") for line in lines) / len(lines) for lines in (hypotheses, references)]
    if shares[0] > _MAX_TOKENISED:
        yield (
            f"{shares[0]:.0%} of the hypotheses (and {shares[1]:.0%} of the references) end in ' .': this is tokenised text, "
            "its BLEU cannot be compared with that of detokenised text"
        )
