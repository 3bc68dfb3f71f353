"""Rules, coverage, sampling, scoring and ensembles, on tables small enough to enumerate."""

import itertools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from models import CONFIGS, call, random_batch, small_model
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
    prefix_number,
    random_tables,
    source_of,
    table_log_prob,
)

from seq2seq.decoding import Ensemble, beam_search, greedy_search, sample, score_targets
from seq2seq.decoding.beam import _continue_search
from seq2seq.decoding.constraints import Rules, constrain
from seq2seq.decoding.coverage import LEAST
from seq2seq.decoding.sampling import draw
from seq2seq.decoding.top_k import top_k
from seq2seq.model import build_model
from seq2seq.tokenizer import BOS, EOS, PAD

pytestmark = pytest.mark.usefixtures("quick_compilation")

MANY = 12


@pytest.fixture(scope="module")
def tables():
    return random_tables(11, count=MANY)


def every_source():
    return source_of(*range(A, A + MANY))


def best_of(table, allowed):
    """The likeliest finished sequence that is allowed."""
    return next(ids for _, _, ids in enumerate_finished(table, "none", 0.0) if allowed(ids))


def wide(model, source, rows=MANY, **options):
    """A beam wide enough to be exact."""
    return beam_search(model, source, limits(rows), beam_size=16, length_penalty="none", max_length=LIMIT, **options)


def test_shortest_length_is_that_of_each_row(tables):
    least = np.arange(MANY) % 4 + 1
    found = wide(TableModel(tables), every_source(), min_lengths=least)
    for row, table in enumerate(tables):
        assert ids_of(found, row) == best_of(table, lambda ids, row=row: len(ids) >= least[row])
    assert (
        np.asarray(
            greedy_search(TableModel(tables), every_source(), limits(MANY), max_length=LIMIT, min_lengths=least).lengths[:, 0]
        )
        >= least
    ).all()
    assert (np.asarray(wide(TableModel(tables), every_source()).lengths[:, 0]) < least).any()


def test_prefixes_come_first_and_the_rest_is_the_best_after_them(tables):
    prefixes = np.array([[PAD, PAD], [A, PAD], [B, A]] * (MANY // 3))
    found = wide(TableModel(tables), every_source(), prefixes=prefixes)
    stepwise = greedy_search(TableModel(tables), every_source(), limits(MANY), max_length=LIMIT, prefixes=prefixes)
    for row, table in enumerate(tables):
        prefix = [word for word in prefixes[row].tolist() if word != PAD]
        assert ids_of(found, row) == best_of(table, lambda ids, prefix=prefix: ids[: len(prefix)] == prefix)
        assert ids_of(stepwise, row)[: len(prefix)] == prefix
        log_prob = sum(table_log_prob(table, ids_of(found, row)[:t], i) for t, i in enumerate(ids_of(found, row)))
        np.testing.assert_allclose(found.log_probs[row, 0], log_prob, rtol=1e-5)


@pytest.mark.parametrize("n", [1, 2])
def test_no_ngram_occurs_twice(tables, n):
    def fresh(ids):
        grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
        return len(grams) == len(set(grams))

    # with five pieces at most and `</s>` never likely, sequences of A and B alone repeat themselves
    tempting = tables.copy()
    tempting[..., EOS] -= 4
    found = wide(TableModel(tempting), every_source(), no_repeat_ngram=n)
    free = wide(TableModel(tempting), every_source())
    for row, table in enumerate(tempting):
        assert ids_of(found, row) == best_of(table, fresh)
        if found.finished[row, 0]:
            assert fresh(ids_of(found, row))
    assert any(not fresh(ids_of(free, row)) for row in range(MANY))


def test_ngrams_against_a_loop():
    generator = np.random.default_rng(0)
    ids = generator.integers(4, 7, (50, 9)).astype(np.int32)
    for n, step in itertools.product((1, 2, 3), (0, 1, 4, 9)):
        found = constrain(jnp.zeros((50, 8)), Rules(None, None), jnp.int32(step), jnp.asarray(ids), n)
        for row, banned in zip(ids.tolist(), np.isneginf(found), strict=True):
            past = row[:step]
            recent = past[len(past) - n + 1 :] if n > 1 else []
            grams = [past[i : i + n] for i in range(len(past) - n + 1)]
            expected = {gram[-1] for gram in grams if gram[:-1] == recent}
            assert set(np.flatnonzero(banned)) == expected, (n, step, past)


def test_rules_that_leave_nothing_are_set_aside():
    log_probs = jnp.log(jnp.array([[0, 0, 0, 0.0, 0.5, 0.5]]))  # no `</s>`, and both words are used up
    ids = jnp.array([[A, B, PAD]])
    found = constrain(log_probs, Rules(np.array([3]), None), jnp.int32(2), ids, 1)
    np.testing.assert_array_equal(found, log_probs)


def test_log_prob_is_that_of_the_model_under_any_rule(tables):
    found = wide(TableModel(tables), every_source(), min_lengths=np.full(MANY, 3), no_repeat_ngram=2)
    for row, table in enumerate(tables):
        ids = ids_of(found, row)
        np.testing.assert_allclose(
            found.log_probs[row, 0], sum(table_log_prob(table, ids[:t], i) for t, i in enumerate(ids)), rtol=1e-5
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_lengths": np.array([5])}, "min_lengths: expected at most max_lengths = 4, got 5 in row 0"),
        ({"prefixes": np.array([[A, A, A, A]])}, "prefixes: expected fewer than max_lengths = 4 pieces, got 4 in row 0"),
        ({"prefixes": np.array([[EOS]])}, "prefixes: expected no BOS and no EOS"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram: expected an integer >= 0, got -1"),
        ({"coverage": -0.5}, "coverage: expected a finite number >= 0, got -0.5"),
    ],
)
def test_impossible_rules_are_named(tables, options, message):
    with pytest.raises(ValueError, match=message):
        beam_search(TableModel(tables), source_of(A), limits(1), beam_size=2, max_length=LIMIT, **options)


# --- coverage ----------------------------------------------------------------------------------------------------------------


class CoveringModel(TableModel):
    """Piece A looks at the first source piece and B at the second, once each is written; so do they at `</s>`."""

    def step(self, memory, state, tokens):
        output = super().step(memory, state, tokens)
        weights = jnp.stack([tokens == A, tokens == B], axis=-1).astype(jnp.float32)
        return output._replace(weights=0.9 * weights + 0.05)


def covered_score(log_prob, ids, beta):
    """Wu et al. (2016), eq. 14; the attention of a piece is that of the step which reads the piece before it."""
    coverage = np.sum([[0.9 * (word == A) + 0.05, 0.9 * (word == B) + 0.05] for word in [BOS, *ids[:-1]]], axis=0)
    return log_prob + beta * np.log(np.clip(coverage, LEAST, 1.0)).sum()


@pytest.mark.parametrize("beta", [0.3, 3.0])
def test_coverage_ranks_as_in_the_paper(tables, beta):
    changed = 0
    found = beam_search(
        CoveringModel(tables),
        every_source(),
        limits(MANY),
        beam_size=16,
        n_best=3,
        length_penalty="none",
        coverage=beta,
        max_length=LIMIT,
    )
    for row, table in enumerate(tables):
        plain = enumerate_finished(table, "none", 0.0)
        ranked = sorted(((covered_score(p, ids, beta), ids) for _, p, ids in plain), reverse=True)
        assert [ids_of(found, row, rank) for rank in range(3)] == [ids for _, ids in ranked[:3]]
        np.testing.assert_allclose(found.scores[row], [value for value, _ in ranked[:3]], rtol=2e-5)
        changed += ranked[0][1] != plain[0][2]
    assert changed > 0


def test_coverage_of_a_beam_of_one_is_in_its_score(tables):
    options = {"length_penalty": "none", "max_length": LIMIT}
    plain = beam_search(CoveringModel(tables), every_source(), limits(MANY), beam_size=1, **options)
    found = beam_search(CoveringModel(tables), every_source(), limits(MANY), beam_size=1, coverage=0.5, **options)
    np.testing.assert_array_equal(found.ids, plain.ids)
    expected = [covered_score(plain.log_probs[row, 0], ids_of(plain, row), 0.5) for row in range(MANY)]
    np.testing.assert_allclose(found.scores[:, 0], expected, rtol=1e-4)


# --- sampling ----------------------------------------------------------------------------------------------------------------


def flat_table(*probabilities):
    """The same distribution over `</s>`, A, B after any prefix."""
    logits = np.full((1, NUM_PREFIXES, VOCAB), -np.inf)
    logits[..., [EOS, A, B]] = np.log(probabilities)
    return TableModel(logits)


def first_pieces(model, count=2000, **options):
    """How often `</s>`, A and B come first."""
    source = np.repeat(source_of(A), count, axis=0)
    drawn = sample(model, source, np.full(count, 1), max_length=1, **options)
    return np.bincount(np.asarray(drawn.ids)[:, 0, 0], minlength=VOCAB)[[EOS, A, B]] / count


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.2, 0.5, 0.3]),
        ({"temperature": 0.5}, np.array([0.04, 0.25, 0.09]) / 0.38),
        ({"top_k": 2}, [0, 0.625, 0.375]),
        ({"top_p": 0.6}, [0, 0.625, 0.375]),
        ({"top_p": 0.4}, [0, 1, 0]),
        ({"top_k": 2, "top_p": 0.7}, [0, 0.625, 0.375]),
        ({"top_k": 1, "temperature": 9.0}, [0, 1, 0]),
    ],
)
def test_pieces_are_drawn_with_their_probabilities(options, expected):
    found = first_pieces(flat_table(0.2, 0.5, 0.3), **options)
    np.testing.assert_allclose(found, expected, atol=4 * math.sqrt(0.25 / 2000))
    assert not found[np.array(expected) == 0].any()


def test_seed_number_and_place_decide_and_the_batch_does_not(tables):
    model, source = TableModel(np.repeat(tables[:1], MANY, axis=0)), np.repeat(source_of(A), MANY, axis=0)

    def draw_ids(rows, numbers, seed=3, n_best=2):
        drawn = sample(
            model, source[rows], limits(len(rows)), max_length=LIMIT, seed=seed, numbers=np.array(numbers), n_best=n_best
        )
        return [[ids_of(drawn, row, rank) for rank in range(n_best)] for row in range(len(rows))]

    together = draw_ids(range(MANY), np.arange(MANY))
    assert draw_ids(range(MANY), np.arange(MANY)) == together
    assert draw_ids([0, 0], [7, 2]) == [together[7], together[2]]
    assert draw_ids(range(MANY), np.arange(MANY), seed=4) != together
    assert len({str(ids) for ids in together}) > 3
    assert any(first != second for first, second in together)


def test_samples_are_ranked_and_keep_the_log_prob_of_the_model(tables):
    options = {"n_best": 4, "temperature": 2.0, "length_penalty": "power", "alpha": 1.0, "with_weights": True}
    drawn = sample(TableModel(tables), every_source(), limits(MANY, 3), max_length=LIMIT, **options)
    for row, rank in itertools.product(range(MANY), range(4)):
        ids = ids_of(drawn, row, rank)
        log_prob = sum(table_log_prob(tables[row], ids[:t], i) for t, i in enumerate(ids))
        np.testing.assert_allclose(drawn.log_probs[row, rank], log_prob, rtol=1e-5)
        np.testing.assert_allclose(drawn.scores[row, rank], log_prob / len(ids), rtol=1e-5)
        assert np.asarray(drawn.weights)[row, rank, : len(ids), 0].tolist() == [prefix_number(ids[:t]) for t in range(len(ids))]
    order = [
        [(not done, -value) for done, value in zip(*row, strict=True)] for row in zip(drawn.finished, drawn.scores, strict=True)
    ]
    assert all(row == sorted(row) for row in order)
    assert 0 < drawn.finished.sum() < 4 * MANY


def test_sampling_keeps_to_the_rules(tables):
    least, prefixes = np.full(MANY, 3), np.full((MANY, 1), B)
    drawn = sample(
        TableModel(tables),
        every_source(),
        limits(MANY),
        max_length=LIMIT,
        n_best=3,
        min_lengths=least,
        prefixes=prefixes,
        no_repeat_ngram=1,
    )
    for row, rank in itertools.product(range(MANY), range(3)):
        assert ids_of(drawn, row, rank) == [B, A, EOS]


def test_a_draw_at_the_edge_has_a_probability():
    logits = jnp.log(jnp.array([[0.5, 0.5, 0.0]]))
    for uniform in (0.0, 0.4999999, 0.99999994):
        assert int(draw(logits, jnp.array([uniform]), 0, None)[0]) in (0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature: expected a finite number > 0, got 0.0"),
        ({"top_k": -1}, "top_k: expected an integer >= 0, got -1"),
        ({"top_p": 0.0}, r"top_p: expected a number in \(0, 1\], got 0.0"),
        ({"n_best": 0}, "n_best: expected an integer >= 1, got 0"),
        ({"length_penalty": "x"}, "length_penalty: expected one of gnmt, power, none, got 'x'"),
    ],
)
def test_impossible_draws_are_named(tables, options, message):
    with pytest.raises(ValueError, match=message):
        sample(TableModel(tables), source_of(A), limits(1), max_length=LIMIT, **options)


# --- scoring and ensembles ---------------------------------------------------------------------------------------------------


def longest(source):
    return np.full(len(source), 7)


def as_targets(decoded):
    """target_in, target_out of the best hypotheses."""
    out = np.asarray(decoded.ids)[:, 0]
    return np.concatenate([np.full((len(out), 1), BOS), np.where(out == EOS, PAD, out)[:, :-1]], axis=1), out


@pytest.mark.parametrize("name", ["rnn_additive", "transformer"])
def test_scores_of_what_a_search_found_are_its_own(name):
    model, source = small_model(name), np.asarray(random_batch(rows=4)[0])
    found = beam_search(model, source, longest(source), beam_size=3, max_length=7)
    scored = score_targets(model, source, *as_targets(found))
    np.testing.assert_allclose(scored.sum(axis=1), found.log_probs[:, 0], rtol=1e-4)
    assert (np.asarray(scored)[as_targets(found)[1] == PAD] == 0).all()


def test_scores_are_a_softmax_without_pad_and_bos():
    model = small_model("transformer")
    source, target_in, target_out = map(np.asarray, random_batch())
    logits = np.asarray(model(jnp.asarray(source), jnp.asarray(target_in)), np.float64)
    logits[..., [PAD, BOS]] = -np.inf
    log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    expected = np.where(target_out == PAD, 0, np.take_along_axis(log_probs, target_out[..., None], axis=-1)[..., 0])
    np.testing.assert_allclose(score_targets(model, source, target_in, target_out), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("combination", ["probabilities", "log_probabilities"])
def test_ensemble_averages_what_its_name_says(combination):
    members = [random_tables(seed) for seed in (21, 22, 23)]
    rows = np.stack([[table_log_prob(table[0], (), token) for token in (EOS, A, B)] for table in members])
    log_probs = np.log(np.exp(rows).mean(axis=0)) if combination == "probabilities" else rows.mean(axis=0)
    log_probs -= np.logaddexp.reduce(log_probs)
    model = Ensemble([TableModel(table) for table in members], combination)
    found = beam_search(model, source_of(A), limits(1, 1), beam_size=3, n_best=3, length_penalty="none", max_length=1)
    ids = np.asarray(found.ids)[0, :, 0].tolist()
    expected = dict(zip((EOS, A, B), log_probs, strict=True))
    assert sorted(ids) == [EOS, A, B]
    np.testing.assert_allclose(found.log_probs[0], [expected[i] for i in ids], rtol=1e-5)


def test_ensemble_of_different_models_searches_as_its_members_teacher_forced():
    members = [small_model("rnn_none"), small_model("transformer", seed=1), small_model("rnn_additive", seed=2)]
    model, source = Ensemble(members), np.asarray(random_batch(rows=4)[0])
    found = beam_search(model, source, longest(source), beam_size=3, max_length=7, with_weights=True)
    target_in, target_out = as_targets(found)
    scored = score_targets(model, source, target_in, target_out)
    np.testing.assert_allclose(scored.sum(axis=1), found.log_probs[:, 0], rtol=1e-4)
    each = np.stack([score_targets(member, source, target_in, target_out) for member in members])
    expected = np.log(np.exp(np.float64(each)).mean(axis=0))
    np.testing.assert_allclose(scored, np.where(target_out == PAD, 0, expected), rtol=1e-4, atol=1e-5)
    lengths = np.asarray(found.lengths)[:, 0]
    for row, weights in enumerate(np.asarray(found.weights)[:, 0]):
        np.testing.assert_allclose(weights[: lengths[row]].sum(axis=1), 1.0, rtol=1e-5)


def test_ensemble_of_one_is_that_one():
    model, source = small_model("transformer"), np.asarray(random_batch(rows=4)[0])
    one, same = (beam_search(m, source, longest(source), beam_size=2, max_length=7) for m in (model, Ensemble([model])))
    np.testing.assert_array_equal(one.ids, same.ids)
    np.testing.assert_allclose(one.scores, same.scores, rtol=1e-5)


def test_impossible_ensembles_are_named():
    with pytest.raises(ValueError, match="members: expected at least one model, got none"):
        Ensemble([])
    with pytest.raises(ValueError, match="combination: expected one of probabilities, log_probabilities, got 'mean'"):
        Ensemble([small_model("rnn_none")], "mean")


def test_a_beam_copies_neither_memory_nor_cache():
    """The caches of a Transformer stay where they were written; only the table of origins follows the parents."""
    model, source = small_model("transformer"), jnp.asarray(random_batch(rows=2)[0])
    memory, state = jax.eval_shape(lambda: model.start_beams(model.encode(source), 9, 4))
    assert {leaf.shape[0] for leaf in jax.tree.leaves((memory, state))} == {2}
    _, started = model.start_beams(memory, 9, 4)
    moved = model.reorder(started, jnp.array([[1, 1, 0, 3], [0, 1, 2, 3]]))
    assert moved.caches is started.caches


def test_caches_grow_only_when_a_hypothesis_needs_it():
    model, source = small_model("transformer", seed=4), np.asarray(random_batch(rows=4)[0])
    compiled = _continue_search._cache_size()
    short = beam_search(model, source, np.full(4, 5), beam_size=2, max_length=10)
    assert _continue_search._cache_size() == compiled
    long = beam_search(model, source, np.full(4, 10), min_lengths=np.full(4, 10), beam_size=2, max_length=10)
    assert _continue_search._cache_size() == compiled + 1
    assert short.ids.shape == long.ids.shape == (4, 1, 10)
    scored = score_targets(model, source, *as_targets(long))
    np.testing.assert_allclose(scored.sum(axis=1), long.log_probs[:, 0], rtol=1e-4)


@pytest.mark.parametrize("positions", ["sinusoidal", "rope", "alibi", "t5", "shaw"])
def test_each_hypothesis_attends_to_its_own_ancestors(positions):
    """K = 3 hypotheses that change places at random give the logits of their own pieces, teacher-forced."""
    config = replace(CONFIGS["transformer"], positions=positions, shaw_distance=2, relative_buckets=4, relative_max_distance=6)
    model, source = build_model(config, 11, 11, shared_vocab=True, rngs=nnx.Rngs(0)), jnp.asarray(random_batch(rows=2)[0])
    generator = np.random.default_rng(0)
    memory, state = model.start_beams(call(model, source, method="encode"), 5, 3)
    past = np.zeros((2, 3, 0), np.int32)
    for _ in range(5):
        parents, tokens = generator.integers(0, 3, (2, 3)), generator.integers(4, 11, (2, 3)).astype(np.int32)
        state = model.reorder(state, jnp.asarray(parents))
        past = np.concatenate([np.take_along_axis(past, parents[..., None], axis=1), tokens[..., None]], axis=2)
        output = call(model, memory, state, jnp.asarray(tokens.reshape(-1)), method="step")
        state = output.state
    expected = call(model, jnp.repeat(source, 3, axis=0), jnp.asarray(past.reshape(6, 5)))[:, -1]
    np.testing.assert_allclose(output.logits, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(output.weights.sum(axis=-1), 1.0, rtol=1e-5)


@pytest.mark.parametrize(("V", "k"), [(7, 3), (1000, 1), (1000, 8), (1003, 5), (64, 2)])
def test_top_k_in_blocks_is_top_k(V, k):
    generator = np.random.default_rng(V)
    x = generator.normal(size=(20, V)).astype(np.float32)
    x[10:] = generator.integers(0, 3, (10, V))  # ties
    x[5, 2:] = -np.inf
    for ours, theirs in zip(top_k(jnp.asarray(x), k), jax.lax.top_k(x, k), strict=True):
        np.testing.assert_array_equal(ours, theirs)
