"""Additive attention (Bahdanau et al. 2015, Appendix A.1.2).

    e_ij  = v . tanh(W s_{i-1} + U h_j)          scores
    alpha = softmax_j(e_ij)                      weights, eq. 6
    c_i   = sum_j alpha_ij h_j                   context, eq. 5

Names: the paper's W_a is `query_kernel` (applied to the decoder state s, our query), U_a is `key_kernel` (applied to the
encoder states h, our keys), v_a is `score_vector`.  U h_j does not depend on i: `project_keys` computes it once for all steps.
The form softmax(tanh(W_Q Q + W_K K)) V found in surveys is of the same family, with v folded into a scalar projection.

Two implementations of one meaning: "dense" holds the whole tensor W s_i + U h_j [*B T S A], "blockwise" one block of it at a
time, in every derivative too; `additive_blocks.select_additive_implementation` says which one "auto" takes.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Float

from attn.additive_blocks import blockwise_scores, select_additive_implementation
from attn.isolation import attends_nonfinite, finite_or_zero, has_nonfinite, poison
from attn.normalize import exponentials, nonzero
from attn.projection import project
from attn.shapes import boolean_mask, compute_dtype, expect, floating, size

IMPLEMENTATIONS = ("auto", "dense", "blockwise")


class AdditiveParams(NamedTuple):
    """W, U and v of the alignment model."""

    query_kernel: Float[Array, "Dq A"]
    key_kernel: Float[Array, "Dk A"]
    score_vector: Float[Array, " A"]


def init_additive(key: Array, query_dim: int, key_dim: int, align_dim: int, dtype: DTypeLike = jnp.float32) -> AdditiveParams:
    """Random parameters that keep W s + U h at unit variance for inputs of unit variance.

    The paper (Appendix B.1) draws W and U from N(0, 0.001^2) and sets v to zero, which with today's optimisers only delays
    the start; here W and U have variance 1/(2 D) and v has variance 1/A.

    Args:
        key: random key.
        query_dim: Dq, width of a query.
        key_dim: Dk, width of a key.
        align_dim: A, width of the alignment model.
        dtype: floating dtype of the parameters.

    Returns:
        AdditiveParams of shapes [Dq A], [Dk A], [A].

    Raises:
        ValueError: a size that is no integer >= 0.

    >>> import jax
    >>> jax.tree.map(lambda leaf: leaf.shape, init_additive(jax.random.key(0), 4, 6, 5))
    AdditiveParams(query_kernel=(4, 5), key_kernel=(6, 5), score_vector=(5,))

    Reference: Bahdanau et al. 2015, Appendix A.1.2 and B.1.
    """
    query_dim, key_dim, align_dim = size("query_dim", query_dim), size("key_dim", key_dim), size("align_dim", align_dim)
    query_key, key_key, score_key = jax.random.split(key, 3)
    return AdditiveParams(
        jax.random.normal(query_key, (query_dim, align_dim), dtype) * (2 * max(query_dim, 1)) ** -0.5,
        jax.random.normal(key_key, (key_dim, align_dim), dtype) * (2 * max(key_dim, 1)) ** -0.5,
        jax.random.normal(score_key, (align_dim,), dtype) * max(align_dim, 1) ** -0.5,
    )


def project_keys(keys: Annotated[ArrayLike, "*B S Dk"], params: AdditiveParams) -> Float[Array, "*B S A"]:
    """U h_j for every key, to be computed once and passed as `projected_keys` at every step.

    Args:
        keys: encoder states h [*B S Dk].
        params: of the alignment model.

    Returns:
        [*B S A], in the dtype of `keys`.  A key that holds NaN or Inf gives NaN, in its own row only.

    Raises:
        TypeError: keys that are not floating.
        ValueError: keys that do not fit `params`.

    >>> import jax, jax.numpy as jnp
    >>> params = init_additive(jax.random.key(0), 4, 6, 5)
    >>> project_keys(jnp.ones((2, 3, 6)), params).shape
    (2, 3, 5)

    Reference: Bahdanau et al. 2015, Appendix A.1.2.
    """
    keys = floating("keys", keys, "*B S Dk")
    expect("keys", keys, "*B S Dk", (*keys.shape[:-1], params.key_kernel.shape[0]))
    return project(keys, params.key_kernel, isolate=True).astype(keys.dtype)


def additive_scores(
    query: Annotated[ArrayLike, "*B T Dq"],
    keys: Annotated[ArrayLike, "*B S Dk"] | None,
    params: AdditiveParams,
    *,
    projected_keys: Annotated[ArrayLike, "*B S A"] | None = None,
    implementation: str = "auto",
) -> Float[Array, "*B T S"]:
    """e_ij = v . tanh(W q_i + U k_j).

    Args:
        query: [*B T Dq].
        keys: [*B S Dk]; may be None when `projected_keys` is given.
        params: W, U and v.
        projected_keys: what `project_keys(keys, params)` returned.
        implementation: "dense", "blockwise" or "auto" (see `select_additive_implementation`).

    Returns:
        Scores [*B T S], in float32 or wider.

    Raises:
        TypeError: an array that is not floating.
        ValueError: shapes that do not fit together, or an unknown implementation.

    >>> import jax.numpy as jnp
    >>> params = AdditiveParams(jnp.ones((1, 2)), jnp.ones((1, 2)), jnp.array([1.0, 2.0]))
    >>> additive_scores(jnp.array([[1.0]]), jnp.array([[0.0], [-1.0]]), params).round(4)   # 3 tanh(1 + 0), 3 tanh(1 - 1)
    Array([[2.2848, 0.    ]], dtype=float32)

    Reference: Bahdanau et al. 2015, Appendix A.1.2.
    """
    _check_implementation(implementation)
    query, projected = _checked(query, keys, params, projected_keys)
    return _scores(query, projected, params, None, implementation)


def additive_weights(
    query: Annotated[ArrayLike, "*B T Dq"],
    keys: Annotated[ArrayLike, "*B S Dk"] | None,
    params: AdditiveParams,
    *,
    mask: Annotated[ArrayLike, "*B T S"] | None = None,
    projected_keys: Annotated[ArrayLike, "*B S A"] | None = None,
    implementation: str = "auto",
) -> Float[Array, "*B T S"]:
    """alpha_ij = softmax_j(v . tanh(W q_i + U k_j)) over the keys that the mask allows.

    Args:
        query: [*B T Dq].
        keys: [*B S Dk]; may be None when `projected_keys` is given.
        params: W, U and v.
        mask: Boolean, True = attend, [*B T S] with each axis full or 1.
        projected_keys: what `project_keys(keys, params)` returned.
        implementation: "dense", "blockwise" or "auto" (see `select_additive_implementation`).

    Returns:
        Weights [*B T S], in float32 or wider; each row sums to 1, or to 0 where the mask allows nothing.

    Raises:
        TypeError: an array that is not floating, or a mask that is not Boolean.
        ValueError: shapes that do not fit together, or an unknown implementation.

    >>> import jax.numpy as jnp
    >>> params = AdditiveParams(jnp.ones((1, 2)), jnp.ones((1, 2)), jnp.array([1.0, 2.0]))
    >>> additive_weights(jnp.array([[1.0]]), jnp.array([[0.0], [0.0], [5.0]]), params, mask=jnp.array([[True, True, False]]))
    Array([[0.5, 0.5, 0. ]], dtype=float32)

    Reference: Bahdanau et al. 2015, eq. 6.
    """
    _check_implementation(implementation)
    query, projected = _checked(query, keys, params, projected_keys)
    mask = _checked_mask(mask, query, projected)
    exps, total, _ = exponentials(_scores(query, projected, params, mask, implementation), mask)
    weights = exps / nonzero(total)
    if mask is None:
        return weights
    return jnp.where(mask, poison(weights, attends_nonfinite(mask, has_nonfinite(projected))), 0)


def additive_attention(
    query: Annotated[ArrayLike, "*B T Dq"],
    keys: Annotated[ArrayLike, "*B S Dk"] | None,
    values: Annotated[ArrayLike, "*B S V"],
    params: AdditiveParams,
    *,
    mask: Annotated[ArrayLike, "*B T S"] | None = None,
    projected_keys: Annotated[ArrayLike, "*B S A"] | None = None,
    implementation: str = "auto",
) -> Float[Array, "*B T V"]:
    """c_i = sum_j alpha_ij v_j with alpha_ij = softmax_j(v . tanh(W q_i + U k_j)).

    In the paper keys and values are both the encoder states h_j.

    Args:
        query: [*B T Dq]; the paper's s_{i-1}, T = 1 in each decoding step.
        keys: [*B S Dk]; may be None when `projected_keys` is given.
        values: [*B S V].
        params: W, U and v.
        mask: Boolean, True = attend, [*B T S] with each axis full or 1.
        projected_keys: what `project_keys(keys, params)` returned.
        implementation: "dense", "blockwise" or "auto" (see `select_additive_implementation`).

    Returns:
        Context [*B T V], in the dtype of `values`; 0 where the mask allows nothing.  A masked key or value has no
        influence on it, nor on any gradient, not even as NaN.

    Raises:
        TypeError: an array that is not floating, or a mask that is not Boolean.
        ValueError: shapes that do not fit together, or an unknown implementation.

    >>> import jax.numpy as jnp
    >>> params = AdditiveParams(jnp.ones((1, 2)), jnp.ones((1, 2)), jnp.array([1.0, 2.0]))
    >>> keys = jnp.array([[0.0], [0.0], [5.0]])
    >>> additive_attention(jnp.array([[1.0]]), keys, jnp.eye(3), params, mask=jnp.array([[True, True, False]]))
    Array([[0.5, 0.5, 0. ]], dtype=float32)

    Reference: Bahdanau et al. 2015, eq. 5-6 and Appendix A.1.2.
    """
    _check_implementation(implementation)
    query, projected = _checked(query, keys, params, projected_keys)
    values = floating("values", values, "*B S V")
    expect("values", values, "*B S V", (*projected.shape[:-1], values.shape[-1]))
    mask = _checked_mask(mask, query, projected)
    exps, total, _ = exponentials(_scores(query, projected, params, mask, implementation), mask)
    return _average(exps, total, values, projected, mask).astype(values.dtype)


@partial(jax.jit, static_argnames="implementation")
def _scores(
    query: Float[Array, "*B T Dq"],
    projected: Float[Array, "*B S A"],
    params: AdditiveParams,
    mask: Bool[Array, "*#B #T #S"] | None,
    implementation: str,
) -> Float[Array, "*B T S"]:
    if mask is not None:
        query = jnp.where(jnp.any(mask, axis=-1)[..., None], query, 0)
        projected = finite_or_zero(projected)
    if implementation == "auto":
        implementation = select_additive_implementation(prod(query.shape[:-2]), query.shape[-2], *projected.shape[-2:])
    dtype = compute_dtype(query, projected)
    score_vector = params.score_vector.astype(dtype)
    query = project(query, params.query_kernel)
    if implementation == "blockwise":
        return blockwise_scores(query.astype(dtype), projected.astype(dtype), score_vector)
    hidden = query[..., :, None, :] + projected[..., None, :, :]
    return jnp.matmul(jnp.tanh(hidden.astype(dtype)), score_vector)


@jax.jit
def _average(
    exps: Float[Array, "*B T S"],
    total: Float[Array, "*B T 1"],
    values: Float[Array, "*B S V"],
    projected: Float[Array, "*B S A"],
    mask: Bool[Array, "*#B #T #S"] | None,
) -> Float[Array, "*B T V"]:
    """sum_j exps_ij v_j / total_i, with NaN in a key or value kept from the queries that do not attend to it."""
    safe = values if mask is None else finite_or_zero(values)
    context = jnp.matmul(exps, safe.astype(exps.dtype)) / nonzero(total)
    if mask is None:
        return context
    return poison(context, attends_nonfinite(mask, has_nonfinite(values) | has_nonfinite(projected)))


def _check_implementation(implementation: str) -> None:
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation: expected one of {', '.join(map(repr, IMPLEMENTATIONS))}, got {implementation!r}")


def _checked(query, keys, params, projected_keys) -> tuple[Float[Array, "*B T Dq"], Float[Array, "*B S A"]]:
    query = floating("query", query, "*B T Dq")
    width, align_dim = params.query_kernel.shape
    expect("query", query, "*B T Dq", (*query.shape[:-1], width))
    expect("score_vector", params.score_vector, "A", (align_dim,))
    if projected_keys is None:
        if keys is None:
            raise ValueError("keys: expected shape (*B, S, Dk), or projected_keys of shape (*B, S, A), got neither")
        expect("key_kernel", params.key_kernel, "Dk A", (params.key_kernel.shape[0], align_dim))
        projected = project_keys(keys, params)
        expect("keys", jnp.asarray(keys), "*B S Dk", (*query.shape[:-2], *jnp.shape(keys)[-2:]))
    else:
        projected = floating("projected_keys", projected_keys, "*B S A")
        expect("projected_keys", projected, "*B S A", (*query.shape[:-2], projected.shape[-2], align_dim))
    return query, projected


def _checked_mask(mask, query, projected) -> Bool[Array, "..."] | None:
    if mask is None:
        return None
    return boolean_mask(mask, "*B T S", (*query.shape[:-1], projected.shape[-2]))
