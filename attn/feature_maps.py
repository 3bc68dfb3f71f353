"""Feature maps phi of linear attention: phi(q) . phi(k) >= 0 stands in for the similarity of a query and a key.

    elu1    phi(x) = elu(x) + 1                                              Katharopoulos et al. 2020, eq. 7
    relu    phi(x) = max(x, 0)                                               Choromanski et al. 2021, section 4
    exp     phi(x) = F^{-1/2} exp(W x' - |x'|^2 / 2),  x' = x / H^{1/4}      Choromanski et al. 2021, Lemma 1 (SM+)

For rows of W from N(0, I) the last one is unbiased for the softmax kernel: E phi(q) . phi(k) = exp(q . k / sqrt(H)).  The paper's
m is F, its omega_1 ... omega_m are the rows of W, our `projection`.

A feature is held as mantissa * exp(exponent), so that a small or large exponential neither vanishes nor overflows before it has
met the others: elu(x) + 1 is (max(x, 0) + 1) * exp(min(x, 0)).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float

from attn.shapes import expect, floating, size

FeatureMap = str | Callable[[Array], Array]

NAMES = ("elu1", "relu", "exp")


class Features(NamedTuple):
    """phi(x) = mantissa * exp(exponent); no exponent is exponent 0."""

    mantissa: Float[Array, "*B F"]
    exponent: Float[Array, "*B F"] | None


def random_features(
    key: Array, num_features: int, head_dim: int, dtype: DTypeLike = jnp.float32
) -> Float[Array, "num_features head_dim"]:
    """The projection W of the feature map "exp": rows from N(0, I), orthogonal within each block of H rows (FAVOR+).

    A block is a uniformly random orthogonal matrix, whose rows take the lengths of independent Gaussian vectors.  Each row on
    its own is Gaussian, so the kernel stays unbiased; rows that repel each other lower its variance.

    Args:
        key: random key.
        num_features: F; the error of the kernel falls as F^{-1/2}.
        head_dim: H, width of a query.
        dtype: floating dtype of the projection.

    Returns:
        W [F H].

    Raises:
        ValueError: a size that is no integer >= 0.

    >>> import jax
    >>> W = random_features(jax.random.key(0), 6, 4)
    >>> W.shape, bool(abs(W[0] @ W[3]) < 1e-5), bool(abs(W[0] @ W[4]) < 1e-5)   # row 4 opens the next block
    ((6, 4), True, False)

    Reference: Choromanski et al. Rethinking attention with Performers. ICLR 2021, section 2.4.
    """
    F, H = size("num_features", num_features), size("head_dim", head_dim)
    direction_key, length_key = jax.random.split(key)
    blocks = -(-F // max(H, 1))
    wide = jnp.promote_types(dtype, jnp.float32)
    directions = jax.random.orthogonal(direction_key, H, shape=(blocks,), dtype=wide).reshape(blocks * H, H)[:F]
    lengths = jnp.linalg.norm(jax.random.normal(length_key, (F, H), wide), axis=-1, keepdims=True)
    return (lengths * directions.reshape(F, H)).astype(dtype)


def features(x: Float[Array, "*B H"], feature_map: FeatureMap, projection: Float[Array, "F H"] | None) -> Features:
    """phi(x), for arguments that `checked_projection` has accepted."""
    if feature_map == "elu1":
        return Features(jnp.where(x > 0, x, 0) + 1, jnp.where(x > 0, 0, x))
    if feature_map == "relu":
        return Features(jax.nn.relu(x), None)
    if feature_map == "exp":
        x = x * max(x.shape[-1], 1) ** -0.25
        # What goes into an exponent must not be rounded to the short products that accelerators prefer.
        projected = jnp.matmul(x, projection.astype(x.dtype).T, precision=jax.lax.Precision.HIGHEST)
        exponent = projected - (jnp.sum(x * x, axis=-1, keepdims=True) + math.log(max(len(projection), 1))) / 2
        return Features(jnp.ones_like(exponent), exponent)
    mapped = floating("feature_map(x)", feature_map(x), "*B F")
    expect("feature_map(x)", mapped, "*B F", (*x.shape[:-1], mapped.shape[-1]))
    return Features(mapped.astype(x.dtype), None)


def checked_projection(feature_map: FeatureMap, projection: ArrayLike | None, head_dim: int) -> Array | None:
    """The projection as an array, once the map is known and takes what is given."""
    if not callable(feature_map) and feature_map not in NAMES:
        names = ", ".join(map(repr, NAMES))
        raise ValueError(f"feature_map: expected {names}, or a function from [.. H] to [.. F], got {feature_map!r}")
    if feature_map != "exp":
        if projection is not None:
            raise ValueError(f"projection: expected None, which only feature_map 'exp' takes, for feature_map {feature_map!r}")
        return None
    if projection is None:
        raise ValueError("projection: expected shape (F, H) for feature_map 'exp', as from random_features, got None")
    projection = floating("projection", projection, "F H")
    expect("projection", projection, "F H", (projection.shape[0], head_dim))
    return projection
