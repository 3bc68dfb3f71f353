"""From ids to ids: decode sources of any length in batches of few static shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from flax import nnx

from seq2seq.batches import group_by_length, pad_rows
from seq2seq.config import BatchConfig, DecodingConfig, TransformerConfig
from seq2seq.decoding import Decoded, Ensemble, beam_search, sample
from seq2seq.translation.at_once import call_at_once, how_many_at_once


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
    prefixes: Sequence[Sequence[int]] | None = None,
    numbers: Sequence[int] | None = None,
    with_weights: bool = False,
    progress: ProgressCall | None = None,
) -> list[list[IdHypothesis]]:
    """Decode sources of any length; the longest come first, so that a lack of memory shows at once.

    On a CPU several batches are decoded at once (`how_many_at_once`), in threads of their own: what JAX is told by a `with`
    does not reach them.

    A source of n ids yields max_length_factor * n + max_length_offset pieces at most, both with `</s>`; learned positions
    lower this to the size of their table, and a prefix raises it to leave room for `</s>`.  One batch holds
    batches.eval_tokens source tokens, copies for the hypotheses included.

    Args:
        model: fulfils `EncoderDecoder`, in evaluation mode.
        encoded_sources: ids of each sentence, ending in `</s>`.
        decoding: the search and its options.
        batches: bucket lengths and eval_tokens.
        prefixes: first ids of each output.
        numbers: set the draws of each source apart, and name it in an error; 1, 2, ... if not given.
        with_weights: give attention weights too.
        progress: called before the first batch, with 0 of all, and after each.

    Returns:
        For each source, in the order given, its n_best hypotheses, best first; fewer if there are no more.

    Raises:
        TranslationError: a source or prefix longer than the model can hold, or log-probabilities that are NaN.
    """
    limit = position_limit(model)
    prefixes = [()] * len(encoded_sources) if prefixes is None else prefixes
    numbers = range(1, len(encoded_sources) + 1) if numbers is None else numbers
    check_lengths(encoded_sources, prefixes, numbers, limit)
    results: list[list[IdHypothesis]] = [[] for _ in encoded_sources]
    copies = decoding.n_best if decoding.search == "sample" else decoding.beam_size
    tokens = max(batches.eval_tokens // copies, 1)
    groups = group_by_length([len(ids) for ids in encoded_sources], few_lengths(batches.lengths), tokens)[::-1]
    prepared = [
        _make_batch(
            [encoded_sources[i] for i in indices],
            [prefixes[i] for i in indices],
            [numbers[i] for i in indices],
            rows,
            min(length, limit or length),
            decoding,
            limit,
        )
        for indices, rows, length in groups
    ]
    decode = partial(_decode_batch, model, decoding=decoding, with_weights=with_weights)
    done = 0
    if progress:
        progress(done, len(encoded_sources))
    for place, decoded in call_at_once(decode, prepared, [batch.shape for batch in prepared], how_many_at_once()):
        indices = groups[place][0]
        for row, i in enumerate(indices):
            results[i] = list(_hypotheses(decoded, row, len(encoded_sources[i])))
        done += len(indices)
        if progress:
            progress(done, len(encoded_sources))
    return results


def few_lengths(lengths: Sequence[int], apart: float = 1.4) -> list[int]:
    """Every bucket length that is at least `apart` times shorter than the next one kept, from the longest down.

    Sentences are decoded in the order of their length, so that a wide bucket costs little, and each has its own programs.

    >>> few_lengths([10, 12, 14, 16, 18, 20, 24, 28, 32, 48])
    [10, 14, 20, 32, 48]
    """
    kept = [lengths[-1]]
    for length in reversed(lengths[:-1]):
        if apart * length <= kept[0]:
            kept.insert(0, length)
    return kept


def position_limit(model: nnx.Module) -> int | None:
    """Most pieces on either side that `model` has positions for; None is without limit."""
    if isinstance(model, Ensemble):
        return min((limit for limit in map(position_limit, model.members) if limit is not None), default=None)
    config = getattr(model, "config", None)
    learned = isinstance(config, TransformerConfig) and config.positions == "learned"
    return config.max_length if learned else None


def check_lengths(
    encoded_sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]], numbers: Sequence[int], limit: int | None
) -> None:
    if limit is None:
        return
    expected = f"subwords with </s> (learned positions, model.max_length = {limit})"
    for number, ids, prefix in zip(numbers, encoded_sources, prefixes, strict=True):
        if len(ids) > limit:
            raise TranslationError(f"line {number}: expected at most {limit} {expected}, got {len(ids)}")
        if len(prefix) >= limit:
            raise TranslationError(f"prefix of line {number}: expected fewer than {limit} {expected}, got {len(prefix)}")


class _Batch(NamedTuple):
    """One static shape; the rows left over are all PAD."""

    source: np.ndarray  # [B S]
    numbers: np.ndarray  # [B]
    min_lengths: np.ndarray | None  # [B]
    max_lengths: np.ndarray  # [B]
    prefixes: np.ndarray | None  # [B P]
    max_length: int

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Batches of one shape run the same program."""
        return (*self.source.shape, self.max_length, None if self.prefixes is None else self.prefixes.shape[1])


def _make_batch(
    sources: Sequence[Sequence[int]],
    prefixes: Sequence[Sequence[int]],
    numbers: Sequence[int],
    rows: int,
    length: int,
    decoding: DecodingConfig,
    limit: int | None,
) -> _Batch:
    d, left_over = decoding, rows - len(sources)

    def longest(size: int) -> int:
        allowed = math.floor(d.max_length_factor * size) + d.max_length_offset
        return min(allowed, limit or allowed)

    def shortest(size: int) -> int:
        return max(math.floor(d.min_length_factor * size) + d.min_length_offset, 1)

    most = [max(longest(len(ids)), len(prefix) + 1) for ids, prefix in zip(sources, prefixes, strict=True)]
    least = [min(shortest(len(ids)), longest_of) for ids, longest_of in zip(sources, most, strict=True)]
    longest_prefix = max(map(len, prefixes))
    # A long prefix makes a new shape: in powers of two there are few.
    room = 1 << (max(most) - 1).bit_length() if max(most) > longest(length) else longest(length)
    return _Batch(
        pad_rows(sources, rows, length),
        np.array([*numbers, *[0] * left_over], np.int32),
        np.array(least + [1] * left_over, np.int32) if d.min_length_factor or d.min_length_offset else None,
        np.array(most + [1] * left_over, np.int32),
        pad_rows(prefixes, rows, 1 << (longest_prefix - 1).bit_length()) if longest_prefix else None,
        min(room, limit or room),
    )


def _decode_batch(model: nnx.Module, batch: _Batch, decoding: DecodingConfig, with_weights: bool) -> Decoded:
    d = decoding
    options = {
        "length_penalty": d.length_penalty,
        "alpha": d.alpha,
        "n_best": d.n_best,
        "max_length": batch.max_length,
        "min_lengths": batch.min_lengths,
        "prefixes": batch.prefixes,
        "no_repeat_ngram": d.no_repeat_ngram,
        "with_weights": with_weights,
    }
    if d.search == "sample":
        options |= {"seed": d.seed, "numbers": batch.numbers, "temperature": d.temperature, "top_k": d.top_k, "top_p": d.top_p}
        decoded = sample(model, batch.source, batch.max_lengths, **options)
    else:
        options |= {"beam_size": d.beam_size, "coverage": d.coverage_penalty, "patience": d.patience}
        decoded = beam_search(model, batch.source, batch.max_lengths, **options)
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
