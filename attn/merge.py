"""Attention over two sets of keys, joined as if it had been computed over both at once.

    lse     = log(exp(lse_a) + exp(lse_b))
    context = exp(lse_a - lse) context_a + exp(lse_b - lse) context_b

The sets must not overlap: a key in both would count twice.  It is the step of online softmax (Milakov and Gimelshein 2018,
section 3; Dao et al. 2022, section 3.1), of keys split over devices, and of patterns that are a union of two.
"""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped

from attn.isolation import finite_or_zero, has_nonfinite, poison
from attn.normalize import log_sum, nonzero
from attn.shapes import compute_dtype, expect, floating


def merge_attention(
    context_a: Annotated[ArrayLike, "*B T N V"],
    lse_a: Annotated[ArrayLike, "*B N T"],
    context_b: Annotated[ArrayLike, "*B T N V"],
    lse_b: Annotated[ArrayLike, "*B N T"],
) -> tuple[Float[Array, "*B T N V"], Float[Array, "*B N T"]]:
    """Join attention of the same queries over two disjoint sets of keys.

        lse = log(exp(lse_a) + exp(lse_b)),  context = exp(lse_a - lse) context_a + exp(lse_b - lse) context_b

    Exact, differentiable in all four arguments, and associative: any number of parts may be joined in any order.  A part that
    saw no key (lse -inf) adds nothing, whatever its context holds; where both saw none, context is 0 and lse -inf.

    Args:
        context_a, context_b: [*B T N V], from `dot_product_attention_and_lse` without dropout.
        lse_a, lse_b: [*B N T], natural log.

    Returns:
        Context [*B T N V] in the dtype of the contexts; lse [*B N T] in float32 or wider.

    Raises:
        TypeError: an array that is not floating.
        ValueError: shapes that do not fit together.

    >>> import jax, jax.numpy as jnp
    >>> from attn import dot_product_attention_and_lse
    >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 4, 1, 2))
    >>> whole, lse = dot_product_attention_and_lse(q, k, v)
    >>> first, last = (dot_product_attention_and_lse(q, k[part], v[part]) for part in (slice(3), slice(3, 4)))
    >>> merged, merged_lse = merge_attention(*first, *last)
    >>> bool(jnp.allclose(merged, whole, atol=1e-6) & jnp.allclose(merged_lse, lse, atol=1e-6))
    True

    Reference: Dao et al. FlashAttention. 2022, section 3.1; Milakov and Gimelshein. 2018, section 3.
    """
    context_a, context_b = floating("context_a", context_a, "*B T N V"), floating("context_b", context_b, "*B T N V")
    lse_a, lse_b = floating("lse_a", lse_a, "*B N T"), floating("lse_b", lse_b, "*B N T")
    *batch, T, heads, _ = context_a.shape
    expect("context_b", context_b, "*B T N V", context_a.shape)
    for name, lse in (("lse_a", lse_a), ("lse_b", lse_b)):
        expect(name, lse, "*B N T", (*batch, heads, T))
    context, lse = _merge(context_a, lse_a, context_b, lse_b)
    return context.astype(jnp.result_type(context_a, context_b)), lse


@jax.jit
def _merge(
    context_a: Float[Array, "*B T N V"],
    lse_a: Float[Array, "*B N T"],
    context_b: Float[Array, "*B T N V"],
    lse_b: Float[Array, "*B N T"],
) -> tuple[Float[Array, "*B T N V"], Float[Array, "*B N T"]]:
    dtype = compute_dtype(context_a, lse_a, context_b, lse_b)
    contexts = [context.astype(dtype) for context in (context_a, context_b)]
    # NaN stays in its row, in the gradient too; a part that saw nothing adds nothing, not even NaN.
    undefined = jnp.isnan(lse_a) | jnp.isnan(lse_b)
    sums = [jnp.where(undefined, 0, lse).astype(dtype) for lse in (lse_a, lse_b)]
    seen = [lse != -jnp.inf for lse in sums]
    # As in softmax, the result does not depend on the peak, and neither does its gradient; two empty parts have peak 0.
    peak = jax.lax.stop_gradient(jnp.maximum(*sums))
    peak = jnp.where(peak == -jnp.inf, 0, peak)
    exps = [jnp.where(some, jnp.exp(jnp.where(some, lse, 0) - peak), 0) for some, lse in zip(seen, sums, strict=True)]
    total = exps[0] + exps[1]
    context = sum(_queries_first(part / nonzero(total)) * finite_or_zero(x) for part, x in zip(exps, contexts, strict=True))
    spoilt = [has_nonfinite(x) & _queries_first(some)[..., 0] for x, some in zip(contexts, seen, strict=True)]
    context = poison(context, spoilt[0] | spoilt[1] | _queries_first(undefined)[..., 0])
    return context, poison(log_sum(total, peak)[..., None], undefined)[..., 0]


def _queries_first(x: Shaped[Array, "*B N T"]) -> Shaped[Array, "*B T N 1"]:
    return jnp.swapaxes(x, -2, -1)[..., None]
