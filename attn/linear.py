"""Linear attention (Katharopoulos et al. 2020): time and memory linear in length, and a recurrence for decoding.

    context_i = phi(q_i) S / (phi(q_i) . z),   S = sum_j phi(k_j) v_j^T,   z = sum_j phi(k_j)       eq. 4-6
    causal: S_i and z_i sum over j <= i                                                             eq. 9-12
    recurrent: S_i = S_{i-1} + phi(k_i) v_i^T,  z_i = z_{i-1} + phi(k_i)                            eq. 16-20

Names: the paper's attention memory s is `memory`, its normaliser memory z is `normaliser`, both in `LinearState`.  The maps phi
are in feature_maps.py, the sums and how they are kept in range in linear_recurrence.py, the causal sums inside a chunk in
linear_chunks.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from attn.feature_maps import FeatureMap, Features, checked_projection, features, random_features
from attn.isolation import finite_or_zero, has_nonfinite, poison
from attn.linear_chunks import split_chunks, within_chunk
from attn.linear_recurrence import (
    LinearState,
    absorb,
    divide,
    empty_state,
    init_linear_state,
    poisoned,
    read,
    relative_to_peak,
)
from attn.masks import padding_mask
from attn.shapes import compute_dtype, expect, floating, lengths_within, positive

__all__ = [
    "LinearState",
    "init_linear_state",
    "linear_attention",
    "linear_attention_step",
    "linear_state",
    "random_features",
]

Lengths = Annotated[ArrayLike, "*B"] | Sequence[int]


def linear_attention(
    query: Annotated[ArrayLike, "*B T N H"],
    key: Annotated[ArrayLike, "*B S K H"],
    value: Annotated[ArrayLike, "*B S K V"],
    *,
    feature_map: FeatureMap = "elu1",
    is_causal: bool = False,
    key_lengths: Lengths | None = None,
    chunk_size: int = 128,
    projection: Annotated[ArrayLike, "F H"] | None = None,
) -> Float[Array, "*B T N V"]:
    """sum_j phi(q_i) . phi(k_j) v_j / sum_j phi(q_i) . phi(k_j), in time and memory O(T + S).

    Padding is left out of both sums.  A query whose normaliser is 0 (no key, or features that share no support, as those of
    "relu" may) has context 0 and gives no gradient.  A key or value that a query does not see has no influence on it, not
    even as NaN.

    Args:
        query: [*B T N H].
        key: [*B S K H]; N is a multiple of K, and query head n meets key head n // (N // K).
        value: [*B S K V].
        feature_map: "elu1", "relu", "exp" (which approximates softmax(Q K^T / sqrt(H)) V and needs a projection), or a
            function phi from [.. H] to [.. F], applied to arrays in float32 or wider.  Its features must not be negative, or
            the normaliser may come near 0; this is not checked.
        is_causal: query i sees the keys j <= i; needs S = T.
        key_lengths: integers [*B] or a scalar; later keys are masked.
        chunk_size: positions worked on at once when causal, rounded up to a power of two; it does not change the context.
        projection: W [F H] of the map "exp", as from `random_features`.

    Returns:
        Context [*B T N V] in the dtype of `value`, computed in float32 or wider.

    Raises:
        TypeError: an array that is not floating, lengths that are no integers.
        ValueError: shapes that do not fit together, S other than T when causal, an unknown map, a projection missing or not
            wanted, a chunk size below 1.

    >>> import jax.numpy as jnp
    >>> query, key = jnp.zeros((2, 1, 1)), jnp.array([[[0.0]], [[2.0]]])   # phi = 1 and 1, phi = 1 and 3
    >>> value = jnp.array([[[0.0]], [[1.0]]])
    >>> linear_attention(query, key, value)[:, 0, 0]
    Array([0.75, 0.75], dtype=float32)
    >>> linear_attention(query, key, value, is_causal=True)[:, 0, 0]
    Array([0.  , 0.75], dtype=float32)

    Reference: Katharopoulos et al. Transformers are RNNs. ICML 2020, eq. 4-6 and 9-12.
    """
    query = floating("query", query, "*B T N H")
    key, value = _checked_keys(key, value, query.shape[:-3], query.shape[-1])
    _check_groups(query, key, "(*B, T, N, H)")
    T, chunk_size = query.shape[-3], positive("chunk_size", chunk_size)
    if is_causal and key.shape[-3] != T:
        raise ValueError(f"key: expected shape (*B, S, K, H) with S = T = {T} for is_causal, got {key.shape}")
    projection = checked_projection(feature_map, projection, key.shape[-1])
    valid = _valid(key_lengths, key)
    if not is_causal:
        return _run(_bidirectional, feature_map, query, key, value, valid, projection)
    chunk = 1 << (min(chunk_size, max(T, 1)) - 1).bit_length()
    return _run(_causal, feature_map, query, key, value, valid, projection, chunk=chunk)


def linear_attention_step(
    query: Annotated[ArrayLike, "*B N H"],
    key: Annotated[ArrayLike, "*B K H"],
    value: Annotated[ArrayLike, "*B K V"],
    state: LinearState,
    *,
    feature_map: FeatureMap = "elu1",
    projection: Annotated[ArrayLike, "F H"] | None = None,
) -> tuple[Float[Array, "*B N V"], LinearState]:
    """One token of causal linear attention, in time and memory that do not depend on the tokens before.

        S_i = S_{i-1} + phi(k_i) v_i^T,   z_i = z_{i-1} + phi(k_i),   context_i = phi(q_i) S_i / (phi(q_i) . z_i)

    Args:
        query: [*B N H].
        key: [*B K H].
        value: [*B K V].
        state: of the tokens before, from `init_linear_state`, `linear_state` or the last step.
        feature_map, projection: as in `linear_attention`.

    Returns:
        Context [*B N V] in the dtype of `value`; the state with this token, in the dtype it had.

    Raises:
        TypeError: an array that is not floating, a state of a dtype other than the computation's.
        ValueError: as in `linear_attention`, and a state that does not fit.

    >>> import jax.numpy as jnp
    >>> state = init_linear_state((), num_kv_heads=1, feature_dim=1, value_dim=1)
    >>> for k, v in ((0.0, 0.0), (2.0, 1.0)):   # phi = 1, then 3
    ...     context, state = linear_attention_step(jnp.zeros((1, 1)), jnp.array([[k]]), jnp.array([[v]]), state)
    ...     print(context)
    [[0.]]
    [[0.75]]

    Reference: Katharopoulos et al. Transformers are RNNs. ICML 2020, eq. 16-20.
    """
    query, key, value = floating("query", query, "*B N H"), floating("key", key, "*B K H"), floating("value", value, "*B K V")
    batch, (kv_heads, width) = query.shape[:-2], key.shape[-2:]
    expect("key", key, "*B K H", (*batch, kv_heads, query.shape[-1]))
    expect("value", value, "*B K V", (*batch, kv_heads, value.shape[-1]))
    _check_groups(query, key, "(*B, N, H)")
    projection = checked_projection(feature_map, projection, width)
    return _run(_step, feature_map, query, key, value, state, projection)


def linear_state(
    key: Annotated[ArrayLike, "*B S K H"],
    value: Annotated[ArrayLike, "*B S K V"],
    *,
    feature_map: FeatureMap = "elu1",
    key_lengths: Lengths | None = None,
    projection: Annotated[ArrayLike, "F H"] | None = None,
) -> LinearState:
    """The state after all keys at once, to start the recurrence from: S = sum_j phi(k_j) v_j^T, z = sum_j phi(k_j).

    Args:
        key: [*B S K H].
        value: [*B S K V].
        feature_map, projection: as in `linear_attention`.
        key_lengths: integers [*B] or a scalar; later keys are left out.

    Returns:
        LinearState in float32 or wider; what `linear_attention_step` would have returned after the last key.

    Raises:
        TypeError, ValueError: as in `linear_attention`.

    >>> import jax.numpy as jnp
    >>> state = linear_state(jnp.array([[[0.0]], [[2.0]]]), jnp.array([[[0.0]], [[1.0]]]))   # phi = 1 and 3
    >>> float(state.memory[0, 0, 0]), float(state.normaliser[0, 0])
    (3.0, 4.0)

    Reference: Katharopoulos et al. Transformers are RNNs. ICML 2020, eq. 10-11.
    """
    key = floating("key", key, "*B S K H")
    key, value = _checked_keys(key, value, key.shape[:-3], key.shape[-1])
    projection = checked_projection(feature_map, projection, key.shape[-1])
    return _run(_prefill, feature_map, key, value, _valid(key_lengths, key), projection)


def _bidirectional(query, key, value, valid, projection, *, feature_map) -> Float[Array, "*B T N V"]:
    phi = partial(features, feature_map=feature_map, projection=projection)
    queries, bad_queries = _queries(query, key, value)
    keys, values, bad = _keys(query, key, value, valid)
    state = _sums(_masked(phi(keys), valid), values)
    context = divide(read(relative_to_peak(phi(queries), state.log_scale[..., None, :]), state))
    context = poison(context, bad_queries | jnp.any(bad, axis=-1)[..., None, None])
    return _ungrouped(context).astype(value.dtype)


def _causal(query, key, value, valid, projection, *, feature_map, chunk) -> Float[Array, "*B T N V"]:
    """A scan over chunks: inside one the queries meet the keys, all keys before it are in the state."""
    phi = partial(features, feature_map=feature_map, projection=projection)
    T = query.shape[-3]
    valid = jnp.ones(T, bool) if valid is None else valid
    queries, bad_queries = _queries(query, key, value)
    keys, values, bad = _keys(query, key, value, valid)

    @partial(jax.checkpoint, prevent_cse=False)
    def body(state, parts):
        query, key, value, valid = parts
        key = _masked(phi(key), valid)
        return absorb(state, key, value), divide(within_chunk(state, phi(query), key, value))

    width = jax.eval_shape(phi, keys).mantissa.shape[-1]
    state = empty_state((*keys.shape[:-2], width), values.shape[-1], values.dtype)
    parts = [split_chunks(x, chunk, axis) for x, axis in ((queries, -3), (keys, -2), (values, -2), (valid, -1))]
    _, contexts = jax.lax.scan(body, state, parts)
    context = jnp.moveaxis(contexts, 0, -4)
    context = context.reshape(*context.shape[:-4], len(contexts) * chunk, *context.shape[-2:])[..., :T, :, :]
    seen_bad = jnp.cumsum(bad, axis=-1)[..., None] > 0
    return _ungrouped(poison(context, bad_queries | seen_bad)).astype(value.dtype)


def _step(query, key, value, state, projection, *, feature_map) -> tuple[Float[Array, "*B N V"], LinearState]:
    phi = partial(features, feature_map=feature_map, projection=projection)
    query, key, value = (x[..., None, :, :] for x in (query, key, value))
    queries, bad_queries = _queries(query, key, value)
    keys, values, bad = _keys(query, key, value, None)
    keys = phi(keys)
    _check_state(state, keys.mantissa[..., 0, :], values)
    # What is no longer a number stays so, but it must not meet the tokens of other steps in a backward pass.
    lost = bad[..., 0] | has_nonfinite(state.normaliser) | jnp.any(has_nonfinite(state.memory), axis=-1)
    state = absorb(LinearState(*map(finite_or_zero, state)), keys, values)
    context = divide(read(relative_to_peak(phi(queries), state.log_scale[..., None, :]), state))
    context = poison(context, bad_queries | lost[..., None, None])
    return _ungrouped(context)[..., 0, :, :].astype(value.dtype), poisoned(state, lost)


def _prefill(key, value, valid, projection, *, feature_map) -> LinearState:
    keys, values, bad = _keys(key, key, value, valid)
    state = _sums(_masked(features(keys, feature_map, projection), valid), values)
    return poisoned(state, jnp.any(bad, axis=-1))


_COMPILED = {
    _bidirectional: jax.jit(_bidirectional, static_argnames="feature_map"),
    _causal: jax.jit(_causal, static_argnames=("feature_map", "chunk")),
    _step: jax.jit(_step, static_argnames="feature_map"),
    _prefill: jax.jit(_prefill, static_argnames="feature_map"),
}


def _run(function: Any, feature_map: FeatureMap, *arrays: Any, **static: int) -> Any:
    """Compiled for the maps known by name.  A function may close over arrays that change, so it is traced at every call."""
    function = _COMPILED[function] if isinstance(feature_map, str) else function
    return function(*arrays, feature_map=feature_map, **static)


def _sums(keys: Features, values: Float[Array, "*B K S V"]) -> LinearState:
    *batch, _, width = keys.mantissa.shape
    return absorb(empty_state((*batch, width), values.shape[-1], values.dtype), keys, values)


def _queries(query, key, value) -> tuple[Float[Array, "*B K T G H"], Bool[Array, "*B K T G"]]:
    """Queries by group of heads without NaN and Inf, and where those were."""
    *batch, T, heads, width = query.shape
    kv_heads = key.shape[-2]
    grouped = jnp.moveaxis(query.reshape(*batch, T, kv_heads, heads // kv_heads, width), -3, -4)
    return finite_or_zero(grouped).astype(compute_dtype(query, key, value)), has_nonfinite(grouped)


def _keys(query, key, value, valid) -> tuple[Float[Array, "*B K S H"], Float[Array, "*B K S V"], Bool[Array, "*B K S"]]:
    """Keys and values without NaN and Inf, 0 where masked, and where those that are not masked had one."""
    key, value = jnp.swapaxes(key, -3, -2), jnp.swapaxes(value, -3, -2)
    bad, dtype = has_nonfinite(key) | has_nonfinite(value), compute_dtype(query, key, value)
    key, value = finite_or_zero(key).astype(dtype), finite_or_zero(value).astype(dtype)
    if valid is None:
        return key, value, bad
    rows = valid[..., None, :]
    return jnp.where(rows[..., None], key, 0), jnp.where(rows[..., None], value, 0), bad & rows


def _masked(keys: Features, valid: Bool[Array, "*#B S"] | None) -> Features:
    """Padding out of both sums: after the map, since phi(0) need not be 0."""
    if valid is None:
        return keys
    mantissa, exponent = keys
    rows = valid[..., None, :, None]
    lowest = jnp.finfo(mantissa.dtype).min
    return Features(jnp.where(rows, mantissa, 0), None if exponent is None else jnp.where(rows, exponent, lowest))


def _ungrouped(context: Float[Array, "*B K T G V"]) -> Float[Array, "*B T N V"]:
    context = jnp.moveaxis(context, -4, -3)
    *batch, kv_heads, groups, width = context.shape
    return context.reshape(*batch, kv_heads * groups, width)


def _valid(key_lengths: Lengths | None, key: Array) -> Bool[Array, "*#B S"] | None:
    if key_lengths is None:
        return None
    return padding_mask(lengths_within("key_lengths", key_lengths, key.shape[:-3], "S", key.shape[-3]), key.shape[-3])


def _checked_keys(key, value, batch, width) -> tuple[Array, Array]:
    key, value = floating("key", key, "*B S K H"), floating("value", value, "*B S K V")
    *_, S, kv_heads, _ = key.shape
    expect("key", key, "*B S K H", (*batch, S, kv_heads, width))
    expect("value", value, "*B S K V", (*batch, S, kv_heads, value.shape[-1]))
    return key, value


def _check_groups(query: Array, key: Array, axes: str) -> None:
    kv_heads = key.shape[-2]
    if kv_heads == 0 or query.shape[-2] % kv_heads:
        raise ValueError(f"query: expected shape {axes} with N a multiple of K = {kv_heads}, got {query.shape}")


def _check_state(state: LinearState, features: Float[Array, "*B K F"], values: Float[Array, "*B K 1 V"]) -> None:
    expect("state.memory", state.memory, "*B K F V", (*features.shape, values.shape[-1]))
    expect("state.normaliser", state.normaliser, "*B K F", features.shape)
    expect("state.log_scale", state.log_scale, "*B K F", features.shape)
    if any(leaf.dtype != jnp.promote_types(leaf.dtype, features.dtype) for leaf in state):
        raise TypeError(f"state: expected {features.dtype} or wider, got {state.memory.dtype}")
