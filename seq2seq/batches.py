"""Batches of few static shapes, in an order that can be saved and restored.

Pairs are sorted into buckets by the longer of their two sides.  A bucket of length L makes batches of ``tokens // L``
rows, L wide on both sides, so a model is compiled once for each bucket.  Every epoch shows each pair exactly once, in a
new order within buckets and of batches; the last batch of a bucket is filled up with rows of PAD, which weigh nothing.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import grain
import numpy as np
from jaxtyping import Int

from seq2seq.config import BatchConfig, ConfigError
from seq2seq.corpora import Pair
from seq2seq.tokenizer import BOS, EOS, PAD, Tokenizers


class Batch(NamedTuple):
    """Padded ids of a batch of pairs.

    ``target_in`` opens with BOS and ``target_out`` is the same one step later, ended by EOS; ``source`` ends in EOS.
    """

    source: Int[np.ndarray, "B S"]
    target_in: Int[np.ndarray, "B T"]
    target_out: Int[np.ndarray, "B T"]


class EncodedPair(NamedTuple):
    """Ids of a pair, EOS included on both sides."""

    source: list[int]
    target: list[int]

    @property
    def length(self) -> int:
        """Length of the longer side."""
        return max(len(self.source), len(self.target))


def encode_pairs(pairs: Iterable[Pair], tokenizers: Tokenizers) -> list[EncodedPair]:
    """Ids of each pair, in order."""
    encode_source, encode_target = tokenizers.source.encode, tokenizers.target.encode
    return [EncodedPair([*encode_source(p.source), EOS], [*encode_target(p.target), EOS]) for p in pairs]


def pad_rows(rows: Sequence[Sequence[int]], num_rows: int, length: int) -> Int[np.ndarray, "B L"]:
    """`rows` as an array of `num_rows` x `length`, PAD to the right and below.

    >>> pad_rows([[5, 6], [7]], 3, 3)
    array([[5, 6, 0], [7, 0, 0], [0, 0, 0]], dtype=int32)
    """
    padded = np.full((num_rows, length), PAD, np.int32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def make_batch(pairs: Sequence[EncodedPair], num_rows: int, length: int) -> Batch:
    """`pairs` as one batch of `num_rows` x `length`."""
    target_in = [[BOS, *pair.target[:-1]] for pair in pairs]
    sides = ([pair.source for pair in pairs], target_in, [pair.target for pair in pairs])
    return Batch(*(pad_rows(side, num_rows, length) for side in sides))


class TrainBatches:
    """Endless training batches.

    ``iter()`` gives a grain iterator: ``next(iterator)`` is a Batch, ``iterator.get_state()`` a small dictionary for JSON,
    and after ``iterator.set_state(state)`` the same batches follow as did when the state was taken.

    Attributes:
        batches_per_epoch: number of batches that show every pair once.
        shapes: the (rows, length) that occur, one for each bucket in use.
        left_out: pairs that fit no bucket, by reason.
    """

    def __init__(self, encoded: Sequence[EncodedPair], config: BatchConfig, seed: int):
        """Raises ConfigError if fewer than half of the pairs fit the longest bucket."""
        longest = config.lengths[-1]
        fitting = [pair for pair in encoded if pair.length <= longest]
        self.left_out: dict[str, int] = {}
        if len(fitting) < len(encoded):
            self.left_out[f"longer than {longest} subwords"] = len(encoded) - len(fitting)
        if not fitting or 2 * len(fitting) < len(encoded):
            got = f"{longest}, which holds {len(fitting)} of {len(encoded)}"
            raise ConfigError("batches.lengths", "a longest bucket that holds at least half of the training pairs", got)
        buckets: dict[int, list[EncodedPair]] = defaultdict(list)
        for pair in fitting:
            buckets[bucket_length(pair.length, config.lengths)].append(pair)
        self.shapes = {(config.tokens // length, length) for length in buckets}
        self._dataset, self.batches_per_epoch = _endless_dataset(buckets, config.tokens, seed)

    def __iter__(self) -> grain.DatasetIterator[Batch]:
        """A new iterator, from the first batch."""
        # Collating takes microseconds; without threads nothing can be left running, or run in another order.
        options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        return iter(self._dataset.to_iter_dataset(options))


def _endless_dataset(buckets: dict[int, list[EncodedPair]], tokens: int, seed: int) -> tuple[grain.MapDataset, int]:
    """The batches of all buckets in shuffled order, epoch after epoch, and how many make an epoch."""
    order_seed, *bucket_seeds = (int(s) for s in np.random.SeedSequence(seed).generate_state(len(buckets) + 1))
    datasets: list[grain.MapDataset] = []
    for (length, pairs), bucket_seed in zip(sorted(buckets.items()), bucket_seeds, strict=True):
        rows = tokens // length
        collate = partial(make_batch, num_rows=rows, length=length)
        datasets.append(grain.MapDataset.source(pairs).shuffle(seed=bucket_seed).batch(rows, batch_fn=collate))
    plan = [(number, i) for number, dataset in enumerate(datasets) for i in range(len(dataset))]

    def batch_at(position: int, entry: tuple[int, int]) -> Batch:
        # A grain data set reads past its end as its next epoch, newly shuffled.
        dataset, i = datasets[entry[0]], entry[1]
        return dataset[position // len(plan) * len(dataset) + i]

    return grain.MapDataset.source(plan).shuffle(seed=order_seed).repeat().map_with_index(batch_at), len(plan)


def bucket_length(length: int, lengths: Sequence[int]) -> int:
    """The shortest bucket that holds `length`; beyond the last bucket its doubles follow.

    >>> [bucket_length(n, (16, 24)) for n in (1, 16, 17, 25, 49)]
    [16, 16, 24, 48, 96]
    """
    place = bisect.bisect_left(lengths, length)
    if place < len(lengths):
        return lengths[place]
    longer = lengths[-1]
    while longer < length:
        longer *= 2
    return longer


def group_by_length(sizes: Sequence[int], lengths: Sequence[int], tokens: int) -> list[tuple[list[int], int, int]]:
    """Sort items of the given sizes into batches of few shapes, every item exactly once.

    Returns:
        (indices, rows, length) of each batch, shortest first, one number of rows for each length.  A bucket with fewer items
        than ``tokens // length`` has the next power of two as its rows, so few inputs cost little.  Rows that a bucket leaves
        over hold the longest of the shorter items, so only the first batch may have fewer indices than rows.
    """
    bucket_of = [bucket_length(size, lengths) for size in sizes]
    in_bucket, left, groups = Counter(bucket_of), sorted(range(len(sizes)), key=lambda i: sizes[i]), []
    while left:
        length = bucket_of[left[-1]]
        rows = min(max(tokens // length, 1), 1 << (in_bucket[length] - 1).bit_length())
        groups.append((left[-rows:], rows, length))
        del left[-rows:]
    return groups[::-1]


def eval_batches(encoded: Sequence[EncodedPair], config: BatchConfig) -> list[tuple[list[int], Batch]]:
    """Every pair exactly once, none left out however long, with the places of the pairs in `encoded`.

    Row i of a batch is pair ``indices[i]``; rows beyond ``len(indices)`` are PAD.
    """
    groups = group_by_length([pair.length for pair in encoded], config.lengths, config.eval_tokens)
    return [(indices, make_batch([encoded[i] for i in indices], rows, length)) for indices, rows, length in groups]
