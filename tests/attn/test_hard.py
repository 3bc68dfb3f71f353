import attention_reference as reference
import hard_reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn.hard import (
    hard_attention,
    marginal_log_likelihood,
    reinforce_loss,
    straight_through_attention,
    straight_through_weights,
)

# Those that hold bits or the reference to account run as users run.
quick = pytest.mark.usefixtures("quick_compilation")
few = settings(max_examples=20, deadline=None)
KEY = jax.random.key(7)
B, T, S, V = 2, 3, 4, 2
MASK = np.array([[[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]], [[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1]]], bool)
UNMASKED = np.ones((B, T, S), bool)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


SCORES, VALUES, LIKELIHOODS = 2 * normal(0, B, T, S), normal(1, B, S, V), 3 * normal(2, B, T, S)
rows_of = st.lists(st.floats(-8, 8), min_size=2 * S, max_size=2 * S).map(lambda x: np.array(x).reshape(2, S))
masks = st.lists(st.booleans(), min_size=S, max_size=S).map(np.array)


def close(a, b, atol=1e-12):
    np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), atol=atol, rtol=0)


def same_bits(a, b):
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.tobytes() == b.tobytes()


def noise(scores, key=KEY):
    return np.asarray(jax.random.gumbel(key, scores.shape, jnp.float64 if jax.config.jax_enable_x64 else jnp.float32), float)


def choices(mask):
    return hard_reference.by_query(hard_reference.choose, SCORES, mask, noise(SCORES))


# hard_attention


@pytest.mark.parametrize("mask", [MASK, UNMASKED])
def test_sample_equals_the_reference_in_value_and_gradient(x64, mask):
    index, mixed = choices(mask), normal(3, 2, B, T)

    def expected(scores):
        log_probs = hard_reference.by_query(hard_reference.log_prob, scores, mask, index)
        return (mixed[0] * log_probs + mixed[1] * hard_reference.by_query(hard_reference.entropy, scores, mask)).sum()

    def loss(scores):
        sample = hard_attention(scores, VALUES, key=KEY, mask=None if mask is UNMASKED else jnp.asarray(mask))
        return (mixed[0] * sample.log_prob + mixed[1] * sample.entropy).sum(), sample

    (value, sample), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(jnp.asarray(SCORES))
    np.testing.assert_array_equal(sample.index, index)
    close(sample.context, [[hard_reference.context(VALUES[b], i) for i in index[b]] for b in range(B)], 0)
    close(sample.log_prob, hard_reference.by_query(hard_reference.log_prob, SCORES, mask, index))
    close(sample.entropy, hard_reference.by_query(hard_reference.entropy, SCORES, mask))
    close(value, expected(SCORES))
    close(gradient, reference.gradient(expected, SCORES)[0], 1e-8)
    assert sample.context.dtype == sample.log_prob.dtype == sample.entropy.dtype == jnp.float64
    assert len(np.unique(index)) > 2


@quick
def test_second_derivatives_of_both_modes(x64):
    direction = jnp.asarray(normal(4, B, T, S))

    @jax.jit
    def gradient(scores):
        def loss(scores):
            sample = hard_attention(scores, VALUES, key=KEY, mask=MASK)
            return (sample.log_prob**2 + sample.entropy**2 + marginal_log_likelihood(scores, LIKELIHOODS) ** 2).sum()

        return jax.grad(loss)(scores)

    scores, step = jnp.asarray(SCORES), 1e-5 * direction
    curvature = (gradient(scores + step) - gradient(scores - step)) / 2e-5
    close(jax.jvp(gradient, (scores,), (direction,))[1], curvature, 1e-7)
    close(jax.grad(lambda scores: (gradient(scores) * direction).sum())(scores), curvature, 1e-7)
    assert jnp.abs(curvature).max() > 0.1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_context_is_the_chosen_value_bit_for_bit(dtype):
    values = jnp.asarray(1000 * VALUES, dtype).at[:, :, 1].set(-0.0)
    index = np.asarray(hard_attention(SCORES, values, key=KEY).index)
    unchosen = np.array([[j not in index[b] for j in range(S)] for b in range(B)])
    assert unchosen.any()
    values = jnp.where(unchosen[..., None], jnp.nan, values).astype(dtype)
    expected = np.stack([np.asarray(values)[b][index[b]] for b in range(B)])
    assert not np.isnan(expected.astype(float)).any()
    same_bits(hard_attention(SCORES, values, key=KEY).context, expected)
    if dtype == jnp.float32:
        same_bits(straight_through_attention(SCORES, 1000 * VALUES, key=KEY), np.float32(1000 * VALUES)[[[0], [1]], index])


@quick
def test_gradient_of_values_goes_to_the_chosen_rows():
    index = np.asarray(hard_attention(SCORES, VALUES, key=KEY, mask=MASK).index)
    weight = np.float32(normal(5, B, T, V))
    expected = np.zeros((B, S, V))
    for b, t in np.ndindex(B, T):
        if index[b, t] >= 0:
            expected[b, index[b, t]] += weight[b, t]
    bad = jnp.asarray(np.where(expected == 0, np.nan, VALUES), jnp.float32)
    assert jnp.isnan(bad).any()
    close(jax.grad(lambda v: (hard_attention(SCORES, v, key=KEY, mask=MASK).context * weight).sum())(bad), expected, 1e-6)
    close(jax.grad(lambda v: (straight_through_attention(SCORES, v, key=KEY, mask=MASK) * weight).sum())(VALUES), expected, 1e-6)


@quick
def test_gradient_of_a_row_chosen_by_many_is_summed_in_float32():
    scores, values = jnp.zeros((300, 1)), jnp.ones((1, 1), jnp.bfloat16)
    assert jax.grad(lambda v: hard_attention(scores, v, key=KEY).context.sum())(values)[0, 0] == 300
    assert jax.grad(lambda v: straight_through_attention(scores, v, key=KEY).sum())(values)[0, 0] == 300


@quick
def test_masked_nan_has_no_influence():
    def everything(scores, values, likelihoods):
        sample = hard_attention(scores, values, key=KEY, mask=MASK)
        loss = marginal_log_likelihood(scores, likelihoods, mask=MASK)[:, ::2].sum() + sample.context.sum()
        loss += (straight_through_attention(scores, values, key=KEY, mask=MASK) ** 2).sum()
        return loss + (sample.log_prob * sample.entropy).sum(), sample

    def results(*arrays):
        return derivatives(*(jnp.asarray(x, jnp.float32) for x in arrays))

    derivatives = jax.jit(jax.value_and_grad(everything, argnums=(0, 1, 2), has_aux=True))

    everyones = MASK.any(1)[..., None]
    for bad in (np.nan, np.inf, -np.inf):
        hidden = np.where(MASK, SCORES, bad), np.where(everyones, VALUES, bad), np.where(MASK, LIKELIHOODS, bad)
        jax.tree.map(np.testing.assert_array_equal, results(*hidden), results(SCORES, VALUES, LIKELIHOODS))
    assert not everyones.all()


def row_results(scores, values, likelihoods):
    """What each function says about each query, [4 B T]."""
    sample = hard_attention(scores, values, key=KEY, mask=MASK)
    soft = straight_through_attention(scores, values, key=KEY, mask=MASK)
    marginal = jnp.where(MASK.any(-1), marginal_log_likelihood(scores, likelihoods, mask=MASK), 0)
    return jnp.stack([sample.log_prob, sample.entropy, soft.sum(-1), marginal])


@quick
def test_allowed_nan_is_not_hidden_and_stays_in_its_row():
    arrays = [jnp.asarray(x, jnp.float32) for x in (SCORES, VALUES, LIKELIHOODS)]
    gradients = jax.jit(
        jax.grad(
            lambda scores, likelihoods, w: (row_results(scores, arrays[1], likelihoods) * w).sum(where=w > 0), argnums=(0, 1)
        )
    )
    first = np.zeros((B, T), bool)
    first[0, 0] = True
    for bad in (jnp.nan, jnp.inf):
        scores, likelihoods = (arrays[n].at[0, 0, 1].set(bad) for n in (0, 2))
        for n, result in enumerate(jax.jit(row_results)(scores, arrays[1], arrays[2])):
            np.testing.assert_array_equal(jnp.isnan(result), first)
            loud = gradients(scores, arrays[2], jnp.zeros((4, B, T)).at[n].set(1.0))[0]
            np.testing.assert_array_equal(jnp.isfinite(loud).all(-1), ~first)
        np.testing.assert_array_equal(jnp.isnan(jax.jit(row_results)(arrays[0], arrays[1], likelihoods)[3]), first)
        # A loss that does not look at the row has the gradients of an input without NaN.
        weight = jnp.broadcast_to(~first, (4, B, T)).astype(jnp.float32)
        jax.tree.map(
            np.testing.assert_array_equal,
            gradients(scores, likelihoods, weight),
            gradients(arrays[0], arrays[2], weight),
        )


@quick
def test_allowed_nan_makes_the_choice_undefined():
    scores = jnp.asarray(SCORES, jnp.float32).at[0, 0, 1].set(jnp.nan)
    sample = hard_attention(scores, VALUES, key=KEY, mask=MASK)
    assert sample.index[0, 0] == -1
    assert jnp.isnan(sample.context[0, 0]).all()
    assert not jnp.isnan(sample.context[0, 1:]).any()
    weights = straight_through_weights(scores, key=KEY, mask=MASK)
    np.testing.assert_array_equal(jnp.isnan(weights), MASK & (np.arange(B * T).reshape(B, T, 1) == 0))
    # A value: NaN for each query that may attend to it, chosen or not.
    context = straight_through_attention(SCORES, jnp.asarray(VALUES).at[0, 0, 0].set(jnp.inf), key=KEY, mask=MASK)
    np.testing.assert_array_equal(jnp.isnan(context[..., 0]), MASK[:, :, 0] & (np.arange(B)[:, None] == 0))


@quick
def test_nothing_to_choose_gives_zero_and_no_gradient():
    nothing = jnp.zeros((B, T, S), bool)

    def loss(scores, values, likelihoods):
        sample = hard_attention(scores, values, key=KEY, mask=nothing)
        soft = straight_through_attention(scores, values, key=KEY, mask=nothing)
        marginal = marginal_log_likelihood(scores, likelihoods, mask=nothing)
        total = soft.sum() + marginal.sum() + sample.context.sum() + sample.log_prob.sum() + sample.entropy.sum()
        return total, (sample.index, marginal, soft, sample.context, sample.log_prob, sample.entropy)

    derivatives = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
    with jax.debug_nans(True):
        (_, (index, marginal, *zeros)), gradients = derivatives(*map(jnp.asarray, (SCORES, VALUES, LIKELIHOODS)))
    assert not any(x.any() for x in (*zeros, *gradients))
    assert (index == -1).all()
    assert (marginal == -jnp.inf).all()
    for lowest in (-jnp.inf, jnp.finfo(jnp.float32).min):
        sample = hard_attention(jnp.full((1, 3), lowest), jnp.ones((3, 1)), key=KEY)
        assert sample.index[0] == -1
        assert not straight_through_weights(jnp.full((1, 3), lowest), key=KEY).any()


@quick
@pytest.mark.parametrize(("t", "s"), [(0, 3), (3, 0), (0, 0), (1, 1)])
def test_lengths_zero_and_one(t, s):
    scores, values = jnp.zeros((t, s)), jnp.ones((s, 2))
    sample = hard_attention(scores, values, key=KEY)
    assert [x.shape for x in sample] == [(t, 2), (t,), (t,), (t,)]
    close(sample.context, 1 if s else 0)
    close(sample.index, 0 if s else -1)
    close(sample.log_prob, 0)
    close(sample.entropy, 0)
    close(straight_through_attention(scores, values, key=KEY), sample.context)
    close(marginal_log_likelihood(scores, scores), 0 if s else -jnp.inf)
    for function in (
        lambda v: hard_attention(scores, v, key=KEY).context,
        lambda v: straight_through_attention(scores, v, key=KEY),
    ):
        close(jax.grad(lambda v, function=function: function(v).sum())(values), t)


@quick
def test_underflow_and_extreme_scores_have_finite_gradients():
    scores = jnp.array([[0.0, -200.0, -1e4], [3e38, -3e38, 1.0], [-1e30, -1e30, 0.0]])

    def loss(scores):
        sample = hard_attention(scores, jnp.ones((3, 1)), key=KEY)
        return sample.log_prob.sum() + sample.entropy.sum() + marginal_log_likelihood(scores, jnp.zeros((3, 3))).sum(), sample

    (value, sample), gradient = jax.value_and_grad(loss, has_aux=True)(scores)
    np.testing.assert_array_equal(sample.index, [0, 0, 2])
    close(value, 0)
    close(gradient, 0, 1e-30)


def test_samples_follow_the_distribution_and_are_independent():
    draws, scores = 4000, np.array([[1.0, -1.0, 0.0, 0.5], [0.0, 0.0, 9.0, -2.0]], np.float32)
    mask = np.array([[True, True, True, True], [True, True, False, True]])
    many = jnp.broadcast_to(scores, (draws, 2, 4))
    index = np.asarray(hard_attention(many, jnp.zeros((draws, 4, 1)), key=KEY, mask=jnp.asarray(mask)[None]).index)
    alpha = np.array([reference.softmax(np.float64(scores[i]), mask[i]) for i in range(2)])
    assert not (index[:, 1] == 2).any()
    counts = np.zeros((4, 4))
    np.add.at(counts, (index[:, 0], index[:, 1]), 1)
    expected = draws * alpha[0][:, None] * alpha[1]
    cells = expected > 0
    # Chi-square with 11 degrees of freedom: above 31.3 once in a thousand.  The joint counts also test independence.
    assert (((counts - expected) ** 2)[cells] / expected[cells]).sum() < 31.3
    entries = np.zeros((4, 4))
    np.add.at(entries, (index[::2, 0], index[1::2, 0]), 1)
    expected = draws / 2 * alpha[0][:, None] * alpha[0]
    # 15 degrees of freedom: above 37.7 once in a thousand.
    assert ((entries - expected) ** 2 / expected).sum() < 37.7


@quick
def test_a_key_is_a_sample():
    scores = jnp.zeros((5, 40, 4))
    first, again, other = (hard_attention(scores, jnp.zeros((5, 4, 1)), key=jax.random.key(n)).index for n in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert 0.6 < (first != other).mean() < 0.9
    same_bits(straight_through_weights(scores, key=jax.random.key(1)), np.eye(4, dtype=np.float32)[np.asarray(first)])


@quick
@few
@given(st.lists(st.integers(-40, 40), min_size=S, max_size=S), masks, st.sampled_from([-(2.0**20), 4096.0, 2.0**20]))
def test_an_offset_of_the_scores_changes_nothing(quarters, mask, offset):
    # Quarters stay exact beside 2^20 in float32, so that nothing at all may change.
    scores, mask = jnp.array([quarters], jnp.float32) / 4, jnp.asarray(mask)[None]
    values, likelihoods = jnp.eye(S), jnp.asarray(LIKELIHOODS[0, :1], jnp.float32)
    jax.tree.map(
        same_bits,
        hard_attention(scores + offset, values, key=KEY, mask=mask),
        hard_attention(scores, values, key=KEY, mask=mask),
    )
    same_bits(straight_through_weights(scores + offset, key=KEY, mask=mask), straight_through_weights(scores, key=KEY, mask=mask))
    same_bits(
        marginal_log_likelihood(scores + offset, likelihoods, mask=mask), marginal_log_likelihood(scores, likelihoods, mask=mask)
    )


@quick
@few
@given(rows_of, masks, st.integers(0, 1000))
def test_properties_of_a_sample(scores, mask, seed):
    values = jnp.asarray(VALUES[0], jnp.float32)
    sample = hard_attention(jnp.asarray(scores, jnp.float32), values, key=jax.random.key(seed), mask=jnp.asarray(mask)[None])
    for i in range(2):
        index = int(sample.index[i])
        assert mask[index] if mask.any() else index == -1
        close(sample.context[i], hard_reference.context(np.asarray(values), index), 0)
        close(sample.log_prob[i], hard_reference.log_prob(scores[i], mask, index), 1e-5)
        assert -1e-6 <= sample.entropy[i] <= np.log(max(mask.sum(), 1)) + 1e-6
        close(sample.entropy[i], hard_reference.entropy(scores[i], mask), 1e-5)


@quick
def test_vmap_over_any_arguments_equals_the_loop():
    keys = jax.random.split(KEY, B)

    def all_three(scores, values, mask, key):
        sample = hard_attention(scores, values, key=key, mask=mask)
        soft = jax.grad(lambda s: (straight_through_attention(s, values, key=key, mask=mask) ** 2).sum())(scores)
        return sample, soft, marginal_log_likelihood(scores, scores, mask=mask)

    arrays = [jnp.asarray(SCORES, jnp.float32), jnp.asarray(VALUES, jnp.float32), jnp.asarray(MASK), keys]
    for axes in [(0, 0, 0, 0), (None, None, None, 0), (0, None, 0, None)]:
        chosen = [x if axis == 0 else x[0] for x, axis in zip(arrays, axes, strict=True)]
        together = jax.jit(jax.vmap(all_three, in_axes=axes))(*chosen)
        for n in range(B):
            alone = all_three(*(x[n] if axis == 0 else x for x, axis in zip(chosen, axes, strict=True)))
            jax.tree.map(lambda a, b, n=n: close(a[n], b, 1e-6), together, alone)


@quick
def test_one_choice_per_step_of_a_checkpointed_scan():
    def total(scores, values, unroll):
        @jax.checkpoint
        def step(carry, given):
            key, scores = given
            sample = hard_attention(scores + carry, values, key=key)
            return jnp.tanh(sample.context.sum(-1, keepdims=True)), (sample.log_prob, sample.entropy)

        steps = jax.random.split(KEY, 3), scores
        if unroll:
            carry, outputs = jnp.zeros((T, 1)), []
            for n in range(3):
                carry, output = step(carry, (steps[0][n], steps[1][n]))
                outputs.append(output)
            return carry.sum() + sum(a.sum() + b.sum() for a, b in outputs)
        carry, (log_probs, entropies) = jax.lax.scan(step, jnp.zeros((T, 1)), steps)
        return carry.sum() + log_probs.sum() + entropies.sum()

    arrays = jnp.asarray(normal(8, 3, T, S), jnp.float32), jnp.asarray(VALUES[0], jnp.float32)
    scanned, unrolled = (jax.jit(jax.grad(total, argnums=(0, 1)), static_argnums=2)(*arrays, unroll) for unroll in (False, True))
    jax.tree.map(lambda a, b: close(a, b, 1e-6), scanned, unrolled)
    assert jnp.abs(scanned[1]).max() > 1e-2


# reinforce_loss


def expected_gradient(scores, rewards, baseline):
    """The exact expectation, over every choice, of the gradient of the loss of that choice."""

    def loss(scores, index):
        return reinforce_loss(jax.nn.log_softmax(scores)[index], rewards[index], baseline=baseline)

    return sum(jax.nn.softmax(scores)[j] * jax.grad(loss)(scores, j) for j in range(len(scores)))


@quick
@pytest.mark.parametrize("baseline", [0.0, 1.7, -30.0])
def test_expected_gradient_of_the_loss_is_that_of_the_reward(x64, baseline):
    scores, rewards = jnp.array([0.3, -1.0, 2.0]), jnp.array([1.0, 5.0, -2.0])
    close(expected_gradient(scores, rewards, baseline), [-0.33685, -0.25339, 0.59024], 1e-5)
    close(expected_gradient(scores, rewards, baseline), -jax.grad(lambda scores: jax.nn.softmax(scores) @ rewards)(scores))


@quick
@few
@given(rows_of, st.floats(-100, 100))
def test_baseline_never_changes_the_expected_gradient(rows, baseline):
    scores, rewards = rows
    alpha = reference.softmax(scores, np.ones(S, bool))
    expected = alpha * (rewards - alpha @ rewards)
    log_probs = np.log(alpha)
    scales = jax.grad(lambda log_probs: reinforce_loss(log_probs, jnp.asarray(rewards), baseline=baseline).sum())(
        jnp.asarray(log_probs, jnp.float32)
    )
    # d log alpha_i / d e = one_hot(i) - alpha
    close(-sum(alpha[i] * float(scales[i]) * (np.eye(S)[i] - alpha) for i in range(S)), expected, 1e-4)


@quick
def test_samples_estimate_the_gradient_of_the_expected_reward():
    """Every choice that `hard_attention` makes, through its own log_prob, and less noise with the baseline."""
    draws = 4000
    scores, rewards = jnp.array([0.3, -1.0, 2.0]), jnp.array([1.0, 5.0, -2.0])

    def losses(scores, baseline):
        sample = hard_attention(jnp.broadcast_to(scores, (draws, 3)), rewards[:, None], key=KEY)
        return reinforce_loss(sample.log_prob, sample.context[:, 0], baseline=baseline)

    exact, spreads = np.array([-0.33685, -0.25339, 0.59024]), []
    jacobian = jax.jit(jax.jacfwd(losses))
    for baseline in (-1.5, 20.0):
        gradients = jacobian(scores, baseline)
        spreads.append(float(gradients.std(0).max()))
        close(gradients.mean(0), exact, 4 * spreads[-1] / draws**0.5)
    assert spreads[0] < spreads[1] / 3


@quick
def test_expected_gradient_by_enumeration_of_real_samples():
    """As case by case above, but with the log_prob of `hard_attention` itself: a key is found for every choice."""
    scores, rewards = jnp.array([[0.3, -1.0, 2.0]]), jnp.array([[1.0], [5.0], [-2.0]])
    keys = jax.random.split(KEY, 100)
    index = jax.vmap(lambda key: hard_attention(scores, rewards, key=key).index[0])(keys)

    def loss(scores, key):
        sample = hard_attention(scores, rewards, key=key)
        return reinforce_loss(sample.log_prob, sample.context[:, 0], baseline=0.7)[0]

    gradient = jax.jit(jax.grad(loss))
    by_choice = [gradient(scores, keys[int(jnp.argmax(index == j))]) for j in range(3)]
    assert set(np.asarray(index)) == {0, 1, 2}
    close(sum(p * g for p, g in zip(jax.nn.softmax(scores)[0], by_choice, strict=True)), [[-0.33685, -0.25339, 0.59024]], 1e-5)


@quick
def test_entropy_bonus_and_no_gradient_to_reward_or_baseline():
    log_prob, reward, baseline, entropy = (jnp.asarray(x, jnp.float32) for x in normal(9, 4, 2, 3))

    def loss(log_prob, reward, baseline, entropy, weight):
        return reinforce_loss(log_prob, reward, baseline=baseline, entropy=entropy, entropy_weight=weight)

    close(loss(log_prob, reward, baseline, entropy, 0.3), -(reward - baseline) * log_prob - 0.3 * entropy, 1e-6)
    gradients = jax.jit(jax.grad(lambda *args: loss(*args).sum(), argnums=(0, 1, 2, 3)))(log_prob, reward, baseline, entropy, 0.3)
    for gradient, expected in zip(gradients, (baseline - reward, 0, 0, -0.3), strict=True):
        close(gradient, expected, 1e-6)
    close(loss(log_prob, 2.0, jnp.array(0.5), entropy, 0.0), -1.5 * log_prob, 1e-6)
    assert loss(log_prob.astype(jnp.bfloat16), 1.0, 0.0, entropy.astype(jnp.bfloat16), 0.1).dtype == jnp.float32


@quick
def test_reinforce_loss_names_what_does_not_fit():
    log_prob = jnp.zeros((2, 3))
    with pytest.raises(ValueError, match=r"reward: expected shape \(\*B\) = \(2, 3\), got \(3,\)"):
        reinforce_loss(log_prob, jnp.zeros(3))
    with pytest.raises(ValueError, match=r"reward: expected shape \(\*B\) = \(\), got \(3,\)"):
        reinforce_loss(0.0, jnp.zeros(3))
    with pytest.raises(ValueError, match=r"baseline: expected shape \(\*B\) = \(2, 3\), got \(2, 1\)"):
        reinforce_loss(log_prob, 1.0, baseline=jnp.zeros((2, 1)))
    with pytest.raises(ValueError, match=r"entropy: expected shape \(\*B\) = \(2, 3\), got \(\)"):
        reinforce_loss(log_prob, 1.0, entropy=0.0, entropy_weight=1.0)
    with pytest.raises(ValueError, match=r"entropy: expected shape \(\*B\) = \(2, 3\) for entropy_weight = 0.1, got None"):
        reinforce_loss(log_prob, 1.0, entropy_weight=0.1)
    with pytest.raises(ValueError, match=r"entropy: expected .* got None"):
        jax.jit(lambda weight: reinforce_loss(log_prob, 1.0, entropy_weight=weight))(0.0)
    with pytest.raises(ValueError, match=r"entropy_weight: expected a scalar, got shape \(3,\)"):
        reinforce_loss(log_prob, 1.0, entropy=log_prob, entropy_weight=jnp.zeros(3))
    for name in ("log_prob", "reward", "baseline", "entropy"):
        given = {"log_prob": log_prob, "reward": log_prob, "baseline": log_prob, "entropy": log_prob}
        given[name] = jnp.zeros((2, 3), int)
        with pytest.raises(TypeError, match=f"{name}: expected a floating dtype, got int32"):
            reinforce_loss(given.pop("log_prob"), given.pop("reward"), **given)


# straight_through_weights, straight_through_attention


@pytest.mark.parametrize(("key", "temperature"), [(KEY, 1.0), (KEY, 0.3), (None, 5)])
def test_straight_through_equals_the_reference_in_value_and_gradient(x64, temperature, key):
    drawn = np.zeros_like(SCORES) if key is None else noise(SCORES)
    weight = normal(10, B, T, V)

    def surrogate(scores):
        soft = hard_reference.by_query(lambda s, m, g: hard_reference.relaxed(s, m, g, temperature), scores, MASK, drawn)
        return (soft @ VALUES * weight).sum()

    def loss(scores):
        context = straight_through_attention(scores, VALUES, key=key, temperature=temperature, mask=MASK)
        return (context * weight).sum(), context

    (_, context), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(jnp.asarray(SCORES))
    index = hard_reference.by_query(hard_reference.choose, SCORES, MASK, drawn)
    one_hot = np.where(index[..., None] == np.arange(S), 1.0, 0.0)
    close(context, one_hot @ VALUES)
    close(gradient, reference.gradient(surrogate, SCORES)[0], 1e-8)

    def weights(scores):
        return straight_through_weights(scores, key=key, temperature=temperature, mask=MASK)

    direction = jnp.asarray(normal(11, B, T, S))
    one_hot_again, slope = jax.jit(lambda s: jax.jvp(weights, (s,), (direction,)))(jnp.asarray(SCORES))
    same_bits(one_hot_again, one_hot)
    close((slope @ VALUES * weight).sum(), (gradient * direction).sum())


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_straight_through_weights_are_exactly_one_hot(dtype):
    scores = jnp.asarray(4 * normal(12, 200, 3, 7), dtype)

    def loss(scores):
        weights = straight_through_weights(scores, key=KEY, temperature=0.37)
        return (weights**2).sum(), weights

    (_, traced), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(scores)
    index = hard_reference.by_query(hard_reference.choose, np.asarray(scores, float), np.ones(scores.shape, bool), noise(scores))
    same_bits(traced, np.eye(7).astype(dtype)[index])
    assert gradient.dtype == dtype
    assert jnp.isfinite(gradient).all()
    assert gradient.any()


@jax.jit
@jax.grad
def first_weight_gradient(scores, key, temperature, mask):
    return straight_through_weights(scores, key=key, temperature=temperature, mask=mask)[:, 0].sum()


@quick
@few
@given(rows_of, masks, st.integers(0, 1000), st.floats(1e-3, 100))
def test_properties_of_a_straight_through_choice(scores, mask, seed, temperature):
    scores, key, allowed = jnp.asarray(scores, jnp.float32), jax.random.key(seed), jnp.asarray(mask)[None]
    weights = straight_through_weights(scores, key=key, temperature=temperature, mask=allowed)
    np.testing.assert_array_equal(weights.sum(-1), float(mask.any()))
    assert not weights[:, ~mask].any()
    gradient = first_weight_gradient(scores, key, temperature, allowed)
    assert jnp.isfinite(gradient).all()
    assert not gradient[:, ~mask].any()
    close(gradient.sum(-1), 0, 1e-4 / temperature)


@quick
def test_without_a_key_the_first_of_the_highest_is_chosen():
    scores = jnp.array([[1.0, 3.0, 3.0], [5.0, 1.0, 2.0]])
    mask = jnp.array([[True, True, True], [False, True, True]])
    same_bits(straight_through_weights(scores, key=None, mask=mask), np.float32([[0, 1, 0], [0, 0, 1]]))


@quick
def test_temperature_is_positive_and_may_be_traced():
    scores = jnp.asarray(SCORES, jnp.float32)
    for temperature in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"temperature: expected a finite number > 0, got {temperature}"):
            straight_through_weights(scores, key=KEY, temperature=temperature)
        with pytest.raises(ValueError, match="temperature: expected a finite number > 0"):
            straight_through_attention(scores, VALUES, key=KEY, temperature=temperature)
    with pytest.raises(ValueError, match=r"temperature: expected a scalar, got shape \(2,\)"):
        straight_through_weights(scores, key=KEY, temperature=jnp.ones(2))

    def gradient(temperature):
        return jax.grad(lambda s: straight_through_weights(s, key=KEY, temperature=temperature, mask=MASK)[..., 0].sum())(scores)

    close(jax.jit(gradient)(0.5), gradient(0.5), 1e-6)
    assert jnp.abs(gradient(0.5) - gradient(2.0)).max() > 1e-2
    assert jnp.isfinite(gradient(1e-30)).all()


# marginal_log_likelihood


@pytest.mark.parametrize("mask", [MASK, UNMASKED])
def test_marginal_equals_the_exhaustive_sum_in_value_and_gradient(x64, mask):
    weight = np.where(mask.any(-1), normal(13, B, T), 0)

    def expected(scores, likelihoods):
        marginal = hard_reference.by_query(hard_reference.marginal, scores, likelihoods, mask)
        return (np.where(mask.any(-1), marginal, 0) * weight).sum()

    def loss(scores, likelihoods):
        marginal = marginal_log_likelihood(scores, likelihoods, mask=None if mask is UNMASKED else jnp.asarray(mask))
        return (jnp.where(mask.any(-1), marginal, 0) * weight).sum(), marginal

    arrays = jnp.asarray(SCORES), jnp.asarray(LIKELIHOODS)
    (_, marginal), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(*arrays)
    close(marginal, hard_reference.by_query(hard_reference.marginal, SCORES, LIKELIHOODS, mask))
    for gradient, by_difference in zip(gradients, reference.gradient(expected, SCORES, LIKELIHOODS), strict=True):
        close(gradient, by_difference, 1e-8)
    prior = hard_reference.by_query(reference.softmax, SCORES, mask)
    posterior = hard_reference.by_query(hard_reference.posterior, SCORES, LIKELIHOODS, mask)
    close(gradients[0], (posterior - prior) * weight[..., None])
    close(gradients[1], posterior * weight[..., None])


@quick
@few
@given(rows_of, masks)
def test_marginal_is_at_least_the_expected_log_likelihood(rows, mask):
    (scores, likelihoods), allowed = rows, jnp.asarray(mask)[None]
    marginal = float(marginal_log_likelihood(jnp.float32(scores)[None], jnp.float32(likelihoods)[None], mask=allowed)[0])
    if not mask.any():
        assert marginal == -np.inf
        return
    close(marginal, hard_reference.marginal(scores, likelihoods, mask), 1e-5)
    assert marginal >= reference.softmax(scores, mask) @ likelihoods - 1e-5
    assert marginal <= likelihoods[mask].max() + 1e-5


@quick
def test_impossible_targets():
    """Probability 0 under one key takes that key out; under all, -inf and no gradient."""
    scores = jnp.array([[0.5, -0.5, 1.0], [0.5, -0.5, 1.0]])
    likelihoods = jnp.array([[-jnp.inf, -1.0, -2.0], [-jnp.inf, -jnp.inf, -jnp.inf]])
    marginal = marginal_log_likelihood(scores, likelihoods)
    close(marginal[0], hard_reference.marginal(np.float64(scores[0]), np.float64(likelihoods[0]), np.ones(3, bool)), 1e-6)
    assert marginal[1] == -jnp.inf
    gradients = jax.grad(lambda *arrays: marginal_log_likelihood(*arrays).sum(), argnums=(0, 1))(scores, likelihoods)
    posterior = hard_reference.posterior(np.float64(scores[0]), np.float64(likelihoods[0]), np.ones(3, bool))
    close(gradients[0][0], posterior - reference.softmax(np.float64(scores[0]), np.ones(3, bool)), 1e-6)
    close(gradients[1][0], posterior, 1e-6)
    assert not any(gradient[1].any() for gradient in gradients)


@quick
def test_marginal_is_stable_far_from_zero():
    """Log-likelihoods of whole sentences, where every likelihood underflows."""
    scores, likelihoods = jnp.array([[1e4, 1e4 + 1, 0.0]]), jnp.array([[-5000.0, -5000.0, -1.0]])
    close(marginal_log_likelihood(scores, likelihoods), -5000, 1e-3)
    close(marginal_log_likelihood(jnp.array([[0.0, -200.0]]), jnp.array([[-300.0, -50.0]])), -250, 1e-3)
    gradient = jax.grad(lambda s: marginal_log_likelihood(s, jnp.array([[-300.0, -50.0]]))[0])(jnp.array([[0.0, -200.0]]))
    close(gradient, [[-1, 1]], 1e-6)
    assert marginal_log_likelihood(scores.astype(jnp.bfloat16), likelihoods.astype(jnp.bfloat16)).dtype == jnp.float32


# What all have in common


@quick
def test_wrong_arrays_are_named():
    scores, values = jnp.asarray(SCORES, jnp.float32), jnp.asarray(VALUES, jnp.float32)
    functions = {
        "hard": lambda s=scores, v=values, mask=None: hard_attention(s, v, key=KEY, mask=mask),
        "weights": lambda s=scores, mask=None: straight_through_weights(s, key=KEY, mask=mask),
        "straight": lambda s=scores, v=values, mask=None: straight_through_attention(s, v, key=KEY, mask=mask),
        "marginal": lambda s=scores, mask=None: marginal_log_likelihood(s, scores, mask=mask),
    }
    for function in functions.values():
        with pytest.raises(TypeError, match="scores: expected a floating dtype, got int32"):
            function(scores.astype(int))
        with pytest.raises(ValueError, match=r"scores: expected shape \(\*B, T, S\), got \(4,\)"):
            function(scores[0, 0])
        with pytest.raises(TypeError, match=r"mask: expected bool .* bias"):
            function(mask=scores)
        with pytest.raises(ValueError, match=r"mask: expected shape \(\*B, T, S\) = \(2, 3, 4\), .*got \(3, 4\)"):
            function(mask=jnp.ones((3, 4), bool))
    for name in ("hard", "straight"):
        with pytest.raises(TypeError, match="values: expected a floating dtype, got int32"):
            functions[name](v=values.astype(int))
        with pytest.raises(ValueError, match=r"values: expected shape \(\*B, S, V\) = \(2, 4, 2\), got \(2, 3, 2\)"):
            functions[name](v=values[:, 1:])
        with pytest.raises(ValueError, match=r"values: expected shape \(\*B, S, V\) = \(2, 4, 2\), got \(1, 4, 2\)"):
            functions[name](v=values[:1])
    with pytest.raises(ValueError, match=r"log_likelihoods: expected shape \(\*B, T, S\) = \(2, 3, 4\), got \(2, 1, 4\)"):
        marginal_log_likelihood(scores, scores[:, :1])
    with pytest.raises(TypeError, match="log_likelihoods: expected a floating dtype, got int32"):
        marginal_log_likelihood(scores, scores.astype(int))


@quick
def test_half_precision_values_with_float32_scores():
    for dtype in (jnp.bfloat16, jnp.float16):
        values = jnp.asarray(VALUES, dtype)
        sample = hard_attention(jnp.asarray(SCORES, dtype), values, key=KEY, mask=MASK)
        assert [x.dtype for x in sample] == [dtype, jnp.int32, jnp.float32, jnp.float32]
        same_bits(straight_through_attention(jnp.asarray(SCORES, dtype), values, key=KEY, mask=MASK), np.asarray(sample.context))
        assert hard_attention(jnp.asarray(SCORES, jnp.float32), values, key=KEY).context.dtype == dtype
