"""Greedy and beam search: against enumeration and a plain reference on tables, and on small models with random weights."""

import itertools
import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tables import (
    LIMIT,
    NUM_PREFIXES,
    VOCAB,
    A,
    B,
    TableModel,
    enumerate_finished,
    ids_of,
    limits,
    penalty_of,
    prefix_number,
    random_tables,
    reference_beam,
    source_of,
    table_log_prob,
)

from seq2seq.config import RNNConfig, TransformerConfig
from seq2seq.decoding import beam_search, greedy_search
from seq2seq.decoding.beam import Ranking, _beam_search
from seq2seq.decoding.constraints import Rules
from seq2seq.layers import StepOutput
from seq2seq.model import build_model
from seq2seq.tokenizer import EOS, PAD

pytestmark = pytest.mark.usefixtures("quick_compilation")

PENALTIES = [("gnmt", 0.6), ("gnmt", -1.5), ("power", 1.0), ("power", -0.7), ("none", 3.0)]


@pytest.mark.parametrize(("name", "alpha"), PENALTIES)
def test_wide_beam_lists_every_sequence_in_order_of_score(name, alpha):
    table = random_tables(1)
    expected = enumerate_finished(table[0], name, alpha)
    found = beam_search(
        TableModel(table), source_of(A), limits(1), beam_size=32, length_penalty=name, alpha=alpha, n_best=15, max_length=LIMIT
    )
    assert len(expected) == 15
    assert [ids_of(found, 0, rank) for rank in range(15)] == [ids for _, _, ids in expected]
    np.testing.assert_allclose(found.scores[0], [score for score, _, _ in expected], rtol=2e-5)
    np.testing.assert_allclose(found.log_probs[0], [log_prob for _, log_prob, _ in expected], rtol=2e-5)
    assert found.finished.all()


@cache
def many_tables():
    return random_tables(7, count=40)


@pytest.mark.parametrize(("beam_size", "name"), [(2, "gnmt"), (2, "power"), (2, "none"), (3, "gnmt")])
def test_early_end_never_changes_what_a_search_to_the_limit_finds(beam_size, name):
    tables = many_tables()
    source = source_of(*range(A, A + len(tables)))
    for alpha in (-2.0, -0.5, 0.0, 0.6, 2.5):
        options = {"beam_size": beam_size, "length_penalty": name, "alpha": alpha, "max_length": LIMIT}
        one = beam_search(TableModel(tables), source, limits(len(tables)), n_best=1, **options)
        several = beam_search(TableModel(tables), source, limits(len(tables)), n_best=beam_size, **options)
        for row, table in enumerate(tables):
            finished, live = reference_beam(table, beam_size, name, alpha)
            expected = (finished + live)[:beam_size]
            assert [ids_of(several, row, rank) for rank in range(beam_size)] == [ids for _, ids in expected]
            np.testing.assert_allclose(several.scores[row], [score for score, _ in expected], rtol=2e-5)
            assert several.finished[row].tolist() == [rank < len(finished) for rank in range(beam_size)]
            assert ids_of(one, row) == ids_of(several, row)


@pytest.mark.parametrize("alpha", [-0.5, 2.5])
def test_patience_ends_a_row_with_enough_finished_hypotheses(alpha):
    """As many as patience asks for, and no less than n_best; what they are does not depend on the other rows."""
    tables = many_tables()
    source, changed = source_of(*range(A, A + len(tables))), 0
    options = {"beam_size": 3, "length_penalty": "power", "alpha": alpha, "max_length": LIMIT, "n_best": 2}
    for patience, enough in ((0.3, 2), (1.0, 3), (1.5, 5)):
        found = beam_search(TableModel(tables), source, limits(len(tables)), patience=patience, **options)
        for row, table in enumerate(tables):
            finished, live = reference_beam(table, 3, "power", alpha, enough)
            expected = (finished + live)[:2]
            assert [ids_of(found, row, rank) for rank in range(2)] == [ids for _, ids in expected]
            changed += expected != (reference_beam(table, 3, "power", alpha)[0])[:2]
    assert changed  # to wait can pay


def designed(b_again):
    """A </s> has probability 0.6 * 0.5, B B B </s> has 0.4 * b_again^2."""
    table = np.full((1, NUM_PREFIXES, 3), 1 / 3)
    table[0, prefix_number([])] = 1e-9, 0.6, 0.4
    table[0, prefix_number([A])] = 0.5, 0.25, 0.25
    for words in ([B], [B, B]):
        table[0, prefix_number(words)] = (1 - b_again) / 2, (1 - b_again) / 2, b_again
    table[0, prefix_number([B, B, B])] = 1.0, 1e-9, 1e-9
    logits = np.full((1, NUM_PREFIXES, VOCAB), -np.inf)
    logits[..., [EOS, A, B]] = np.log(table)
    return TableModel(logits)


@pytest.mark.parametrize(
    ("b_again", "name", "alpha", "expected"),
    [
        (0.84, "none", 0.0, [A, EOS]),
        (0.84, "power", 1.0, [B, B, B, EOS]),
        (0.84, "gnmt", 1.0, [B, B, B, EOS]),
        (0.84, "gnmt", 0.0, [A, EOS]),
        (0.90, "none", 0.0, [B, B, B, EOS]),
        (0.90, "power", -1.0, [A, EOS]),
        (0.90, "gnmt", -1.0, [A, EOS]),
    ],
)
@pytest.mark.parametrize("n_best", [1, 2])
def test_length_penalty_decides_between_short_and_long(b_again, name, alpha, expected, n_best):
    found = beam_search(
        designed(b_again), source_of(A), limits(1), beam_size=2, length_penalty=name, alpha=alpha, n_best=n_best, max_length=LIMIT
    )
    assert ids_of(found) == expected
    log_prob = math.log(0.3 if expected[0] == A else 0.4 * b_again**2)
    np.testing.assert_allclose(found.scores[0, 0], log_prob / penalty_of(name, len(expected), alpha), rtol=1e-5)


def test_length_counts_the_end_symbol():
    found = beam_search(designed(0.84), source_of(A), limits(1), beam_size=2, length_penalty="none", max_length=LIMIT)
    assert found.lengths.tolist() == [[2]]
    assert found.ids.tolist() == [[[A, EOS, PAD, PAD]]]


@pytest.mark.parametrize("search", [greedy_search, lambda *a, **k: beam_search(*a, beam_size=3, n_best=3, **k)])
def test_weights_belong_to_the_pieces_they_produced(search):
    tables = many_tables()
    source = source_of(*range(A, A + len(tables)), length=3)
    plain = search(TableModel(tables), source, limits(len(tables)), max_length=LIMIT)
    found = search(TableModel(tables), source, limits(len(tables)), max_length=LIMIT, with_weights=True)
    assert plain.weights is None
    np.testing.assert_array_equal(plain.ids, found.ids)
    assert found.weights.shape == (*found.ids.shape, 3)
    for row, rank in itertools.product(range(len(tables)), range(found.ids.shape[1])):
        ids = ids_of(found, row, rank)
        expected = [float(prefix_number(ids[:t])) for t in range(len(ids))]
        assert found.weights[row, rank, : len(ids), 0].tolist() == expected
        assert not found.weights[row, rank, len(ids) :].any()


def test_greedy_takes_the_likeliest_piece_until_its_limit():
    tables = many_tables()
    found = greedy_search(TableModel(tables), source_of(*range(A, A + 40)), limits(40, 3), max_length=LIMIT)
    for row, table in enumerate(tables):
        ids = []
        while len(ids) < 3 and EOS not in ids:
            ids.append(max((EOS, A, B), key=lambda token, table=table, ids=ids: table_log_prob(table, ids, token)))
        assert ids_of(found, row) == ids
        assert found.finished[row, 0] == (ids[-1] == EOS)
        log_prob = sum(table_log_prob(table, ids[:t], ids[t]) for t in range(len(ids)))
        np.testing.assert_allclose(found.log_probs[row, 0], log_prob, rtol=1e-5)
    assert 0 < found.finished.sum() < 40


def test_unfinished_hypotheses_come_after_finished_ones_and_say_so():
    never = np.full((1, NUM_PREFIXES, VOCAB), -np.inf)
    never[..., [A, B]] = 0.0, -1.0
    found = beam_search(TableModel(never), source_of(A), limits(1, 2), beam_size=6, n_best=6, max_length=LIMIT)
    assert [ids_of(found, 0, rank) for rank in range(6)] == [[A, A], [A, B], [B, A], [B, B], [], []]
    assert not found.finished.any()
    assert np.isneginf(found.scores[0, 4:]).all()
    assert np.isfinite(found.scores[0, :4]).all()


def test_ties_go_to_the_earlier_beam_and_the_lower_id():
    even = np.full((1, NUM_PREFIXES, VOCAB), -np.inf)
    even[..., [EOS, A, B]] = 0.0
    found = beam_search(
        TableModel(even), source_of(A), limits(1, 3), beam_size=4, length_penalty="power", alpha=1.0, n_best=4, max_length=3
    )
    assert [ids_of(found, 0, rank) for rank in range(4)] == [[EOS], [A, EOS], [B, EOS], [A, A, EOS]]
    assert ids_of(greedy_search(TableModel(even), source_of(A), limits(1), max_length=LIMIT)) == [EOS]


@pytest.mark.parametrize("search", [greedy_search, lambda *a, **k: beam_search(*a, beam_size=3, n_best=2, **k)])
def test_padding_rows_are_empty_and_leave_the_others_alone(search):
    model = TableModel(many_tables())
    alone = search(model, source_of(A), limits(1), max_length=LIMIT, with_weights=True)
    padded = search(model, source_of(PAD, A, PAD), np.array([1, LIMIT, 4]), max_length=LIMIT, with_weights=True)
    for row in (0, 2):
        assert padded.lengths[row, 0] == padded.scores[row, 0] == padded.log_probs[row, 0] == 0
        assert padded.finished[row, 0]
        assert not padded.ids[row].any()
        assert not padded.weights[row].any()
    for ours, theirs in zip(alone, padded, strict=True):
        np.testing.assert_array_equal(ours[0], theirs[1])


def test_rows_have_their_own_limits():
    never = np.full((1, NUM_PREFIXES, VOCAB), -np.inf)
    never[..., [A, B]] = 0.0, -1.0
    found = beam_search(TableModel(never), source_of(A, A, A), np.array([1, 3, 2]), beam_size=2, max_length=LIMIT)
    assert [ids_of(found, row) for row in range(3)] == [[A], [A, A, A], [A, A]]
    np.testing.assert_allclose(found.log_probs[1, 0], 3 * found.log_probs[0, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "beam_size: expected 1 <= n_best <= beam_size, got 1 and 0"),
        ({"beam_size": 2, "n_best": 3}, "got 3 and 2"),
        ({"beam_size": 2, "length_penalty": "gmnt"}, "length_penalty: expected one of gnmt, power, none, got 'gmnt'"),
        ({"beam_size": 2, "alpha": math.nan}, "alpha: expected a finite number, got nan"),
        ({"beam_size": 2, "patience": -1.0}, "patience: expected a finite number >= 0, got -1.0"),
        ({"beam_size": 2, "max_length": 3}, "max_lengths: expected 1 to max_length = 3 in every row, got 4 to 4"),
    ],
)
def test_impossible_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        beam_search(TableModel(random_tables(0)), source_of(A), limits(1), **({"max_length": LIMIT} | options))


# --- models with random weights ----------------------------------------------------------------------------------------------

CONFIGS = {
    "rnn_none": RNNConfig(attention="none", embed_dim=8, encoder_dim=8, hidden_dim=12, align_dim=6, maxout_dim=8),
    "rnn_additive": RNNConfig(attention="additive", embed_dim=8, encoder_dim=8, hidden_dim=12, align_dim=6, maxout_dim=8),
    "transformer": TransformerConfig(model_dim=16, ffn_dim=24, num_heads=2, num_layers=2),
}
MODEL_VOCAB, LONGEST = 12, 14


@cache
def model_of(kind):
    """Random weights, large enough that the likeliest piece changes from step to step and with the source."""
    model = build_model(CONFIGS[kind], MODEL_VOCAB, MODEL_VOCAB, shared_vocab=True, rngs=nnx.Rngs(3))
    graphdef, params = nnx.split(model)
    return nnx.merge(graphdef, jax.tree.map(lambda x: 3.0 * x, params))


@cache
def sources():
    """64 rows of 1 to 9 pieces, padded to 10."""
    generator = np.random.default_rng(0)
    rows = np.full((64, 10), PAD, np.int32)
    for row in rows:
        length = generator.integers(1, 10)
        row[: length + 1] = [*generator.integers(A, MODEL_VOCAB, length), EOS]
    return rows


def source_limits(source):
    return ((source != PAD).sum(axis=1) + 4).astype(np.int32)


def greedy(model, source):
    return greedy_search(model, source, source_limits(source), max_length=LONGEST)


def beam(model, source, beam_size=5, n_best=5, **options):
    return beam_search(model, source, source_limits(source), beam_size=beam_size, n_best=n_best, max_length=LONGEST, **options)


@pytest.mark.parametrize("kind", CONFIGS)
def test_beam_of_one_is_greedy(kind):
    model, source = model_of(kind), sources()
    expected, found = greedy(model, source), beam(model, source, 1, 1)
    # the beam itself, and not only the greedy search it hands over to
    itself = _beam_search(
        *nnx.split(model),
        source,
        source_limits(source),
        Rules(None, None),
        Ranking(np.float32(0), None, None),
        beam_size=1,
        n_best=1,
        max_length=LONGEST,
        penalty="none",
        no_repeat_ngram=0,
        with_weights=False,
    )
    assert len({tuple(ids_of(expected, row)) for row in range(64)}) > 5
    for ours in (found, itself):
        np.testing.assert_array_equal(ours.ids, expected.ids)
        np.testing.assert_array_equal(ours.lengths, expected.lengths)
        np.testing.assert_array_equal(ours.finished, expected.finished)
        np.testing.assert_allclose(ours.log_probs, expected.log_probs, rtol=1e-5)
    np.testing.assert_allclose(found.scores, expected.log_probs / ((5 + expected.lengths) / 6) ** 0.6, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "search"),
    [("rnn_none", greedy), ("rnn_additive", greedy), ("transformer", greedy), ("rnn_additive", beam), ("transformer", beam)],
)
def test_batch_of_64_equals_batches_of_1(kind, search):
    model, source = model_of(kind), sources()
    together = search(model, source)
    for row in range(0, 64, 4):
        alone = search(model, np.pad(source[row : row + 1], ((0, 0), (0, 2))))  # nor does more padding matter
        for rank in range(alone.ids.shape[1]):
            assert ids_of(alone, 0, rank) == ids_of(together, row, rank)
        np.testing.assert_allclose(alone.scores[0], together.scores[row], rtol=1e-4)


class Uncached(nnx.Module):
    """The same model without any state but the pieces so far: every step runs the whole decoder on them."""

    def __init__(self, model):
        self.model = model

    def encode(self, source):
        return source

    def init_state(self, memory, max_length):
        return jnp.zeros((memory.shape[0], max_length), jnp.int32), jnp.zeros(memory.shape[0], jnp.int32)

    def step(self, memory, state, tokens):
        prefix, length = state
        rows = jnp.arange(len(tokens))
        prefix = prefix.at[rows, length].set(tokens)
        return StepOutput(self.model(memory, prefix)[rows, length], (prefix, length + 1), None)


@pytest.mark.parametrize("kind", ["rnn_additive", "transformer"])
def test_states_follow_their_beams(kind):
    source = sources()
    cached, whole = beam(model_of(kind), source), beam(Uncached(model_of(kind)), source)
    np.testing.assert_array_equal(cached.ids, whole.ids)
    np.testing.assert_allclose(cached.scores, whole.scores, rtol=1e-4)
    for row in range(64):
        assert len({tuple(ids_of(cached, row, rank)) for rank in range(5)}) == 5


def test_weights_of_a_model_are_distributions_over_its_source():
    source = sources()[:8]
    found = beam(model_of("rnn_additive"), source, with_weights=True)
    for row in range(8):
        weights = np.asarray(found.weights)[row, 0, : found.lengths[row, 0]]
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-5)
        assert not weights[:, source[row] == PAD].any()


def test_model_without_attention_has_no_weights_to_give():
    with pytest.raises(ValueError, match="with_weights: expected a model with attention"):
        beam(model_of("rnn_none"), sources()[:2], with_weights=True)
