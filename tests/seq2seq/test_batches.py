"""Batches: every pair once, few shapes, an order that can be saved and restored."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.batches import Batch, EncodedPair, TrainBatches, bucket_length, encode_pairs, eval_batches, group_by_length
from seq2seq.config import BatchConfig, ConfigError, TokenizerConfig
from seq2seq.corpora import Pair
from seq2seq.tokenizer import BOS, EOS, PAD, train_tokenizers

CONFIG = BatchConfig(tokens=48, lengths=(4, 8, 12), eval_tokens=48)
sizes = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=40)


def encoded(pair_sizes):
    """Pairs of the given lengths that can be told apart: the first source id is the number of the pair."""
    return [EncodedPair([10 + i] * (s - 1) + [EOS], [1000 + i] * (t - 1) + [EOS]) for i, (s, t) in enumerate(pair_sizes)]


def rows(batch):
    """(source ids, target ids) of the rows that are no padding."""
    for source, target in zip(batch.source, batch.target_out, strict=True):
        if source.any():
            yield tuple(source[source != PAD].tolist()), tuple(target[target != PAD].tolist())


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))


@settings(max_examples=12, deadline=None)
@given(pair_sizes=sizes, seed=st.integers(0, 2**40))
def test_each_epoch_shows_every_pair_once_in_few_shapes(pair_sizes, seed):
    pairs = encoded(pair_sizes)
    batches = TrainBatches(pairs, CONFIG, seed)
    iterator = iter(batches)
    wanted = Counter((tuple(p.source), tuple(p.target)) for p in pairs)
    for _ in range(2):
        epoch = take(iterator, batches.batches_per_epoch)
        assert Counter(row for batch in epoch for row in rows(batch)) == wanted
        assert {batch.source.shape for batch in epoch} == batches.shapes
    assert len(batches.shapes) <= len(CONFIG.lengths)
    assert all(count == CONFIG.tokens // length and length in CONFIG.lengths for count, length in batches.shapes)
    assert batches.left_out == {}


@settings(max_examples=15, deadline=None)
@given(pair_sizes=sizes)
def test_rows_are_shifted_and_padded(pair_sizes):
    batches = TrainBatches(encoded(pair_sizes), CONFIG, 0)
    for batch in take(iter(batches), batches.batches_per_epoch):
        assert isinstance(batch, Batch)
        assert batch.source.shape == batch.target_in.shape == batch.target_out.shape
        assert {array.dtype for array in batch} == {np.dtype(np.int32)}
        for source, target_in, target_out in zip(*batch, strict=True):
            if not source.any():
                assert not target_in.any()
                assert not target_out.any()
                continue
            n = int((target_out != PAD).sum())
            assert target_in[0] == BOS
            assert target_out[n - 1] == EOS
            assert target_in[1:n].tolist() == target_out[: n - 1].tolist()
            assert not target_in[n:].any()
            assert source[source != PAD][-1] == EOS


def test_padding_rows_stand_below_and_only_in_the_last_batch_of_a_bucket():
    batches = TrainBatches(encoded([(4, 4)] * 13), CONFIG, 0)
    assert batches.batches_per_epoch == 2
    filled = [sum(bool(row.any()) for row in batch.source) for batch in take(iter(batches), 2)]
    assert sorted(filled) == [1, 12]


def test_the_longer_side_picks_the_bucket():
    (batch,) = take(iter(TrainBatches(encoded([(2, 9)]), CONFIG, 0)), 1)
    assert batch.source.shape == (4, 12)


def test_order_is_new_each_epoch_follows_the_seed_and_mixes_buckets():
    pairs = encoded([(n % 12 + 1, 3) for n in range(200)])

    def order(seed, epochs=1):
        batches = TrainBatches(pairs, CONFIG, seed)
        return [
            [list(rows(b)) for b in epoch] for epoch in [take(it, batches.batches_per_epoch) for it in [iter(batches)] * epochs]
        ]

    first, second = order(0, epochs=2)
    assert first != second
    assert sorted(map(sorted, first)) != sorted(map(sorted, second))  # other batches, not only another order of them
    assert [first] == order(0)
    assert [first] != order(1)
    lengths = [max(len(s) for s, _ in batch) for batch in first]
    assert lengths != sorted(lengths)
    assert lengths != sorted(lengths, reverse=True)


def test_seed_1_is_not_seed_0_one_epoch_later():
    pairs = encoded([(3, 3)] * 60)
    one, zero = TrainBatches(pairs, CONFIG, 1), TrainBatches(pairs, CONFIG, 0)
    epoch = zero.batches_per_epoch
    assert not same(take(iter(zero), 2 * epoch)[epoch:], take(iter(one), epoch))


@pytest.mark.parametrize("before", [0, 1, 5, 17])
def test_a_saved_state_continues_exactly(before):
    pairs = encoded([(n % 12 + 1, n % 7 + 1) for n in range(60)])
    batches = TrainBatches(pairs, CONFIG, 3)
    iterator = iter(batches)
    take(iterator, before)
    state = json.loads(json.dumps(iterator.get_state()))
    wanted = take(iterator, 2 * batches.batches_per_epoch + 1)  # over the end of the epoch and beyond
    fresh = iter(TrainBatches(pairs, CONFIG, 3))
    fresh.set_state(state)
    assert fresh.get_state() == state
    assert same(take(fresh, len(wanted)), wanted)
    iterator.set_state(state)
    assert same(take(iterator, len(wanted)), wanted)


def test_too_long_pairs_are_left_out_and_counted():
    batches = TrainBatches(encoded([(3, 3)] * 3 + [(13, 1), (1, 20)]), CONFIG, 0)
    assert batches.left_out == {"longer than 12 subwords": 2}
    assert sum(len(list(rows(b))) for b in take(iter(batches), batches.batches_per_epoch)) == 3


@pytest.mark.parametrize("pair_sizes", [[(3, 3), (13, 1), (13, 2)], []])
def test_training_on_less_than_half_fails(pair_sizes):
    with pytest.raises(ConfigError, match=r"batches.lengths: expected .*at least half.*, got 12, which holds \d of \d"):
        TrainBatches(encoded(pair_sizes), CONFIG, 0)


@settings(max_examples=25, deadline=None)
@given(pair_sizes=st.lists(st.tuples(st.integers(1, 70), st.integers(1, 70)), max_size=40))
def test_evaluation_holds_every_pair_once_however_long(pair_sizes):
    pairs = encoded(pair_sizes)
    batches = eval_batches(pairs, CONFIG)
    assert sorted(i for indices, _ in batches for i in indices) == list(range(len(pairs)))
    assert all(len(indices) == len(batch.source) for indices, batch in batches[1:])
    for indices, batch in batches:
        assert list(rows(batch)) == [(tuple(pairs[i].source), tuple(pairs[i].target)) for i in indices]
        assert not batch.source[len(indices) :].any()
        count, length = batch.source.shape
        assert length in (4, 8, 12, 24, 48, 96)
        assert count == 1 or count * length <= CONFIG.eval_tokens
    shapes = {batch.source.shape for _, batch in batches}
    assert len(shapes) == len({length for _, length in shapes})


def test_a_bucket_with_few_pairs_has_few_rows():
    groups = group_by_length([3, 3, 3, 30, 12], (4, 12), 48)
    assert groups == [([0, 1, 2], 4, 4), ([4], 1, 12), ([3], 1, 48)]
    assert group_by_length([], (4, 12), 48) == []


def test_rows_that_a_bucket_leaves_over_hold_shorter_pairs():
    sizes = [2, 9, 12, 3, 10, 4, 11, 12, 1, 4]
    assert group_by_length(sizes, (4, 12), 48) == [([8, 0], 8, 4), ([3, 5, 9, 1], 4, 12), ([4, 6, 2, 7], 4, 12)]


def test_buckets_double_beyond_the_last():
    assert [bucket_length(n, (4, 12)) for n in (1, 4, 5, 12, 13, 24, 25)] == [4, 4, 12, 12, 24, 24, 48]


def test_pairs_are_encoded_with_eos_by_their_own_side(tmp_path):
    pairs = [Pair("a b", "x y z", "1"), Pair("b", "z", "2")]
    tokenizers = train_tokenizers(pairs, TokenizerConfig(kind="word", vocab_size=6, joint=False), tmp_path)
    first, second = encode_pairs(pairs, tokenizers)
    assert first.source == [*tokenizers.source.encode("a b"), EOS]
    assert second.target == [*tokenizers.target.encode("z"), EOS]
    assert (first.length, second.length) == (4, 2)
