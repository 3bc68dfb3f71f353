"""Forced scoring of pairs of sentences: log-probabilities of given translations, in batches of few static shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from flax import nnx

from seq2seq.batches import EncodedPair, eval_batches
from seq2seq.config import BatchConfig
from seq2seq.decoding import score_targets
from seq2seq.translation.decode import ProgressCall, TranslationError, position_limit


class ScoredPair(NamedTuple):
    """How likely a model finds one translation."""

    log_prob: float
    """log p(y | x), natural logarithm: the sum over pieces."""
    pieces: list[str]
    """What was scored, `</s>` included."""
    log_probs: list[float]
    """log p(y_t | y_<t, x) of each piece."""


def score_pairs(
    model: nnx.Module, pairs: Sequence[EncodedPair], batches: BatchConfig, *, progress: ProgressCall | None = None
) -> list[list[float]]:
    """The log-probability of each target piece of each pair, in the order given.

    Raises:
        TranslationError: a side longer than the model can hold, or log-probabilities that are NaN.
    """
    limit = position_limit(model)
    for number, pair in enumerate(pairs, 1):
        if limit is not None and pair.length > limit:
            expected = f"at most {limit} subwords with </s> on both sides (learned positions, model.max_length)"
            raise TranslationError(f"line {number}: expected {expected}, got {pair.length}")
    results: list[list[float]] = [[] for _ in pairs]
    done = 0
    if progress:
        progress(done, len(pairs))
    for indices, batch in reversed(eval_batches(pairs, batches)):
        batch = type(batch)(*(side[:, :limit] for side in batch))
        log_probs = np.asarray(score_targets(model, *batch))
        if np.isnan(log_probs).any():
            raise TranslationError("model: expected finite log-probabilities, got NaN (its parameters have diverged)")
        for row, i in enumerate(indices):
            results[i] = log_probs[row, : len(pairs[i].target)].tolist()
        done += len(indices)
        if progress:
            progress(done, len(pairs))
    return results
