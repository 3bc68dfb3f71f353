"""Keys and values of the tokens so far, so that decoding computes those of the new tokens only.

Every row has its own length.  A cache never overwrites: tokens that do not fit are an error where the lengths are known, and
under a transformation they mark their row as `overflowed`.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Float, Int

from attn.shapes import expect, floating, is_traced, known, size


class KVCache(NamedTuple):
    """Keys and values of the tokens so far.  Every leaf has the batch axes in front, so that `tree.map` reorders beams."""

    key: Float[Array, "*B S K H"]
    value: Float[Array, "*B S K V"]
    length: Int[Array, "*B"]
    """Tokens so far; more than S after an update that did not fit."""

    @property
    def overflowed(self) -> Bool[Array, "*B"]:
        """Rows that were given more tokens than the cache holds."""
        return self.length > self.key.shape[-3]


def init_cache(
    batch_shape: int | tuple[int, ...],
    max_length: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    value_dim: int | None = None,
    dtype: DTypeLike = jnp.float32,
) -> KVCache:
    """An empty cache for `max_length` tokens in each row.

    Args:
        batch_shape: the batch axes *B; an integer is one axis, () none.
        max_length: S.
        num_kv_heads: K.
        head_dim: H.
        value_dim: V; H if not given.
        dtype: of keys and values.

    Returns:
        KVCache of zeros: [*B S K H], [*B S K V], [*B].

    Raises:
        ValueError: a negative size.

    >>> init_cache(2, 5, 4, 8).key.shape
    (2, 5, 4, 8)
    """
    batch = (batch_shape,) if isinstance(batch_shape, int) else tuple(batch_shape)
    value_dim = head_dim if value_dim is None else value_dim
    shape = (*(size("batch_shape", n) for n in batch), size("max_length", max_length), size("num_kv_heads", num_kv_heads))
    return KVCache(
        jnp.zeros((*shape, size("head_dim", head_dim)), dtype),
        jnp.zeros((*shape, size("value_dim", value_dim)), dtype),
        jnp.zeros(batch, jnp.int32),
    )


def update_cache(cache: KVCache, key: Annotated[ArrayLike, "*B T K H"], value: Annotated[ArrayLike, "*B T K V"]) -> KVCache:
    """Append T tokens to each row, at that row's own length.

    Args:
        cache: the tokens before.
        key: [*B T K H].
        value: [*B T K V].

    Returns:
        A cache with length + T tokens.  Inside a transformation, where nothing can be raised, a row to which they do not
        fit keeps its keys and values as they are, and `overflowed` says so from then on.

    Raises:
        ValueError: shapes that do not fit the cache, or a known length to which T tokens no longer fit.

    >>> import jax.numpy as jnp
    >>> cache = update_cache(init_cache((), 3, 1, 1), jnp.ones((2, 1, 1)), jnp.ones((2, 1, 1)))
    >>> cache.length, cache.key[:, 0, 0]
    (Array(2, dtype=int32), Array([1., 1., 0.], dtype=float32))
    """
    *batch, S, kv_heads, width = cache.key.shape
    key, value = floating("key", key, "*B T K H"), floating("value", value, "*B T K V")
    T = key.shape[-3]
    expect("key", key, "*B T K H", (*batch, T, kv_heads, width))
    expect("value", value, "*B T K V", (*batch, T, kv_heads, cache.value.shape[-1]))
    longest = max(known(cache.length) or (0,))
    if longest + T > S and not is_traced(cache.length):
        raise ValueError(f"cache: expected room for {T} more tokens after {longest}, but max_length is {S}")
    length = cache.length + T
    # A row that does not fit is sent beyond the end as a whole, where the scatter drops it.
    start = jnp.where(length > S, S, cache.length)
    positions = start[..., None] + jnp.arange(T, dtype=jnp.int32)
    return KVCache(_write(cache.key, key, positions), _write(cache.value, value, positions), length)


@jax.jit
def _write(
    old: Float[Array, "*B S K X"], new: Float[Array, "*B T K X"], positions: Int[Array, "*B T"]
) -> Float[Array, "*B S K X"]:
    rows = [rows[..., None] for rows in jnp.indices(positions.shape[:-1], sparse=True)]
    return old.at[(*rows, positions)].set(new.astype(old.dtype), mode="drop")
