"""The two causal patterns of sparse transformers (Child et al. 2019, section 4.3), each a union of two disjoint parts.

Names: the paper's l is `stride`, its c is `summary`; A^(1) and A^(2) of its section 4.2 are the two parts.  In the paper they
belong to different heads or are merged (section 4.3, "a single head attend to the locations of the pixels that both
factorized heads would attend to"); here they are merged.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from attn.merge import merge_attention
from attn.options import Lengths
from attn.shapes import positive
from attn.sparse.pairs import EarlierEnds, OwnBlock
from attn.sparse.parts import Inputs, attend_pattern, attend_window, checked
from attn.sparse.residues import by_residue, from_residue


def strided_attention(
    query: Annotated[ArrayLike, "*B T N H"],
    key: Annotated[ArrayLike, "*B S K H"],
    value: Annotated[ArrayLike, "*B S K V"],
    *,
    stride: int,
    query_offset: Lengths = 0,
    key_lengths: Lengths | None = None,
    scale: ArrayLike | None = None,
    softcap: ArrayLike | None = None,
) -> Float[Array, "*B T N V"]:
    """Causal attention to the last `stride` keys and to every `stride`-th key before them.

    With p = i + query_offset, query i sees the keys j <= p with

        p - j < stride   or   (p - j) mod stride = 0

    The paper's A^(1) = {t ... p}, t = max(0, p - stride), holds one key more, which A^(2) holds as well: the union is this.

    Equal to `dot_product_attention` under `strided_mask`, in value and gradient, in time T (stride + S / stride) in place of T S
    and in memory T + S.

    Args:
        query: [*B T N H].
        key: [*B S K H]; N is a multiple of K, and query head n meets key head n // (N // K).
        value: [*B S K V].
        stride: the paper's l, best near the square root of S.
        query_offset: absolute position of query 0, one integer or one for each batch entry [*B].
        key_lengths: integers [*B] or a scalar; later keys are masked.
        scale: 1/sqrt(H) if not given.
        softcap: scores become softcap tanh(scores / softcap).

    Returns:
        Context [*B T N V] in the dtype of `value`; 0 for a query that sees nothing.

    Raises:
        TypeError: an array of the wrong kind of dtype.
        ValueError: shapes that do not fit together, stride < 1, softcap <= 0.

    >>> import jax.numpy as jnp
    >>> x = jnp.zeros((5, 1, 5))
    >>> strided_attention(x, x, jnp.eye(5)[:, None], stride=2)[4, 0].round(4)   # 4 and 3, and 2 and 0 behind them
    Array([0.25, 0.  , 0.25, 0.25, 0.25], dtype=float32)

    Reference: Child, Gray, Radford, Sutskever. Generating long sequences with sparse transformers. 2019, section 4.3.
    """
    inputs = checked(
        query, key, value, query_offset=query_offset, key_lengths=key_lengths, scale=scale, softcap=softcap
    )  # fmt: skip
    return _strided(inputs, positive("stride", stride)).astype(jnp.asarray(value).dtype)


def fixed_attention(
    query: Annotated[ArrayLike, "*B T N H"],
    key: Annotated[ArrayLike, "*B S K H"],
    value: Annotated[ArrayLike, "*B S K V"],
    *,
    stride: int,
    summary: int = 1,
    query_offset: Lengths = 0,
    key_lengths: Lengths | None = None,
    scale: ArrayLike | None = None,
    softcap: ArrayLike | None = None,
) -> Float[Array, "*B T N V"]:
    """Causal attention within blocks of `stride` positions, and to the last `summary` positions of every earlier block.

    With p = i + query_offset, query i sees the keys j <= p with

        floor(j / stride) = floor(p / stride)   or   j mod stride >= stride - summary

    Equal to `dot_product_attention` under `fixed_mask`, in value and gradient, in time T (stride + summary S / stride)
    in place of T S and in memory T + S.

    Args:
        query: [*B T N H].
        key: [*B S K H]; N is a multiple of K, and query head n meets key head n // (N // K).
        value: [*B S K V].
        stride: the paper's l, the length of a block.
        summary: the paper's c, how many positions of a block later blocks see.
        query_offset: absolute position of query 0, one integer or one for each batch entry [*B].
        key_lengths: integers [*B] or a scalar; later keys are masked.
        scale: 1/sqrt(H) if not given.
        softcap: scores become softcap tanh(scores / softcap).

    Returns:
        Context [*B T N V] in the dtype of `value`; 0 for a query that sees nothing.

    Raises:
        TypeError: an array of the wrong kind of dtype.
        ValueError: shapes that do not fit together, stride < 1, summary outside 1 ... stride, softcap <= 0.

    >>> import jax.numpy as jnp
    >>> x = jnp.zeros((5, 1, 5))
    >>> fixed_attention(x, x, jnp.eye(5)[:, None], stride=2)[4, 0].round(4)   # 4 in its block, 3 and 1 at the ends of others
    Array([0.    , 0.3333, 0.    , 0.3333, 0.3333], dtype=float32)

    Reference: Child, Gray, Radford, Sutskever. Generating long sequences with sparse transformers. 2019, section 4.3.
    """
    inputs = checked(
        query, key, value, query_offset=query_offset, key_lengths=key_lengths, scale=scale, softcap=softcap
    )  # fmt: skip
    stride, summary = positive("stride", stride), positive("summary", summary)
    if summary > stride:
        raise ValueError(f"summary: expected an integer from 1 to stride = {stride}, got {summary}")
    return _fixed(inputs, stride, summary).astype(jnp.asarray(value).dtype)


@partial(jax.jit, static_argnames="stride")
def _strided(inputs: Inputs, stride: int) -> Float[Array, "*B T N V"]:
    run = attend_window(inputs, stride - 1, 0)
    # Positions are places in a residue class here; the nearest key of the class before the query lies outside its run.
    classes = by_residue(inputs, stride)
    context, lse = attend_window(classes._replace(offset=classes.offset - 1), None, 0, None)
    lse = jnp.swapaxes(from_residue(jnp.swapaxes(lse, -2, -1), inputs), -2, -1)
    context, _ = merge_attention(*run, from_residue(context, inputs), lse)
    return context


@partial(jax.jit, static_argnames=("stride", "summary"))
def _fixed(inputs: Inputs, stride: int, summary: int) -> Float[Array, "*B T N V"]:
    own = attend_pattern(inputs, OwnBlock(stride))
    ends = jnp.array([j for j in range(inputs.keys) if j % stride >= stride - summary], jnp.int32)
    at_ends = inputs.with_keys(lambda x: jnp.take(x, ends, axis=inputs.batch_axes, mode="clip"))
    at_ends = at_ends._replace(lengths=jnp.sum(ends < inputs.lengths[..., None], axis=-1, dtype=jnp.int32))
    context, _ = merge_attention(*own, *attend_pattern(at_ends, EarlierEnds(stride, summary)))
    return context
