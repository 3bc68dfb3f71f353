"""Local-m: target position t attends about source position t."""

from __future__ import annotations

from typing import Annotated

from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from attn.local.align import Integers, ScoreParams, checked, checked_lengths, real_keys, score_functions
from attn.masks import sliding_window_mask
from attn.shapes import per_batch, size


def local_monotonic_weights(
    query: Annotated[ArrayLike, "*B T Dq"],
    keys: Annotated[ArrayLike, "*B S Dk"],
    params: ScoreParams = None,
    *,
    window: int = 10,
    query_offset: Integers = 0,
    key_lengths: Integers | None = None,
    mask: Annotated[ArrayLike, "*B T S"] | None = None,
) -> Float[Array, "*B T S"]:
    """a_t(s) = softmax_s(score(h_t, h_s)) over the keys with |s - p_t| <= D, p_t = t + query_offset.

    Args:
        query, keys, params, and every option: as in `local_monotonic_attention`.

    Returns:
        Weights [*B T S], in float32 or wider; each row sums to 1, or to 0 where there is nothing to attend to.

    Raises:
        TypeError, ValueError: as in `local_monotonic_attention`.

    >>> import jax.numpy as jnp
    >>> x = jnp.zeros((4, 2))
    >>> local_monotonic_weights(x[:2], x, window=1, query_offset=2, key_lengths=3)   # keys 1 ... 3 and 2 ... 4, less key 3
    Array([[0. , 0.5, 0.5, 0. ],
           [0. , 0. , 1. , 0. ]], dtype=float32)

    Reference: Luong, Pham, Manning 2015, section 3.2 and eq. 7.
    """
    query, keys = checked(query, keys)
    weigh, _, params = score_functions(params)
    return weigh(query, keys, *params, mask=_mask(query, keys, window, query_offset, key_lengths, mask))


def local_monotonic_attention(
    query: Annotated[ArrayLike, "*B T Dq"],
    keys: Annotated[ArrayLike, "*B S Dk"],
    values: Annotated[ArrayLike, "*B S V"],
    params: ScoreParams = None,
    *,
    window: int = 10,
    query_offset: Integers = 0,
    key_lengths: Integers | None = None,
    mask: Annotated[ArrayLike, "*B T S"] | None = None,
) -> Float[Array, "*B T V"]:
    """Local-m: target position t attends to the source positions t - D ... t + D.

    The softmax is over the window, so nothing outside it counts.

    Args:
        query: [*B T Dq]; the paper's h_t.
        keys: [*B S Dk].
        values: [*B S V]; in the paper the keys.
        params: of the score: None is dot, GeneralParams general, ConcatParams concat.
        window: D, keys seen before and after p_t.
        query_offset: position of query 0, one integer or one for each batch entry [*B]; p_t = t + query_offset.  In the
            decoding step t with a single query it is t.
        key_lengths: integers in 0 ... S, [*B] or a scalar; later keys are masked.
        mask: Boolean, True = attend, [*B T S] with each axis full or 1.

    Returns:
        Context [*B T V], in the dtype of `values`; 0 where there is nothing to attend to.  A key or value outside the
        window or masked has no influence on it, nor on any gradient, not even as NaN.

    Raises:
        TypeError: an array of the wrong kind of dtype, a mask that is not Boolean, params of no score.
        ValueError: shapes that do not fit together, a window that is no integer >= 0, key_lengths outside 0 ... S.

    >>> import jax.numpy as jnp
    >>> x = jnp.zeros((3, 2))
    >>> local_monotonic_attention(x, x, jnp.eye(3), window=0, key_lengths=2)
    Array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 0.]], dtype=float32)

    Reference: Luong, Pham, Manning 2015, section 3.2.
    """
    query, keys, values = checked(query, keys, values)
    _, attend, params = score_functions(params)
    return attend(query, keys, values, *params, mask=_mask(query, keys, window, query_offset, key_lengths, mask))


def _mask(query, keys, window, query_offset, key_lengths, mask) -> Bool[Array, "..."]:
    T, S, window = query.shape[-2], keys.shape[-2], size("window", window)
    offset = per_batch("query_offset", query_offset, query.shape[:-2])
    near = sliding_window_mask(T, S, left=window, right=window, query_offset=offset)
    return real_keys(query, keys, checked_lengths(key_lengths, keys), mask) & near
