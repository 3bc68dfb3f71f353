"""A linear map of the last axis, as one matrix product."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.isolation import finite_or_zero, has_nonfinite, poison
from attn.shapes import compute_dtype


@partial(jax.jit, static_argnames=("isolate", "precision"))
def project(
    inputs: Float[Array, "*B D"],
    kernel: Float[Array, "D *F"],
    bias: Float[Array, "*F"] | None = None,
    *,
    isolate: bool = False,
    precision: jax.lax.PrecisionLike = None,
) -> Float[Array, "*B *F"]:
    """inputs . kernel + bias in the dtype of the inputs, accumulated in float32 or wider and returned so.

    The batch axes are folded into one: a single product of two matrices is the fast case everywhere.  With `isolate`, a row
    of inputs that holds NaN or Inf becomes NaN, and adds nothing to the gradient of the kernel as long as nothing depends
    on that row.
    """
    batch, dim, features = inputs.shape[:-1], inputs.shape[-1], kernel.shape[1:]
    rows = (finite_or_zero(inputs) if isolate else inputs).reshape(math.prod(batch), dim)
    columns = kernel.astype(inputs.dtype).reshape(dim, math.prod(features))
    product = jnp.matmul(rows, columns, precision=precision, preferred_element_type=compute_dtype(inputs))
    if bias is not None:
        product = product + bias.astype(product.dtype).reshape(-1)
    if isolate:
        product = poison(product, has_nonfinite(inputs).reshape(math.prod(batch)))
    return product.reshape(*batch, *features)
