"""Rotary positions (Su et al. 2021): queries and keys are turned, so that their product knows how far apart they stand.

    R_p x : each pair (x_a, x_b) is turned by the angle p theta_i         eq. 34
    theta_i = base^(-2i/H),  i = 0 ... H/2 - 1                            eq. 15 (i from 1 there)
    (R_p q) . (R_s k) = q . R_{s-p} k                                     eq. 16

Names: the paper's d is our H, its m and n are positions.  The paper pairs neighbours (x_0, x_1), (x_2, x_3) ...; GPT-NeoX
pairs the halves (x_0, x_{H/2}), (x_1, x_{H/2+1}) ...  The two differ by the order of the H dimensions only, but weights
trained with one are useless with the other.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Integer

from attn.positions.phase import sine_and_cosine
from attn.shapes import compute_dtype, expect, floating, integers


def apply_rope(
    x: Annotated[ArrayLike, "*B T N H"],
    positions: Annotated[ArrayLike, "*B T"],
    *,
    base: float | int = 10_000.0,
    interleaved: bool = False,
) -> Float[Array, "*B T N H"]:
    """Queries or keys, turned by their positions: no parameters, and the scores depend on the distance only.

        y_a = x_a cos(p theta_i) - x_b sin(p theta_i)
        y_b = x_b cos(p theta_i) + x_a sin(p theta_i)
        interleaved=False:    a = i,     b = i + H/2
        interleaved=True:     a = 2i,    b = 2i + 1

    Apply it to queries and keys (not values) after their projections and before the product; in a cache, store turned keys.

    Args:
        x: queries [*B T N H] or keys [*B S K H], H even.
        positions: absolute positions, integers [T] or [*B T]; they may be negative, and may be traced.
        base: the longest wavelength is about 2 pi base.
        interleaved: which dimensions make a pair: neighbours (RoFormer) or, by default, halves (GPT-NeoX).

    Returns:
        [*B T N H] in the dtype of `x`.  Angles are computed in float32 or wider and are as exact at position 100,000 as at
        position 1, whatever that dtype is.

    Raises:
        TypeError: x that is not floating, or positions that are no integers.
        ValueError: an odd H, positions that do not fit x, or a base that is not positive.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[[1.0, 0.0, 0.0, 0.0]]])   # cos 1 and sin 1 stand where the layout has its first pair
    >>> apply_rope(x, jnp.array([1])).round(4)
    Array([[[0.5403, 0.    , 0.8415, 0.    ]]], dtype=float32)
    >>> apply_rope(x, jnp.array([1]), interleaved=True).round(4)
    Array([[[0.5403, 0.8415, 0.    , 0.    ]]], dtype=float32)

    Reference: Su et al. RoFormer: enhanced transformer with rotary position embedding. 2021, eq. 34; Black et al. GPT-NeoX-20B.
    2022, section 2.1.1 (halves).
    """
    x, positions = floating("x", x, "*B T N H"), integers("positions", positions)
    *batch, T, _, width = x.shape
    if width % 2:
        raise ValueError(f"x: expected shape (*B, T, N, H) with H even, got {x.shape}")
    if not base > 0:
        raise ValueError(f"base: expected a number > 0, got {base!r}")
    if positions.ndim == 1:
        expect("positions", positions, "T", (T,))
    else:
        expect("positions", positions, "*B T", (*batch, T))
    return _turn(x, positions, float(base), interleaved)


@partial(jax.jit, static_argnames=("base", "interleaved"))
def _turn(
    x: Float[Array, "*B T N H"], positions: Integer[Array, "..."], base: float, interleaved: bool
) -> Float[Array, "*B T N H"]:
    width, dtype = x.shape[-1], compute_dtype(x)
    frequencies = [base ** (-2 * i / width) for i in range(width // 2)]
    # XLA:CPU would compute every sine anew for each head and batch entry, but it does not look through a gather.
    every = jnp.arange(positions.shape[-1])
    sine, cosine = (jnp.take(p, every, axis=-2)[..., None, :] for p in sine_and_cosine(positions, frequencies, dtype))
    if interleaved:
        a, b = x[..., 0::2].astype(dtype), x[..., 1::2].astype(dtype)
    else:
        a, b = jnp.split(x.astype(dtype), 2, axis=-1)
    turned = a * cosine - b * sine, b * cosine + a * sine
    together = jnp.stack(turned, axis=-1).reshape(x.shape) if interleaved else jnp.concatenate(turned, axis=-1)
    return together.astype(x.dtype)
