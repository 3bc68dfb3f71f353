"""Additive scores in blocks: the tensor [B T S A] of v . tanh(q_i + k_j) is never held, one block of it at a time is.

    e_ij  = sum_a v_a h_ija,    h_ij = tanh(q_i + k_j)                                      Bahdanau et al. 2015, A.1.2
    de_ij = sum_a h'_ija (v_a dq_ia) + sum_a h'_ija (v_a dk_ja) + sum_a h_ija dv_a,   h' = (1 - h) (1 + h)

where q = W s and k = U h are projected already.  Read backwards, the second line says that the gradients of q, k and v are
three products of a block of h' or h with the gradient of its scores.  The backward pass makes each block again, so that only
q, k, v and the scores are kept.
"""

from __future__ import annotations

from functools import partial
from math import isqrt, prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Elements of a block, 4 MiB in float32. On two CPU cores a half or a quarter of it took up to 30 % longer.
BLOCK_ELEMENTS = 2**20
# An accelerator wants few large steps.
ACCELERATOR_BLOCK_ELEMENTS = 2**24
# Up to here, two blocks, dense is as fast or faster.
DENSE_ELEMENTS = 2**21


class Blocks(NamedTuple):
    """Sizes: gb batch entries, bt queries and bs keys at once."""

    gb: int
    bt: int
    bs: int


def select_additive_implementation(batch: int, query_length: int, key_length: int, align_dim: int) -> str:
    """The implementation that "auto" stands for: a pure rule of the shapes.

        dense    if T <= 1 or S <= 1 or B T S A <= 2^21, else blockwise

    With a single query or key, as in each step of a decoder, [B T S A] is no larger than the projected keys or queries.
    On two CPU cores, with and without gradient, dense took about as long up to 2^21 elements and mostly less; from 2^22 on
    blockwise took as long or less, a quarter for 2^27.

    Args:
        batch: B, the product of all batch axes; those of an enclosing `vmap` are not seen.
        query_length: T.
        key_length: S.
        align_dim: A.

    Returns:
        "dense" or "blockwise".

    >>> select_additive_implementation(16, 1, 128, 512), select_additive_implementation(16, 128, 128, 512)
    ('dense', 'blockwise')
    """
    small = batch * query_length * key_length * align_dim <= DENSE_ELEMENTS
    return "dense" if small or min(query_length, key_length) <= 1 else "blockwise"


def choose_blocks(batch: int, query_length: int, key_length: int, align_dim: int, elements: int | None = None) -> Blocks:
    """Blocks of at most `elements` (but for a single pair), as square as the lengths allow: then sums over both are long."""
    if elements is None:
        elements = BLOCK_ELEMENTS if jax.default_backend() == "cpu" else ACCELERATOR_BLOCK_ELEMENTS
    pairs = max(elements // max(align_dim, 1), 1)
    bs = _even_part(key_length, max(isqrt(pairs), pairs // max(query_length, 1)))
    bt = _even_part(query_length, pairs // bs)
    return Blocks(_even_part(batch, pairs // (bt * bs)), bt, bs)


def _even_part(length: int, most: int) -> int:
    """The smallest part of which as few cover the length as of the largest."""
    return max(-(-length // max(-(-length // max(most, 1)), 1)), 1)


def blockwise_scores(
    query: Float[Array, "*B T A"],
    keys: Float[Array, "*B S A"],
    score_vector: Float[Array, " A"],
    sizes: Blocks | None = None,
) -> Float[Array, "*B T S"]:
    """sum_a v_a tanh(q_ia + k_ja) of projected queries and keys in one dtype, float32 or wider."""
    *batch, T, A = query.shape
    B, S = prod(batch), keys.shape[-2]
    gb, bt, bs = sizes or choose_blocks(B, T, S, A)
    query, keys = _cut(query.reshape(B, T, A), gb, bt), _cut(keys.reshape(B, S, A), gb, bs)

    # Each step of a loop adds to the gradient of what stays the same in it.  So nested, that is one block of keys in the
    # innermost loop, and in the next the queries of a group, once for each block of keys.
    def with_keys(queries, block):
        return jax.lax.map(lambda query: _block_scores(query, block, score_vector), queries)

    def group(queries_and_keys):
        queries, blocks = queries_and_keys
        return jax.lax.map(partial(with_keys, queries), blocks)

    scores = jnp.transpose(jax.lax.map(group, (query, keys)), (0, 3, 2, 4, 1, 5))
    groups, _, rows, _, columns, _ = scores.shape
    return scores.reshape(groups * gb, rows * bt, columns * bs)[:B, :T, :S].reshape(*batch, T, S)


def _cut(x: Float[Array, "B T A"], gb: int, bt: int) -> Float[Array, "b t gb bt A"]:
    """x in blocks, filled up with zeros, whose scores nobody reads."""
    B, T, A = x.shape
    whole = jnp.pad(x, [(0, -B % gb), (0, -T % bt), (0, 0)])
    return whole.reshape(-(-B // gb), gb, -(-T // bt), bt, A).swapaxes(1, 2)


# Nothing of a block is kept: not by a derivative, whose rule makes it again, nor by a derivative of a gradient, for which
# jax has forgotten the rule but not the checkpoint. Inside a loop nothing can be shared, so no sharing has to be prevented.
@jax.custom_jvp
@partial(jax.checkpoint, prevent_cse=False)
def _block_scores(
    query: Float[Array, "gb bt A"], keys: Float[Array, "gb bs A"], score_vector: Float[Array, " A"]
) -> Float[Array, "gb bt bs"]:
    return jnp.matmul(_hidden(query, keys), score_vector)


@_block_scores.defjvp
def _(primals, tangents):
    return _block_scores(*primals), jax.checkpoint(_block_change, prevent_cse=False)(*primals, *tangents)


def _block_change(query, keys, v, d_query, d_keys, d_v) -> Float[Array, "gb bt bs"]:
    """de, as three products.  XLA:CPU took up to seven times as long for the sums over s that it makes of plain tanh."""
    hidden = _hidden(query, keys)
    slope = (1 - hidden) * (1 + hidden)
    by_query = jnp.einsum("btsa,bta->bts", slope, v * d_query)
    by_key = jnp.einsum("btsa,bsa->bts", slope, v * d_keys)
    return by_query + by_key + jnp.matmul(hidden, d_v)


def _hidden(query: Float[Array, "gb bt A"], keys: Float[Array, "gb bs A"]) -> Float[Array, "gb bt bs A"]:
    return jnp.tanh(query[:, :, None] + keys[:, None])
