"""Causal linear attention inside a chunk of C positions, where each query meets each key up to its own.

    numerator_i = sum_{j <= i} phi(q_i) . phi(k_j) v_j        Katharopoulos et al. 2020, eq. 8-9

Names and layout as in linear_recurrence.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.feature_maps import Features
from attn.linear_recurrence import LinearState, read, relative_to_peak
from attn.masks import causal_mask


def split_chunks(x: Array, chunk: int, axis: int) -> Array:
    """[.. T ..] -> [T/C .. C ..], padded with zeros to whole chunks."""
    axis += x.ndim
    padded = jnp.pad(x, [(0, -x.shape[n] % chunk if n == axis else 0) for n in range(x.ndim)])
    count = padded.shape[axis] // chunk
    return jnp.moveaxis(padded.reshape(*x.shape[:axis], count, chunk, *x.shape[axis + 1 :]), axis, 0)


def within_chunk(
    state: LinearState, queries: Features, keys: Features, values: Float[Array, "*B K C V"]
) -> Float[Array, "*B K C G V1"]:
    """Numerator and normaliser of a chunk: the keys before it from the state, its own where j <= i."""
    values = jnp.concatenate([values, jnp.ones_like(values[..., :1])], axis=-1)
    if keys.exponent is None:
        C = values.shape[-2]
        scores = jnp.einsum("...igf,...jf->...igj", queries.mantissa, keys.mantissa)
        scores = jnp.where(causal_mask(C)[:, None], scores, 0)
        return read(queries, state) + jnp.einsum("...igj,...jv->...igv", scores, values)
    largest = jax.lax.cummax(jax.lax.stop_gradient(keys.exponent), axis=keys.exponent.ndim - 2)
    queries = relative_to_peak(queries, jnp.maximum(largest, state.log_scale[..., None, :]))
    return read(queries, state) + _own_key(queries, keys, values) + _earlier_halves(queries, keys, values)


def _own_key(queries: Features, keys: Features, values: Float[Array, "*B K C V1"]) -> Float[Array, "*B K C G V1"]:
    """The term j = i."""
    similarity = jnp.exp(queries.exponent + keys.exponent[..., None, :]) * queries.mantissa * keys.mantissa[..., None, :]
    return jnp.sum(similarity, axis=-1, keepdims=True) * values[..., None, :]


def _earlier_halves(queries: Features, keys: Features, values: Float[Array, "*B K C V1"]) -> Float[Array, "*B K C G V1"]:
    """The terms j < i of a chunk, by halves: the later half of every block of 2, 4, ... C meets the earlier half.

    All keys of an earlier half are seen by all queries of the later one, so they may have one log scale and phi(q) . phi(k) is
    a product of matrices.  Under a triangular mask there is no such scale: that of the last key would hide the first.
    """
    total = jnp.zeros((*queries.mantissa.shape[:-1], values.shape[-1]), values.dtype)
    half = 1
    while half < values.shape[-2]:
        query_mantissa, query_exponent = (_half(x, half, -3, 1) for x in queries)
        key_mantissa, key_exponent = (_half(x, half, -2, 0) for x in keys)
        log_scale = jax.lax.stop_gradient(jnp.max(key_exponent, axis=-2, keepdims=True))
        key_weights = key_mantissa * jnp.exp(key_exponent - log_scale)
        query_weights = query_mantissa * jnp.exp(query_exponent + log_scale[..., None, :])
        scores = jnp.einsum("...igf,...jf->...igj", query_weights, key_weights)
        later = jnp.einsum("...igj,...jw->...igw", scores, _half(values, half, -2, 0))
        total = total + jnp.stack([jnp.zeros_like(later), later], axis=-4).reshape(total.shape)
        half *= 2
    return total


def _half(x: Float[Array, "..."], half: int, axis: int, which: int) -> Float[Array, "..."]:
    """The earlier (0) or later (1) half of every block of 2 half along `axis`, whose place blocks x half take."""
    axis += x.ndim
    count = x.shape[axis] // (2 * half)
    blocks = x.reshape(*x.shape[:axis], count, 2, half, *x.shape[axis + 1 :])
    return jax.lax.index_in_dim(blocks, which, axis + 1, keepdims=False)
