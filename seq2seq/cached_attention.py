"""Attention of one new target position of each hypothesis, laid out for decoding.

    keys    [B N H K S]      scores  = (q / sqrt(H)) K + bias
    values  [B N K S H]      context = softmax(scores) V

B sources have K hypotheses each, R = B K.  Two things make a step cheap:

- The K hypotheses of a source attend together, as one product of two matrices that reads keys and values in the order they lie
  in memory.  The layout of training, [B S N H], takes many times as long for a single query on a CPU.
- A beam search gathers its caches by parent, and would copy every key and value at every step.  Here they stay where they
  were written, and `origin` says who wrote position s of hypothesis k: only this small table is gathered (`reorder`).  Scores
  are made with the keys of all K writers, and those of other lines of descent are masked.

Nothing that is masked here can be NaN, since a cache begins as zeros; `attn.dot_product_attention` would look for it at every
step.  The results are those of `attn.multi_head_attention`, and the tests hold them to it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Int

import attn


class SourceMemory(NamedTuple):
    """Keys and values of a source, projected once for all steps."""

    key: Float[Array, "B N H S"]
    value: Float[Array, "B N S H"]


class Cache(NamedTuple):
    """Keys and values of the positions so far, as hypothesis k wrote them; S is the room."""

    key: Float[Array, "B N H K S"]
    value: Float[Array, "B N K S H"]


class Ancestry(NamedTuple):
    """Where the positions of each hypothesis stand in the caches of every layer."""

    origin: Int[Array, "B K S"]
    """The hypothesis that wrote position s of hypothesis k; -1 where there is none."""
    length: Int[Array, "B"]
    """Positions so far; more than S after one that did not fit."""

    @property
    def overflowed(self) -> Bool[Array, "B"]:
        """Sources whose hypotheses were given more positions than there is room for."""
        return self.length > self.origin.shape[-1]

    @property
    def seen(self) -> Bool[Array, "B 1 K KS"]:
        """True where position s of writer k' belongs to hypothesis k."""
        B, K, S = self.origin.shape
        return (self.origin[:, :, None] == jnp.arange(K)[:, None]).reshape(B, 1, K, K * S)


def for_steps(key: Float[Array, "B S N H"], value: Float[Array, "B S N H"]) -> SourceMemory:
    """Projected keys and values in the layout of this module."""
    return SourceMemory(key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3))


def init_cache(batch: int, beams: int, room: int, num_heads: int, head_dim: int, dtype: DTypeLike = jnp.float32) -> Cache:
    """A cache of zeros with `room` positions for each hypothesis.

    >>> init_cache(2, 3, 5, 4, 8).key.shape
    (2, 4, 8, 3, 5)
    """
    key, value = (batch, num_heads, head_dim, beams, room), (batch, num_heads, beams, room, head_dim)
    return Cache(jnp.zeros(key, dtype), jnp.zeros(value, dtype))


def init_ancestry(batch: int, beams: int, room: int) -> Ancestry:
    """No position yet."""
    return Ancestry(jnp.full((batch, beams, room), -1, jnp.int32), jnp.zeros(batch, jnp.int32))


def advance(ancestry: Ancestry) -> Ancestry:
    """One more position, which every hypothesis writes itself; where there is no room, only the length grows."""
    B, K, _ = ancestry.origin.shape
    origin = ancestry.origin.at[jnp.arange(B), :, ancestry.length].set(jnp.arange(K), mode="drop")
    return Ancestry(origin, ancestry.length + 1)


def grow_cache(cache: Cache, room: int) -> Cache:
    """The same positions with more room."""
    more = room - cache.key.shape[-1]
    return Cache(jnp.pad(cache.key, [*[(0, 0)] * 4, (0, more)]), jnp.pad(cache.value, [*[(0, 0)] * 3, (0, more), (0, 0)]))


def grow_ancestry(ancestry: Ancestry, room: int) -> Ancestry:
    """The same positions with more room."""
    more = room - ancestry.origin.shape[-1]
    return ancestry._replace(origin=jnp.pad(ancestry.origin, [(0, 0), (0, 0), (0, more)], constant_values=-1))


def reorder(ancestry: Ancestry, parents: Int[Array, "B K"]) -> Ancestry:
    """Hypothesis k goes on from hypothesis parents[k]."""
    return ancestry._replace(origin=jnp.take_along_axis(ancestry.origin, parents[..., None], axis=1))


def append(cache: Cache, ancestry: Ancestry, key: Float[Array, "R N H"], value: Float[Array, "R N H"]) -> Cache:
    """Write the last position of `ancestry`, which has advanced to it."""
    B, N, H, K, _ = cache.key.shape
    key = key.reshape(B, K, N, H).transpose(0, 2, 3, 1).astype(cache.key.dtype)
    value = value.reshape(B, K, N, H).swapaxes(1, 2).astype(cache.value.dtype)
    row, place = jnp.arange(B), ancestry.length - 1
    return Cache(
        cache.key.at[row, ..., place].set(key, mode="drop"),
        cache.value.at[row, :, :, place].set(value, mode="drop"),
    )


def attend_to_cache(
    query: Float[Array, "R N H"], cache: Cache, ancestry: Ancestry, bias: Float[Array, "#R #N 1 S"] | None
) -> Float[Array, "R N H"]:
    """The context of the last position; NaN where there was no room for it."""
    B, N, H, K, S = cache.key.shape
    keys, values = cache.key.reshape(B, N, H, K * S), cache.value.reshape(B, N, K * S, H)
    context, _ = attend(query, keys, values, ancestry.seen, None if bias is None else _for_writers(bias, K))
    return jnp.where(jnp.repeat(ancestry.overflowed, K)[:, None, None], jnp.nan, context)


def attend_to_source(
    query: Float[Array, "R N H"], memory: SourceMemory, lengths: Int[Array, "B"]
) -> tuple[Float[Array, "R N H"], Float[Array, "R N S"]]:
    """Context and weights; no source is copied for its K hypotheses."""
    seen = jnp.arange(memory.value.shape[2]) < lengths[:, None]
    return attend(query, memory.key, memory.value, seen[:, None, None], None)


def attend(
    query: Float[Array, "R N H"],
    keys: Float[Array, "B N H S"],
    values: Float[Array, "B N S H"],
    seen: Bool[Array, "B 1 #K S"],
    bias: Float[Array, "#B #N #K S"] | None,
) -> tuple[Float[Array, "R N H"], Float[Array, "R N S"]]:
    """softmax((q / sqrt(H)) K + bias) V over the keys `seen`, and the weights in float32."""
    B, N, H, S = keys.shape
    grouped = (query * H**-0.5).reshape(B, -1, N, H).swapaxes(1, 2)
    scores = jnp.matmul(grouped, keys, preferred_element_type=jnp.float32)
    weights = attn.masked_softmax(scores if bias is None else scores + bias, seen)
    context = jnp.matmul(weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
    return context.swapaxes(1, 2).reshape(query.shape).astype(query.dtype), weights.swapaxes(1, 2).reshape(-1, N, S)


def _for_writers(bias: Float[Array, "#R #N 1 S"], K: int) -> Float[Array, "#B #N #K KS"]:
    """The same bias for a position whoever wrote it."""
    rows, heads, _, S = bias.shape
    grouped = bias.reshape(1, 1, heads, S) if rows == 1 else bias.reshape(rows // K, K, heads, S)
    return jnp.tile(grouped.swapaxes(1, 2), K)
