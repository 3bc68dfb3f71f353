"""Windows around each query (Beltagy et al. 2020, section 3.1), at a cost linear in the length.

Names: the paper's window w is left + 1 + right keys with left = right = w / 2; its dilation d is `dilation`; its global
attention on the first tokens (the classification token, the question) is `num_global`.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from attn.options import Lengths
from attn.shapes import positive, size
from attn.sparse.pairs import WindowWithGlobalTokens
from attn.sparse.parts import BLOCK_SIZE, Inputs, attend_pattern, attend_window, checked
from attn.sparse.residues import by_residue, from_residue


def sliding_window_attention(
    query: Annotated[ArrayLike, "*B T N H"],
    key: Annotated[ArrayLike, "*B S K H"],
    value: Annotated[ArrayLike, "*B S K V"],
    *,
    left: int | None,
    right: int | None,
    num_global: int = 0,
    query_offset: Lengths = 0,
    key_lengths: Lengths | None = None,
    scale: ArrayLike | None = None,
    softcap: ArrayLike | None = None,
    block_size: int = BLOCK_SIZE,
) -> Float[Array, "*B T N V"]:
    """Attention to the keys around each query, and to and from a few global tokens.

    With p = i + query_offset, the position of query i, it sees the keys j with

        -left <= j - p <= right   or   j < num_global   or   0 <= p < num_global

    Equal to `dot_product_attention` under that mask (`sliding_window_mask` if num_global is 0), in value and gradient, in
    time T (left + right + block_size) + (T + S) max(num_global, block_size) in place of T S, without the last term if there are
    no global tokens, and in memory T + S.

    Args:
        query: [*B T N H].
        key: [*B S K H]; N is a multiple of K, and query head n meets key head n // (N // K).
        value: [*B S K V].
        left: keys seen before the query; None is all of them, at the cost T S.
        right: keys seen after the query; None is all of them, at the cost T S.
        num_global: how many tokens from position 0 on see all keys as queries and are seen by all queries as keys.
        query_offset: absolute position of query 0, one integer or one for each batch entry [*B].
        key_lengths: integers [*B] or a scalar; later keys are masked.
        scale: 1/sqrt(H) if not given.
        softcap: scores become softcap tanh(scores / softcap).
        block_size: queries computed together; the result does not depend on it.

    Returns:
        Context [*B T N V] in the dtype of `value`; 0 for a query that sees nothing.

    Raises:
        TypeError: an array of the wrong kind of dtype.
        ValueError: shapes that do not fit together, a negative side or count, block_size < 1, softcap <= 0.

    >>> import jax.numpy as jnp
    >>> x = jnp.zeros((4, 1, 4))
    >>> sliding_window_attention(x, x, jnp.eye(4)[:, None], left=1, right=0)[:, 0]
    Array([[1. , 0. , 0. , 0. ],
           [0.5, 0.5, 0. , 0. ],
           [0. , 0.5, 0.5, 0. ],
           [0. , 0. , 0.5, 0.5]], dtype=float32)

    Reference: Beltagy, Peters, Cohan. Longformer: the long-document transformer. 2020, section 3.1.
    """
    inputs = checked(
        query, key, value, query_offset=query_offset, key_lengths=key_lengths, scale=scale, softcap=softcap
    )  # fmt: skip
    sides = _side("left", left), _side("right", right)
    context = _sliding_window(inputs, *sides, size("num_global", num_global), positive("block_size", block_size))
    return context.astype(jnp.asarray(value).dtype)


def dilated_attention(
    query: Annotated[ArrayLike, "*B T N H"],
    key: Annotated[ArrayLike, "*B S K H"],
    value: Annotated[ArrayLike, "*B S K V"],
    *,
    left: int | None,
    right: int | None,
    dilation: int,
    query_offset: Lengths = 0,
    key_lengths: Lengths | None = None,
    scale: ArrayLike | None = None,
    softcap: ArrayLike | None = None,
    block_size: int = BLOCK_SIZE,
) -> Float[Array, "*B T N V"]:
    """Attention to every `dilation`-th key around each query: a window with gaps.

    With p = i + query_offset, query i sees the keys j = p + m dilation for -left <= m <= right.  Within each residue class of
    positions modulo `dilation` this is a sliding window, and so it is computed.

    Equal to `dot_product_attention` under `dilated_mask`, in value and gradient, in time T (left + right + block_size) in
    place of T S, and in memory T + S.

    Args:
        query: [*B T N H].
        key: [*B S K H]; N is a multiple of K, and query head n meets key head n // (N // K).
        value: [*B S K V].
        left: keys seen before the query; None is all of its residue class.
        right: keys seen after the query; None is all of its residue class.
        dilation: distance between two keys seen; 1 is a sliding window.
        query_offset: absolute position of query 0, one integer or one for each batch entry [*B].
        key_lengths: integers [*B] or a scalar; later keys are masked.
        scale: 1/sqrt(H) if not given.
        softcap: scores become softcap tanh(scores / softcap).
        block_size: queries of a class computed together; the result does not depend on it.

    Returns:
        Context [*B T N V] in the dtype of `value`; 0 for a query that sees nothing.

    Raises:
        TypeError: an array of the wrong kind of dtype.
        ValueError: shapes that do not fit together, a negative side, dilation or block_size < 1, softcap <= 0.

    >>> import jax.numpy as jnp
    >>> x = jnp.zeros((4, 1, 4))
    >>> dilated_attention(x, x, jnp.eye(4)[:, None], left=1, right=0, dilation=2)[:, 0]
    Array([[1. , 0. , 0. , 0. ],
           [0. , 1. , 0. , 0. ],
           [0.5, 0. , 0.5, 0. ],
           [0. , 0.5, 0. , 0.5]], dtype=float32)

    Reference: Beltagy, Peters, Cohan. Longformer: the long-document transformer. 2020, section 3.1.
    """
    inputs = checked(
        query, key, value, query_offset=query_offset, key_lengths=key_lengths, scale=scale, softcap=softcap
    )  # fmt: skip
    sides = _side("left", left), _side("right", right)
    context = _dilated(inputs, *sides, positive("dilation", dilation), positive("block_size", block_size))
    return context.astype(jnp.asarray(value).dtype)


@partial(jax.jit, static_argnames=("left", "right", "num_global", "block_size"))
def _sliding_window(
    inputs: Inputs, left: int | None, right: int | None, num_global: int, block_size: int
) -> Float[Array, "*B T N V"]:
    if num_global:
        context, _ = attend_pattern(inputs, WindowWithGlobalTokens(left, right, num_global), block_size)
    else:
        context, _ = attend_window(inputs, left, right, (block_size, 2 * block_size))
    return context


@partial(jax.jit, static_argnames=("left", "right", "dilation", "block_size"))
def _dilated(inputs: Inputs, left: int | None, right: int | None, dilation: int, block_size: int) -> Float[Array, "*B T N V"]:
    context, _ = attend_window(by_residue(inputs, dilation), left, right, (block_size, 2 * block_size))
    return from_residue(context, inputs)


def _side(name: str, value: int | None) -> int | None:
    return None if value is None else size(name, value)
