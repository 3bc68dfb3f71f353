"""The table behind test_laws.py: every public function that attends, one row each.

A row adapts its function to `attend(query [T D], key [S D], value [S D], mask [T S] or None) -> context [T D]`, with any number
of batch axes in front, and stands beside the float64 NumPy reference of one sequence.  The functions that do not attend
(masks, positions, scores, projections, caches) are in parts.py.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import NamedTuple

import attention_reference as reference
import jax
import jax.numpy as jnp
import numpy as np

import attn
from attn import mods

T, S, D, A = 3, 4, 4, 5


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def parameters(arrays):
    return jax.tree.map(jnp.asarray, arrays)


ADDITIVE = attn.AdditiveParams(normal(1, D, A), normal(2, D, A), normal(3, A))
GENERAL = attn.GeneralParams(normal(8, D, D) / 2)
CONCAT = attn.ConcatParams(normal(9, 2 * D, A), normal(10, A))
LOCAL = attn.LocalParams(normal(11, D, A), normal(12, A))
MULTI_HEAD = attn.MultiHeadParams(normal(4, D, 2, 2) / 2, normal(5, D, 2, 2) / 2, normal(6, D, 2, 2) / 2, normal(7, 2, 2, D) / 2)
FEATURES = normal(13, 6, D)


class Mechanism(NamedTuple):
    """One row."""

    attend: Callable
    reference: Callable
    """(query, key, value, mask) -> context in float64 NumPy, of one sequence, mask [T S]."""
    takes: str = "mask"
    """"mask": any mask.  "lengths": the mask says how many keys are real, the same for every query."""
    causal: Callable | None = None
    """(query, key, value) -> context, where causality is an option; None where it is a mask."""
    exempt: frozenset[str] = frozenset()
    """Laws that the function cannot obey; the row says why."""


# --- adapters: from `attend(query, key, value, mask)` to the signature of each family -------------------------------------


def weighted(weigh):
    """A function of scores, between products that are the test's own."""

    def attend(query, key, value, mask):
        return weigh(query @ jnp.swapaxes(key, -2, -1), mask).astype(value.dtype) @ value

    return attend


def weights_of(function, *params, **options):
    """A function that gives weights; the product with the values is the test's own."""

    def attend(query, key, value, mask):
        return function(query, key, *map(parameters, params), mask=mask, **options).astype(value.dtype) @ value

    return attend


def single(function, *params, **options):
    """Single-head functions (query, keys, values, params...)."""

    def attend(query, key, value, mask):
        return function(query, key, value, *map(parameters, params), mask=mask, **options)

    return attend


def from_scores(function, **options):
    """Functions of scores and values."""

    def attend(query, key, value, mask):
        return function(query @ jnp.swapaxes(key, -2, -1), value, mask=mask, **options)

    return attend


def one_head(function, **options):
    def attend(query, key, value, mask):
        mask = None if mask is None else mask[..., None, :, :]
        split = partial(attn.split_heads, num_heads=1)
        return attn.merge_heads(function(split(query), split(key), split(value), mask=mask, **options))

    return attend


def one_head_of_lengths(function, **options):
    def attend(query, key, value, mask):
        lengths = None if mask is None else mask.any(-2).sum(-1)
        split = partial(attn.split_heads, num_heads=1)
        return attn.merge_heads(function(split(query), split(key), split(value), key_lengths=lengths, **options))

    return attend


def without_mask(attend):
    return lambda query, key, value: attend(query, key, value, None)


def context_of_both(*given, **options):
    return attn.dot_product_attention_and_lse(*given, **options)[0]


def grouped_heads(query, key, value, mask):
    """Two heads of the query, one of the keys; each gives half of the context."""
    mask = None if mask is None else mask[..., None, :, :]
    query, key, value = attn.split_heads(query, 2), attn.split_heads(key[..., : D // 2], 1), attn.split_heads(value, 1)
    return jnp.mean(context_of_both(query, key, value, mask=mask), axis=-2)


def head_weights(query, key, value, mask):
    mask = None if mask is None else mask[..., None, :, :]
    split = partial(attn.split_heads, num_heads=1)
    return attn.dot_product_weights(split(query), split(key), mask=mask)[..., 0, :, :].astype(value.dtype) @ value


def flexible(query, key, value, mask, mask_mod=None):
    """The mask as an array that mask_mod captures; the cap as a function of one score."""
    if mask is not None:
        flat = mask.reshape(prod(mask.shape[:-2]), *mask.shape[-2:])

        def mask_mod(b, h, i, j):
            return flat[b if flat.shape[0] > 1 else 0, i, j]

    split = partial(attn.split_heads, num_heads=1)
    return attn.merge_heads(
        attn.flex_attention(
            split(query), split(key), split(value), score_mod=mods.softcap(2.0), mask_mod=mask_mod, block_sizes=(2, 3)
        )
    )


def merged_parts(query, key, value, mask=None):
    """The keys in two parts, of which the first is a single one."""
    parts = [
        attn.dot_product_attention_and_lse(
            query, key[..., part, :, :], value[..., part, :, :], mask=None if mask is None else mask[..., part]
        )
        for part in (slice(1), slice(1, None))
    ]
    return attn.merge_attention(*parts[0], *parts[1])[0]


def diagonal_and_first_blocks(query, key, value, **options):
    """Blocks of 2 x 2: those on the diagonal, and the first keys for all."""
    rows, columns = (np.arange((x.shape[-3] + 1) // 2) for x in (query, key))
    blocks = (rows[:, None] == columns) | (columns == 0)
    return attn.block_sparse_attention(query, key, value, blocks, block_size=2, **options)


def multi_head(query, key, value, mask):
    mask = None if mask is None else mask[..., None, :, :]
    return attn.multi_head_attention(parameters(MULTI_HEAD), query, key, value, mask=mask)


def multi_head_weights(query, key, value, mask):
    mask = None if mask is None else mask[..., None, :, :]
    weights = attn.multi_head_weights(parameters(MULTI_HEAD), query, key, mask=mask)
    return jnp.mean(weights, axis=-3).astype(value.dtype) @ value


# --- references ----------------------------------------------------------------------------------------------------------


def dot(q, k):
    return q @ k


def half_dot(q, k):
    return q @ k / 2


def scaled_dot(q, k):
    return q @ k / np.sqrt(len(q))


def additive_score(q, k):
    return ADDITIVE.score_vector @ np.tanh(q @ ADDITIVE.query_kernel + k @ ADDITIVE.key_kernel)


def general_score(q, k):
    return q @ GENERAL.kernel @ k


def concat_score(q, k):
    return CONCAT.score_vector @ np.tanh(np.concatenate([q, k]) @ CONCAT.kernel)


def expected(score, weigh=reference.softmax, sees=lambda i, j: True):
    """c_i = sum_j weigh_j(score(q_i, k_j)) v_j over the keys that mask and `sees` allow."""

    def attend(query, key, value, mask):
        context = np.zeros((len(query), value.shape[-1]))
        for i, q in enumerate(query):
            allowed = np.array([mask[i, j] and sees(i, j) for j in range(len(key))], bool)
            scores = np.array([score(q, k) for k in key])
            context[i] = reference.average(weigh(scores, allowed), value)
        return context

    return attend


def local_predictive(query, key, value, mask):
    """p_t = S sigmoid(v_p . tanh(W_p h_t)); S is the number of keys, since no lengths are given; D = 2, sigma = D/2 = 1."""
    context = np.zeros((len(query), value.shape[-1]))
    for i, q in enumerate(query):
        centre = len(key) / (1 + np.exp(-LOCAL.position_vector @ np.tanh(q @ LOCAL.position_kernel)))
        near = np.array([abs(j - centre) <= 2 for j in range(len(key))], bool)
        weights = reference.softmax(np.array([dot(q, k) for k in key]), mask[i] & near)
        context[i] = reference.average(weights * np.exp(-((np.arange(len(key)) - centre) ** 2) / 2), value)
    return context


def threshold(transform):
    """Weights transform(score - tau) with tau such that they sum to 1, found by bisection (transform rises from 0 at 0)."""

    def weigh(scores, allowed):
        weights = np.zeros(len(scores))
        seen = np.flatnonzero(allowed)
        if len(seen):
            low, high = scores[seen].max() - 4, scores[seen].max()
            for _ in range(80):
                tau = (low + high) / 2
                low, high = (tau, high) if transform(np.maximum(scores[seen] - tau, 0)).sum() > 1 else (low, tau)
            weights[seen] = transform(np.maximum(scores[seen] - tau, 0))
        return weights

    return weigh


def one_hot(scores, allowed):
    weights = np.zeros(len(scores))
    if allowed.any():
        weights[np.argmax(np.where(allowed, scores, -np.inf))] = 1
    return weights


def largest(k):
    def weigh(scores, allowed):
        order = sorted(np.flatnonzero(allowed), key=lambda j: -scores[j])[:k]
        return reference.softmax(scores, np.isin(np.arange(len(scores)), order))

    return weigh


def ratios(scores, allowed):
    """Weights in proportion to non-negative scores: phi(q) . phi(k) of linear attention."""
    weights = np.where(allowed, scores, 0)
    return weights / weights.sum() if weights.sum() > 0 else weights


def elu1(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def exp_features(x):
    x = x / len(x) ** 0.25
    return np.exp(FEATURES @ x - x @ x / 2) / np.sqrt(len(FEATURES))


def kernel(phi):
    return lambda q, k: phi(q) @ phi(k)


def grouped_reference(query, key, value, mask):
    heads = query.reshape(len(query), 2, D // 2)
    context, _, _ = reference.dot_product(heads, key[:, None, : D // 2], value[:, None], np.stack([mask, mask]))
    return context.mean(1)


def multi_head_reference(query, key, value, mask):
    params = MULTI_HEAD._replace(query_bias=0, key_bias=0, value_bias=0, output_bias=0)
    return reference.multi_head(params, query, key, value, np.stack([mask, mask]))


def multi_head_weights_reference(query, key, value, mask):
    heads = [np.einsum("td,dnh->tnh", x, kernel) for x, kernel in zip((query, key), MULTI_HEAD, strict=False)]
    return reference.dot_product(*heads, np.zeros((len(key), 2, 1)), np.stack([mask, mask]))[2].mean(0) @ value


# The products around a function of scores or weights are the test's own: they cannot keep NaN out, nor refuse integers.
OWN_PRODUCTS = frozenset({"masked_nan_has_no_influence", "half_precision", "integers_are_refused"})
# A key's place matters, not only its content.
POSITIONAL = frozenset({"permutations"})

MECHANISMS = {
    "masked_softmax": Mechanism(weighted(attn.masked_softmax), expected(dot), exempt=OWN_PRODUCTS),
    "sparsemax": Mechanism(weighted(attn.sparsemax), expected(dot, threshold(lambda x: x)), exempt=OWN_PRODUCTS),
    "entmax15": Mechanism(weighted(attn.entmax15), expected(half_dot, threshold(np.square)), exempt=OWN_PRODUCTS),
    "additive_attention": Mechanism(single(attn.additive_attention, ADDITIVE), expected(additive_score)),
    "additive_weights": Mechanism(weights_of(attn.additive_weights, ADDITIVE), expected(additive_score), exempt=OWN_PRODUCTS),
    "dot_attention": Mechanism(single(attn.dot_attention), expected(dot)),
    "dot_weights": Mechanism(weights_of(attn.dot_weights), expected(dot), exempt=OWN_PRODUCTS),
    "general_attention": Mechanism(single(attn.general_attention, GENERAL), expected(general_score)),
    "general_weights": Mechanism(weights_of(attn.general_weights, GENERAL), expected(general_score), exempt=OWN_PRODUCTS),
    "concat_attention": Mechanism(single(attn.concat_attention, CONCAT), expected(concat_score)),
    "concat_weights": Mechanism(weights_of(attn.concat_weights, CONCAT), expected(concat_score), exempt=OWN_PRODUCTS),
    "local_monotonic_attention": Mechanism(
        single(attn.local_monotonic_attention, GENERAL, window=1),
        expected(general_score, sees=lambda i, j: abs(i - j) <= 1),
        exempt=POSITIONAL,
    ),
    "local_monotonic_weights": Mechanism(
        weights_of(attn.local_monotonic_weights, window=1),
        expected(dot, sees=lambda i, j: abs(i - j) <= 1),
        exempt=OWN_PRODUCTS | POSITIONAL,
    ),
    # The paper does not normalise again after the Gaussian: weights sum to less than 1.  A window may miss every key allowed.
    "local_predictive_attention": Mechanism(
        single(attn.local_predictive_attention, LOCAL, window=2),
        local_predictive,
        exempt=POSITIONAL | {"convex_hull", "weights_sum_to_one_or_zero", "future_is_not_seen", "masked_nan_has_no_influence"},
    ),
    "local_predictive_weights": Mechanism(
        weights_of(attn.local_predictive_weights, LOCAL, window=2),
        local_predictive,
        exempt=OWN_PRODUCTS | POSITIONAL | {"convex_hull", "weights_sum_to_one_or_zero", "future_is_not_seen"},
    ),
    # One-hot forwards, softmax backwards: on purpose not the derivative.  The scores are the test's own product.
    "straight_through_attention": Mechanism(
        from_scores(attn.straight_through_attention, key=None),
        expected(dot, one_hot),
        exempt=OWN_PRODUCTS | {"gradient_equals_reference", "derivatives_of_both_modes_and_orders"},
    ),
    "straight_through_weights": Mechanism(
        weighted(lambda scores, mask: attn.straight_through_weights(scores, key=None, mask=mask)),
        expected(dot, one_hot),
        exempt=OWN_PRODUCTS | {"gradient_equals_reference", "derivatives_of_both_modes_and_orders"},
    ),
    "dot_product_attention": Mechanism(
        one_head(attn.dot_product_attention),
        expected(scaled_dot),
        causal=without_mask(one_head(attn.dot_product_attention, is_causal=True)),
    ),
    # More than one block, the last of each not whole.
    "dot_product_attention, in blocks": Mechanism(
        one_head(attn.dot_product_attention, implementation="blockwise", block_sizes=(2, 3)),
        expected(scaled_dot),
        causal=without_mask(
            one_head(attn.dot_product_attention, is_causal=True, implementation="blockwise", block_sizes=(2, 3))
        ),
    ),
    # Its mask is a function; what that may return is in test_flex.py.
    "flex_attention": Mechanism(
        flexible,
        expected(lambda q, k: 2 * np.tanh(scaled_dot(q, k) / 2)),
        causal=lambda query, key, value: flexible(query, key, value, None, mods.causal()),
        exempt=frozenset({"wrong_masks_are_refused"}),
    ),
    "dot_product_attention_and_lse": Mechanism(one_head(context_of_both), expected(scaled_dot)),
    "dot_product_attention_and_lse, grouped": Mechanism(grouped_heads, grouped_reference),
    "dot_product_weights": Mechanism(head_weights, expected(scaled_dot), exempt=OWN_PRODUCTS),
    # Each part is right to half precision by itself, and the join rounds once more.
    "merge_attention": Mechanism(one_head(merged_parts), expected(scaled_dot), exempt=frozenset({"half_precision"})),
    # Its values go through two linear maps.
    "multi_head_attention": Mechanism(
        multi_head, multi_head_reference, exempt=frozenset({"convex_hull", "weights_sum_to_one_or_zero"})
    ),
    "multi_head_weights": Mechanism(multi_head_weights, multi_head_weights_reference, exempt=OWN_PRODUCTS),
    "sliding_window_attention": Mechanism(
        one_head_of_lengths(attn.sliding_window_attention, left=1, right=1, block_size=2),
        expected(scaled_dot, sees=lambda i, j: abs(i - j) <= 1),
        takes="lengths",
        causal=without_mask(one_head_of_lengths(attn.sliding_window_attention, left=2, right=0, block_size=2)),
        exempt=POSITIONAL,
    ),
    "dilated_attention": Mechanism(
        one_head_of_lengths(attn.dilated_attention, left=1, right=1, dilation=2, block_size=2),
        expected(scaled_dot, sees=lambda i, j: i - j in (-2, 0, 2)),
        takes="lengths",
        causal=without_mask(one_head_of_lengths(attn.dilated_attention, left=1, right=0, dilation=2, block_size=2)),
        exempt=POSITIONAL,
    ),
    "strided_attention": Mechanism(
        one_head_of_lengths(attn.strided_attention, stride=2),
        expected(scaled_dot, sees=lambda i, j: j <= i and (i - j < 2 or (i - j) % 2 == 0)),
        takes="lengths",
        causal=without_mask(one_head_of_lengths(attn.strided_attention, stride=2)),
        exempt=POSITIONAL,
    ),
    "fixed_attention": Mechanism(
        one_head_of_lengths(attn.fixed_attention, stride=2),
        expected(scaled_dot, sees=lambda i, j: j <= i and (i // 2 == j // 2 or j % 2 == 1)),
        takes="lengths",
        causal=without_mask(one_head_of_lengths(attn.fixed_attention, stride=2)),
        exempt=POSITIONAL,
    ),
    "top_k_attention": Mechanism(
        one_head(attn.top_k_attention, k=2, block_size=2),
        expected(scaled_dot, largest(2)),
        causal=without_mask(one_head(attn.top_k_attention, k=2, block_size=2, is_causal=True)),
        # A value that is allowed but not among the k has no influence, not even as NaN.
        exempt=frozenset({"nan_stays_with_the_queries_that_attend_to_it"}),
    ),
    "block_sparse_attention": Mechanism(
        one_head_of_lengths(diagonal_and_first_blocks),
        expected(scaled_dot, sees=lambda i, j: j // 2 in (0, i // 2)),
        takes="lengths",
        causal=without_mask(one_head_of_lengths(diagonal_and_first_blocks, is_causal=True)),
        exempt=POSITIONAL,
    ),
    "linear_attention": Mechanism(
        one_head_of_lengths(attn.linear_attention),
        expected(kernel(elu1), ratios),
        takes="lengths",
        causal=without_mask(one_head_of_lengths(attn.linear_attention, is_causal=True, chunk_size=2)),
    ),
    "linear_attention, exp": Mechanism(
        lambda *given: one_head_of_lengths(attn.linear_attention, feature_map="exp", projection=jnp.asarray(FEATURES))(*given),
        expected(kernel(exp_features), ratios),
        takes="lengths",
        causal=lambda *given: one_head_of_lengths(
            attn.linear_attention, feature_map="exp", projection=jnp.asarray(FEATURES), is_causal=True, chunk_size=2
        )(*given, None),
    ),
}  # fmt: skip
