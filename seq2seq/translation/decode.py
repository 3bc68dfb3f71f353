"""From ids to ids: decode sources of any length in batches of few static shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from flax import nnx

from seq2seq.batches import group_by_length, pad_rows
from seq2seq.config import BatchConfig, DecodingConfig, TransformerConfig
from seq2seq.decoding import Decoded, beam_search


class TranslationError(ValueError):
    """An input that cannot be translated: which one, what was expected, what came."""


class IdHypothesis(NamedTuple):
    """One output of a model, as ids."""

    ids: list[int]
    """`</s>` included if it is finished."""
    score: float
    log_prob: float
    finished: bool
    """False where the limit of length ended it."""
    weights: np.ndarray | None
    """[T S]: row t is the attention that produced ids[t], over the source ids; None unless asked for."""


ProgressCall = Callable[[int, int], object]
"""Called with the number of sentences done and the number of all."""


def decode_corpus(
    model: nnx.Module,
    encoded_sources: Sequence[Sequence[int]],
    decoding: DecodingConfig,
    batches: BatchConfig,
    *,
    with_weights: bool = False,
    progress: ProgressCall | None = None,
) -> list[list[IdHypothesis]]:
    """Decode sources of any length; the longest come first, so that a lack of memory shows at once.

    A source of n ids yields max_length_factor * n + max_length_offset pieces at most, both with `</s>`; learned positions
    lower this to the size of their table.  One batch holds batches.eval_tokens source tokens, copies for the beam included.

    Args:
        model: fulfils `EncoderDecoder`, in evaluation mode.
        encoded_sources: ids of each sentence, ending in `</s>`.

    Returns:
        For each source, in the order given, its n_best hypotheses, best first; fewer if there are no more.

    Raises:
        TranslationError: a source longer than the model can read, or log-probabilities that are NaN.
    """
    limit = position_limit(model)
    check_lengths(encoded_sources, range(1, len(encoded_sources) + 1), limit)
    results: list[list[IdHypothesis]] = [[] for _ in encoded_sources]
    order = sorted(range(len(encoded_sources)), key=lambda i: len(encoded_sources[i]))
    tokens = max(batches.eval_tokens // decoding.beam_size, 1)
    done = 0
    for places, rows, length in reversed(group_by_length([len(encoded_sources[i]) for i in order], batches.lengths, tokens)):
        indices = [order[place] for place in places]
        sources = [encoded_sources[i] for i in indices]
        decoded = _decode_batch(model, sources, rows, min(length, limit or length), decoding, limit, with_weights)
        for row, i in enumerate(indices):
            results[i] = list(_hypotheses(decoded, row, len(encoded_sources[i])))
        done += len(indices)
        if progress:
            progress(done, len(encoded_sources))
    return results


def position_limit(model: nnx.Module) -> int | None:
    """Most pieces on either side that `model` has positions for; None is without limit."""
    config = getattr(model, "config", None)
    learned = isinstance(config, TransformerConfig) and config.positions == "learned"
    return config.max_length if learned else None


def check_lengths(encoded_sources: Sequence[Sequence[int]], numbers: Sequence[int], limit: int | None) -> None:
    for number, ids in zip(numbers, encoded_sources, strict=True):
        if limit is not None and len(ids) > limit:
            expected = f"at most {limit} subwords with </s> (learned positions, model.max_length)"
            raise TranslationError(f"line {number}: expected {expected}, got {len(ids)}")


def _decode_batch(
    model: nnx.Module,
    sources: Sequence[Sequence[int]],
    rows: int,
    length: int,
    decoding: DecodingConfig,
    limit: int | None,
    with_weights: bool,
) -> Decoded:
    """One static shape: `rows` x `length`, the rows left over all PAD."""

    def longest_output(size: int) -> int:
        longest = math.floor(decoding.max_length_factor * size) + decoding.max_length_offset
        return min(longest, limit or longest)

    decoded = beam_search(
        model,
        pad_rows(sources, rows, length),
        np.array([longest_output(len(ids)) for ids in sources] + [1] * (rows - len(sources)), np.int32),
        beam_size=decoding.beam_size,
        length_penalty=decoding.length_penalty,
        alpha=decoding.alpha,
        n_best=decoding.n_best,
        max_length=longest_output(length),
        with_weights=with_weights,
    )
    decoded = Decoded(*(None if field is None else np.asarray(field) for field in decoded))
    if np.isnan(decoded.log_probs).any():
        raise TranslationError("model: expected finite log-probabilities, got NaN (its parameters have diverged)")
    return decoded


def _hypotheses(decoded: Decoded, row: int, source_length: int) -> Iterator[IdHypothesis]:
    for rank, score in enumerate(decoded.scores[row]):
        if score == -np.inf:
            return
        length = decoded.lengths[row, rank]
        weights = None if decoded.weights is None else decoded.weights[row, rank, :length, :source_length]
        ids = decoded.ids[row, rank, :length].tolist()
        yield IdHypothesis(ids, float(score), float(decoded.log_probs[row, rank]), bool(decoded.finished[row, rank]), weights)
