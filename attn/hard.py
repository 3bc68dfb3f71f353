"""Hard attention: a query attends to one key, not to an average of all (Xu et al. 2015, section 4.1).

    p(s_ti = 1 | a) = alpha_ti                              the key is drawn from the weights, eq. 8
    z_t = sum_i s_ti a_i                                    context: the value of that key, eq. 9
    L_s = sum_s p(s | a) log p(y | s, a) <= log p(y | a)    what is maximised, eq. 10

Names: the paper's alpha_t is softmax(scores), its a_i are the values, the place i of the 1 in the one-hot s_t is `index` and
z_t is `context`.  Choosing has no derivative.  Three ways around that, each a function here:

    reinforce_loss               score function of the sample, with a baseline      Xu et al. 2015, eq. 11; Williams 1992
    straight_through_attention   the choice forwards, the softmax backwards         Bengio et al. 2013; Jang et al. 2017
    marginal_log_likelihood      log p(y | a) itself, by a sum over all keys        Wu, Shapiro, Cotterell 2018

Choices are drawn by the Gumbel-max trick, index = argmax_j (e_j + g_j), with g = `jax.random.gumbel(key, scores.shape)`: the
same key makes the same choice in `hard_attention` and in the straight-through functions.  Under `vmap`, map over a key for each
entry; with one key for all, all entries share their noise.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from attn.choice import below_peak, highest, one_hot, perturbed, rows, straight_through_choice
from attn.isolation import attends_nonfinite, finite_or_zero, has_nonfinite, poison
from attn.normalize import exponentials, nonzero
from attn.shapes import boolean_mask, compute_dtype, expect, floating, is_traced


class HardSample(NamedTuple):
    """What was chosen, and how likely that was."""

    context: Float[Array, "*B T V"]
    index: Int[Array, "*B T"]
    log_prob: Float[Array, "*B T"]
    entropy: Float[Array, "*B T"]


def hard_attention(
    scores: Annotated[ArrayLike, "*B T S"],
    values: Annotated[ArrayLike, "*B S V"],
    *,
    key: Array,
    mask: Annotated[ArrayLike, "*B T S"] | None = None,
) -> HardSample:
    """The value of one key for each query, drawn with the probabilities softmax(scores).

        index ~ Categorical(alpha),  alpha = softmax(scores) over the keys that the mask allows
        context = values[index],  log_prob = log alpha_index,  entropy = -sum_j alpha_j log alpha_j

    log_prob and entropy are differentiable in the scores.  The context is not; its gradient goes to the chosen rows of
    `values` alone.  Values that were not chosen and scores that are masked have no influence, not even as NaN.

    Args:
        scores: e [*B T S]; -inf, or the lowest finite number, counts as masked.
        values: a [*B S V].
        key: random key; the draws are independent over batch and queries.
        mask: Boolean, True = attend, [*B T S] with each axis full or 1.

    Returns:
        HardSample: context [*B T V], the chosen values bit for bit; index [*B T], int32; log_prob and entropy [*B T], in
        float32 or wider.  Where the mask allows nothing, nothing is chosen: context 0, index -1, log_prob 0, entropy 0, and
        no gradient.  Where a score that is allowed is NaN or +inf, there is no distribution: NaN, index -1.

    Raises:
        TypeError: an array that is not floating, or a mask that is not Boolean.
        ValueError: shapes that do not fit together.

    >>> import jax, jax.numpy as jnp
    >>> scores, mask = jnp.array([[2.0, 2.0, 99.0]]), jnp.array([[True, True, False]])
    >>> sample = hard_attention(scores, jnp.array([[1.0], [2.0], [3.0]]), key=jax.random.key(0), mask=mask)
    >>> sample.index, sample.context, sample.log_prob.round(4)   # one of two equal keys: log 1/2
    (Array([1], dtype=int32), Array([[2.]], dtype=float32), Array([-0.6931], dtype=float32))

    Reference: Xu et al. Show, attend and tell: neural image caption generation with visual attention. ICML 2015, eq. 8-9.
    """
    scores, mask = _checked(scores, mask)
    return _sample(scores, _checked_values(values, scores), mask, key)


def reinforce_loss(
    log_prob: Annotated[ArrayLike, "*B"],
    reward: Annotated[ArrayLike, "*B"],
    *,
    baseline: Annotated[ArrayLike, "*B"] = 0.0,
    entropy: Annotated[ArrayLike, "*B"] | None = None,
    entropy_weight: ArrayLike = 0.0,
) -> Float[Array, "*B"]:
    """A loss whose gradient is, on average over samples, that of -(expected reward) - entropy_weight entropy.

        loss = -(reward - baseline) log_prob - entropy_weight entropy         reward and baseline held constant
        E[(r_s - b) d log alpha_s] = d sum_s alpha_s r_s - b d sum_s alpha_s = d E[r_s]

    so the baseline changes the variance, never the mean, as long as it does not depend on the choice it is compared with
    (it may depend on the query and on earlier choices).  In eq. 11 of the paper the reward of a choice is
    log p(y | s, a), and its own gradient is wanted too: add -log p(y | s, a), which is differentiable in the context.

    No gradient flows to the baseline, so it is fitted beside this loss: either as a moving average of the rewards,
    b <- 0.9 b + 0.1 mean(reward) (section 4.1 of the paper), or as a function of the query with a loss of its own,
    (b(query) - stop_gradient(reward))^2 (Mnih et al. 2014).

    Args:
        log_prob: of the choices, any shape [*B]; `HardSample.log_prob`, or its sum over the choices that earned one reward.
        reward: [*B], or one scalar for all; higher is better.
        baseline: [*B], or one scalar for all.
        entropy: [*B], `HardSample.entropy`.
        entropy_weight: a scalar; more of it keeps the choices more varied.

    Returns:
        [*B], the loss of each choice, in float32 or wider.  It is 0 where nothing was chosen (log_prob 0).

    Raises:
        TypeError: an array that is not floating.
        ValueError: shapes that differ, or an entropy_weight without entropy.

    >>> import jax, jax.numpy as jnp
    >>> reinforce_loss(jnp.array([-1.0, -2.0]), jnp.array([3.0, 0.0]), baseline=1.0)
    Array([ 2., -2.], dtype=float32)
    >>> jax.grad(lambda log_prob, reward: reinforce_loss(log_prob, reward), argnums=(0, 1))(-1.0, 3.0)
    (Array(-3., dtype=float32, weak_type=True), Array(0., dtype=float32, weak_type=True))

    Reference: Xu et al. 2015, eq. 11 and the learning rule at the end of section 4.1; Williams. Simple statistical
    gradient-following algorithms for connectionist reinforcement learning. 1992; Mnih et al. Recurrent models of visual
    attention. 2014, section 3.
    """
    log_prob = floating("log_prob", log_prob, "*B")
    reward, baseline = _per_choice("reward", reward, log_prob), _per_choice("baseline", baseline, log_prob)
    log_prob = log_prob.astype(compute_dtype(log_prob, reward, baseline))
    loss = -jax.lax.stop_gradient(reward - baseline) * log_prob
    if jnp.ndim(entropy_weight):
        raise ValueError(f"entropy_weight: expected a scalar, got shape {jnp.shape(entropy_weight)}")
    if entropy is not None:
        entropy = floating("entropy", entropy, "*B")
        expect("entropy", entropy, "*B", log_prob.shape)
        return loss - entropy_weight * entropy
    if is_traced(entropy_weight) or entropy_weight != 0:
        raise ValueError(f"entropy: expected shape (*B) = {log_prob.shape} for entropy_weight = {entropy_weight}, got None")
    return loss


def straight_through_weights(
    scores: Annotated[ArrayLike, "*B T S"],
    *,
    key: Array | None,
    temperature: ArrayLike = 1.0,
    mask: Annotated[ArrayLike, "*B T S"] | None = None,
) -> Float[Array, "*B T S"]:
    """One-hot weights of a sampled key, with the gradient of a softmax.

        forwards   weights = one_hot(argmax_j (e_j + g_j)),  g_j ~ Gumbel(0, 1): a draw from softmax(e)
        backwards  d weights = d softmax((e + g) / temperature)

    The gradient is biased, but of low variance.  A low temperature makes softmax and one-hot more alike and the gradient
    more erratic; Jang et al. start at 1 and lower it during training.

    Args:
        scores: e [*B T S]; -inf, or the lowest finite number, counts as masked.
        key: random key; None is the form for evaluation, without noise: the key of the highest score, the first among equals.
        temperature: a number > 0; not checked when traced.
        mask: Boolean, True = attend, [*B T S] with each axis full or 1.

    Returns:
        Weights [*B T S] in the dtype of `scores`, exactly 1 for the chosen key and exactly 0 for all others; 0 for all, with
        no gradient, where the mask allows nothing.  Where a score that is allowed is NaN or +inf: NaN.

    Raises:
        TypeError: scores that are not floating, or a mask that is not Boolean.
        ValueError: shapes that do not fit together, or temperature <= 0.

    >>> import jax, jax.numpy as jnp
    >>> scores = jnp.array([[1.0, 3.0, 2.0]])
    >>> straight_through_weights(scores, key=None, mask=jnp.array([[True, False, True]]))
    Array([[0., 0., 1.]], dtype=float32)
    >>> jax.grad(lambda scores: straight_through_weights(scores, key=None)[0, 0])(jnp.zeros((1, 2)))   # of the softmax
    Array([[ 0.25, -0.25]], dtype=float32)

    Reference: Jang, Gu, Poole. Categorical reparameterization with Gumbel-softmax. ICLR 2017, eq. 1-2 and section 2.2;
    Bengio, Léonard, Courville. Estimating or propagating gradients through stochastic neurons for conditional computation.
    2013.
    """
    scores, mask = _checked(scores, mask)
    return _straight_through_weights(scores, mask, key, _checked_temperature(temperature))


def straight_through_attention(
    scores: Annotated[ArrayLike, "*B T S"],
    values: Annotated[ArrayLike, "*B S V"],
    *,
    key: Array | None,
    temperature: ArrayLike = 1.0,
    mask: Annotated[ArrayLike, "*B T S"] | None = None,
) -> Float[Array, "*B T V"]:
    """The value of one sampled key for each query, with the gradient of soft attention towards the scores.

        context = weights . values,  weights = straight_through_weights(scores)

    The gradient towards `values` goes to the chosen rows, that towards the scores asks what every allowed value would have
    done.

    Args:
        scores: e [*B T S]; -inf, or the lowest finite number, counts as masked.
        values: [*B S V].
        key: random key; None is the form for evaluation, without noise: the key of the highest score, the first among equals.
        temperature: a number > 0; not checked when traced.
        mask: Boolean, True = attend, [*B T S] with each axis full or 1.

    Returns:
        Context [*B T V] in the dtype of `values`; 0, with no gradient, where the mask allows nothing.  A masked score or
        value has no influence, not even as NaN; a NaN or Inf that is allowed makes the context NaN, chosen or not, since the
        gradient depends on it.

    Raises:
        TypeError: an array that is not floating, or a mask that is not Boolean.
        ValueError: shapes that do not fit together, or temperature <= 0.

    >>> import jax.numpy as jnp
    >>> straight_through_attention(jnp.array([[1.0, 3.0, 2.0]]), jnp.array([[1.0], [2.0], [3.0]]), key=None)
    Array([[2.]], dtype=float32)

    Reference: Jang, Gu, Poole 2017, section 2.2; Xu et al. 2015, eq. 9.
    """
    scores, mask = _checked(scores, mask)
    values = _checked_values(values, scores)
    return _straight_through_attention(scores, values, mask, key, _checked_temperature(temperature))


def marginal_log_likelihood(
    scores: Annotated[ArrayLike, "*B T S"],
    log_likelihoods: Annotated[ArrayLike, "*B T S"],
    *,
    mask: Annotated[ArrayLike, "*B T S"] | None = None,
) -> Float[Array, "*B T"]:
    """log sum_j alpha_j p(y | j): the likelihood under hard attention, exact, with no sample.

        log p(y) = log sum_j exp(e_j + log p(y | j)) - log sum_j exp(e_j)          over the keys that the mask allows
        d log p(y) / d e_j = p(j | y) - alpha_j,  d log p(y) / d log p(y | j) = p(j | y)

    with the posterior p(j | y) = alpha_j p(y | j) / p(y).  By Jensen it is at least sum_j alpha_j log p(y | j), the bound L_s
    of eq. 10 that samples maximise.  It costs one evaluation of p(y | j) for each key.

    Args:
        scores: e [*B T S]; -inf, or the lowest finite number, counts as masked.
        log_likelihoods: log p(y_t | j) [*B T S] of the target when key j is attended to; -inf is probability 0.
        mask: Boolean, True = attend, [*B T S] with each axis full or 1.

    Returns:
        log p(y_t) [*B T], natural log, in float32 or wider; -inf, with no gradient, where the mask allows nothing or each
        allowed likelihood is 0.  NaN where a score or log-likelihood that is allowed is NaN or +inf.

    Raises:
        TypeError: an array that is not floating, or a mask that is not Boolean.
        ValueError: shapes that do not fit together.

    >>> import jax.numpy as jnp
    >>> likelihoods = jnp.array([[0.25, 0.75]])
    >>> jnp.exp(marginal_log_likelihood(jnp.zeros((1, 2)), jnp.log(likelihoods))).round(4)   # the mean of the two
    Array([0.5], dtype=float32)

    Reference: Wu, Shapiro, Cotterell. Hard non-monotonic attention for character-level transduction. EMNLP 2018;
    Deng et al. Latent alignment and variational attention. 2018; Xu et al. 2015, eq. 10.
    """
    scores, mask = _checked(scores, mask)
    log_likelihoods = floating("log_likelihoods", log_likelihoods, "*B T S")
    expect("log_likelihoods", log_likelihoods, "*B T S", scores.shape)
    return _marginal(scores, log_likelihoods, mask)


@jax.jit
def _sample(
    scores: Float[Array, "*B T S"], values: Float[Array, "*B S V"], mask: Bool[Array, "*#B #T #S"] | None, key: Array
) -> HardSample:
    shifted, allowed, undefined = below_peak(scores, mask)
    index = jnp.where(undefined, -1, highest(perturbed(shifted, key), allowed))
    exps, total, _ = exponentials(shifted, allowed)
    log_total = jnp.log(nonzero(total))
    log_prob = jnp.sum(shifted, axis=-1, keepdims=True, where=one_hot(index, scores.shape[-1])) - log_total
    # Where alpha is 0, so is alpha log alpha, though log alpha may be -inf.
    entropy = log_total - jnp.sum(exps * jnp.where(exps > 0, shifted, 0), axis=-1, keepdims=True) / nonzero(total)
    context = jnp.where(undefined[..., None], jnp.nan, rows(values, index)).astype(values.dtype)
    return HardSample(context, index, poison(log_prob, undefined)[..., 0], poison(entropy, undefined)[..., 0])


@jax.jit
def _straight_through_weights(
    scores: Float[Array, "*B T S"], mask: Bool[Array, "*#B #T #S"] | None, key: Array | None, temperature: ArrayLike
) -> Float[Array, "*B T S"]:
    shifted, allowed, undefined = below_peak(scores, mask)
    weights = straight_through_choice(shifted, allowed, key, temperature)
    return jnp.where(allowed, poison(weights, undefined), 0).astype(scores.dtype)


@jax.jit
def _straight_through_attention(
    scores: Float[Array, "*B T S"],
    values: Float[Array, "*B S V"],
    mask: Bool[Array, "*#B #T #S"] | None,
    key: Array | None,
    temperature: ArrayLike,
) -> Float[Array, "*B T V"]:
    shifted, allowed, undefined = below_peak(scores, mask)
    weights = straight_through_choice(shifted, allowed, key, temperature)
    dtype = compute_dtype(scores, values)
    # At a lower precision the product with 1 would round the values.
    context = jnp.matmul(weights.astype(dtype), finite_or_zero(values).astype(dtype), precision="highest")
    return poison(context, undefined | attends_nonfinite(allowed, has_nonfinite(values))).astype(values.dtype)


@jax.jit
def _marginal(
    scores: Float[Array, "*B T S"], log_likelihoods: Float[Array, "*B T S"], mask: Bool[Array, "*#B #T #S"] | None
) -> Float[Array, "*B T"]:
    shifted, allowed, undefined = below_peak(scores.astype(compute_dtype(scores, log_likelihoods)), mask)
    defined = log_likelihoods < jnp.inf
    _, total, _ = exponentials(shifted, allowed)
    _, joint_total, joint_peak = exponentials(shifted + jnp.where(defined, log_likelihoods, 0), allowed)
    marginal = jnp.log(nonzero(joint_total)) + joint_peak - jnp.log(nonzero(total))
    undefined |= jnp.any(allowed & ~defined, axis=-1)
    return poison(jnp.where(joint_total == 0, -jnp.inf, marginal), undefined)[..., 0]


def _checked(scores: ArrayLike, mask: ArrayLike | None) -> tuple[Array, Array | None]:
    scores = floating("scores", scores, "*B T S")
    return scores, None if mask is None else boolean_mask(mask, "*B T S", scores.shape)


def _checked_values(values: ArrayLike, scores: Array) -> Array:
    values = floating("values", values, "*B S V")
    *batch, _, S = scores.shape
    expect("values", values, "*B S V", (*batch, S, values.shape[-1]))
    return values


def _checked_temperature(temperature: ArrayLike) -> ArrayLike:
    if jnp.ndim(temperature):
        raise ValueError(f"temperature: expected a scalar, got shape {jnp.shape(temperature)}")
    if not is_traced(temperature) and not 0 < temperature < float("inf"):
        raise ValueError(f"temperature: expected a finite number > 0, got {temperature}")
    return temperature


def _per_choice(name: str, value: ArrayLike, log_prob: Array) -> Array:
    """`value`, once it is floating and a scalar or of the shape of `log_prob`."""
    array = floating(name, value, "*B")
    if array.ndim:
        expect(name, array, "*B", log_prob.shape)
    return array
