"""The concat score: [h_t ; h_s] W = h_t W_1 + h_s W_2, so that it is additive attention with its two kernels stored as one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float

from attn.additive import AdditiveParams, additive_attention, additive_scores, additive_weights
from attn.shapes import expect, floating, size


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ConcatParams:
    """W and v of the concat score; `query_dim`, which is no array and gets no gradient, says where W is split.

    Args:
        kernel: W [Dq+Dk A]; its first Dq rows meet the query, the others the key.
        score_vector: v [A].
        query_dim: Dq.  If not given, W is split at the width of the query it meets, and by `additive` in halves, for queries
            and keys of one width as in the paper.
    """

    # Any, because transformations of jax rebuild the object around placeholders.
    kernel: Annotated[Any, "Dq+Dk A"]
    score_vector: Annotated[Any, "A"]
    query_dim: int | None = field(default=None, metadata={"static": True})

    @property
    def additive(self) -> AdditiveParams:
        """The same model as additive attention, for `project_keys(keys, params.additive)`."""
        kernel = floating("kernel", self.kernel, "Dq+Dk A")
        rows = len(kernel)
        if self.query_dim is None and rows % 2:
            raise ValueError(f"kernel: expected shape (Dq+Dk, A) with Dq = Dk as query_dim is None, got {kernel.shape}")
        query_dim = rows // 2 if self.query_dim is None else size("query_dim", self.query_dim)
        if query_dim > rows:
            raise ValueError(f"query_dim: expected an integer <= Dq+Dk = {rows}, got {query_dim}")
        return AdditiveParams(kernel[:query_dim], kernel[query_dim:], jnp.asarray(self.score_vector))


def init_concat(key: Array, query_dim: int, key_dim: int, align_dim: int, dtype: DTypeLike = jnp.float32) -> ConcatParams:
    """Random W of variance 1/(Dq+Dk) and v of variance 1/A: W [h_t ; h_s] of unit variance for inputs of unit variance.

    Args:
        key: random key.
        query_dim: Dq, width of a query.
        key_dim: Dk, width of a key.
        align_dim: A, width of the alignment model.
        dtype: floating dtype of the parameters.

    Returns:
        ConcatParams of shapes [Dq+Dk A], [A], with `query_dim` set.

    Raises:
        ValueError: a size that is no integer >= 0.

    >>> import jax
    >>> params = init_concat(jax.random.key(0), 4, 6, 5)
    >>> params.kernel.shape, params.additive.query_kernel.shape
    ((10, 5), (4, 5))

    Reference: Luong, Pham, Manning 2015, section 3.1.
    """
    query_dim, key_dim, align_dim = size("query_dim", query_dim), size("key_dim", key_dim), size("align_dim", align_dim)
    kernel_key, score_key = jax.random.split(key)
    return ConcatParams(
        jax.random.normal(kernel_key, (query_dim + key_dim, align_dim), dtype) * max(query_dim + key_dim, 1) ** -0.5,
        jax.random.normal(score_key, (align_dim,), dtype) * max(align_dim, 1) ** -0.5,
        query_dim,
    )


def concat_scores(
    query: Annotated[ArrayLike, "*B T Dq"],
    keys: Annotated[ArrayLike, "*B S Dk"] | None,
    params: ConcatParams,
    *,
    projected_keys: Annotated[ArrayLike, "*B S A"] | None = None,
) -> Float[Array, "*B T S"]:
    """score(h_t, h_s) = v . tanh(W [h_t ; h_s]).

    Args:
        query: [*B T Dq].
        keys: [*B S Dk]; may be None when `projected_keys` is given.
        params: W and v.
        projected_keys: what `project_keys(keys, params.additive)` returned, once for all steps.

    Returns:
        Scores [*B T S], in float32 or wider.

    Raises:
        TypeError: an array that is not floating.
        ValueError: shapes that do not fit together.

    >>> import jax.numpy as jnp
    >>> params = ConcatParams(jnp.ones((2, 2)), jnp.array([1.0, 2.0]))
    >>> concat_scores(jnp.array([[1.0]]), jnp.array([[0.0], [-1.0]]), params).round(4)   # 3 tanh(1 + 0), 3 tanh(1 - 1)
    Array([[2.2848, 0.    ]], dtype=float32)

    Reference: Luong, Pham, Manning 2015, section 3.1.
    """
    return additive_scores(query, keys, _split(query, keys, params, projected_keys), projected_keys=projected_keys)


def concat_weights(
    query: Annotated[ArrayLike, "*B T Dq"],
    keys: Annotated[ArrayLike, "*B S Dk"] | None,
    params: ConcatParams,
    *,
    mask: Annotated[ArrayLike, "*B T S"] | None = None,
    projected_keys: Annotated[ArrayLike, "*B S A"] | None = None,
) -> Float[Array, "*B T S"]:
    """a_t(s) = softmax_s(v . tanh(W [h_t ; h_s])) over the keys that the mask allows.

    Args:
        query, keys, params, projected_keys: as in `concat_scores`.
        mask: Boolean, True = attend, [*B T S] with each axis full or 1.

    Returns, Raises: as `dot_weights`.

    >>> import jax.numpy as jnp
    >>> params = ConcatParams(jnp.ones((2, 2)), jnp.array([1.0, 2.0]))
    >>> concat_weights(jnp.array([[1.0]]), jnp.array([[0.0], [0.0], [5.0]]), params, mask=jnp.array([[True, True, False]]))
    Array([[0.5, 0.5, 0. ]], dtype=float32)

    Reference: Luong, Pham, Manning 2015, eq. 7.
    """
    additive = _split(query, keys, params, projected_keys)
    return additive_weights(query, keys, additive, mask=mask, projected_keys=projected_keys)


def concat_attention(
    query: Annotated[ArrayLike, "*B T Dq"],
    keys: Annotated[ArrayLike, "*B S Dk"] | None,
    values: Annotated[ArrayLike, "*B S V"],
    params: ConcatParams,
    *,
    mask: Annotated[ArrayLike, "*B T S"] | None = None,
    projected_keys: Annotated[ArrayLike, "*B S A"] | None = None,
) -> Float[Array, "*B T V"]:
    """c_t = sum_s a_t(s) h_s with a_t(s) = softmax_s(v . tanh(W [h_t ; h_s])).

    Args:
        query, keys, params, projected_keys: as in `concat_scores`.
        values: [*B S V]; in the paper the keys.
        mask: Boolean, True = attend, [*B T S] with each axis full or 1.

    Returns, Raises: as `dot_attention`.

    >>> import jax.numpy as jnp
    >>> params, keys = ConcatParams(jnp.ones((2, 2)), jnp.array([1.0, 2.0])), jnp.array([[0.0], [0.0], [5.0]])
    >>> concat_attention(jnp.array([[1.0]]), keys, jnp.eye(3), params, mask=jnp.array([[True, True, False]]))
    Array([[0.5, 0.5, 0. ]], dtype=float32)

    Reference: Luong, Pham, Manning 2015, section 3.1.
    """
    additive = _split(query, keys, params, projected_keys)
    return additive_attention(query, keys, values, additive, mask=mask, projected_keys=projected_keys)


def _split(query: ArrayLike, keys: ArrayLike | None, params: ConcatParams, projected_keys: ArrayLike | None) -> AdditiveParams:
    """The kernel in its two parts, once it is as high as query and key are wide."""
    if params.query_dim is not None or keys is None or projected_keys is not None:
        return params.additive
    query, keys = floating("query", query, "*B T Dq"), floating("keys", keys, "*B S Dk")
    kernel = floating("kernel", params.kernel, "Dq+Dk A")
    expect("kernel", kernel, "Dq+Dk A", (query.shape[-1] + keys.shape[-1], kernel.shape[-1]))
    return replace(params, query_dim=query.shape[-1]).additive
