"""Multi-head attention (Vaswani et al. 2017, section 3.2.2), and the cache of keys and values for decoding.

    head_n        = Attention(X_q W_n^Q, X_k W_n^K, X_v W_n^V)
    MultiHead(X)  = Concat(head_1 ... head_N) W^O

One function for self-attention (only `query_input`), masked self-attention (`is_causal=True`) and cross-attention
(`key_input`).  Fewer key/value heads than query heads make it grouped-query (Ainslie et al. 2023) or, with one,
multi-query attention (Shazeer 2019).
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float

from attn.dot_product import dot_product_attention, dot_product_weights
from attn.kv_cache import KVCache, update_cache
from attn.projection import project
from attn.shapes import broadcastable, expect, floating, size


class MultiHeadParams(NamedTuple):
    """W^Q, W^K, W^V, W^O, one slice for each head, and their biases (None for none)."""

    query_kernel: Float[Array, "Dq N H"]
    key_kernel: Float[Array, "Dk K H"]
    value_kernel: Float[Array, "Dk K V"]
    output_kernel: Float[Array, "N V D"]
    query_bias: Float[Array, "N H"] | None = None
    key_bias: Float[Array, "K H"] | None = None
    value_bias: Float[Array, "K V"] | None = None
    output_bias: Float[Array, " D"] | None = None


def init_multi_head(
    key: Array,
    model_dim: int,
    num_heads: int,
    *,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    key_input_dim: int | None = None,
    use_bias: bool = False,
    dtype: DTypeLike = jnp.float32,
) -> MultiHeadParams:
    """Random projections, uniform with variance 2 / (fan_in + fan_out); biases are zero.

    Args:
        key: random key.
        model_dim: D, width of queries' input and of the output.
        num_heads: N.
        num_kv_heads: K, a divisor of N; N if not given.
        head_dim: H; D / N if not given.
        value_dim: V, width of a value head; H if not given.
        key_input_dim: width of the keys' and values' input, if it is not D (cross-attention).
        use_bias: add biases to the four projections.
        dtype: floating dtype of the parameters.

    Returns:
        MultiHeadParams of shapes [D N H], [Dk K H], [Dk K V], [N V D].

    Raises:
        ValueError: heads that do not divide what they must.

    >>> import jax
    >>> jax.tree.map(lambda leaf: leaf.shape, init_multi_head(jax.random.key(0), 8, 4, num_kv_heads=2))[:4]
    ((8, 4, 2), (8, 2, 2), (8, 2, 2), (4, 2, 8))

    Reference: Vaswani et al. 2017, section 3.2.2; Glorot and Bengio. 2010, eq. 16.
    """
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if num_heads < 1 or kv_heads < 1 or num_heads % kv_heads:
        raise ValueError(f"num_kv_heads: expected a divisor of num_heads = {num_heads}, got {num_kv_heads}")
    if head_dim is None:
        if model_dim % num_heads:
            raise ValueError(f"num_heads: expected a divisor of model_dim = {model_dim} (or a head_dim), got {num_heads}")
        head_dim = model_dim // num_heads
    value_dim = head_dim if value_dim is None else value_dim
    key_dim = model_dim if key_input_dim is None else key_input_dim
    shapes = ((model_dim, num_heads, head_dim), (key_dim, kv_heads, head_dim), (key_dim, kv_heads, value_dim))
    uniform = [
        jax.nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", in_axis=in_axis, out_axis=out_axis, dtype=dtype)
        for in_axis, out_axis in ((0, (1, 2)), (0, (1, 2)), (0, (1, 2)), ((0, 1), 2))
    ]
    shapes += ((num_heads, value_dim, model_dim),)
    kernels = [init(k, shape) for init, k, shape in zip(uniform, jax.random.split(key, 4), shapes, strict=True)]
    biases = [jnp.zeros(s, dtype) for s in (*(s[1:] for s in shapes[:3]), (model_dim,))] if use_bias else []
    return MultiHeadParams(*kernels, *biases)


def split_heads(x: Annotated[ArrayLike, "*B T D"], num_heads: int) -> Float[Array, "*B T N H"]:
    """Cut the last axis into heads: head n holds the columns n H ... (n+1) H - 1.

    Args:
        x: [*B T D] with D = N H.
        num_heads: N.

    Returns:
        [*B T N H].

    Raises:
        ValueError: `num_heads` does not divide the last axis.

    >>> import jax.numpy as jnp
    >>> split_heads(jnp.arange(4.0).reshape(1, 4), 2)
    Array([[[0., 1.],
            [2., 3.]]], dtype=float32)
    """
    x = floating("x", x, "*B T D")
    if size("num_heads", num_heads) == 0 or x.shape[-1] % num_heads:
        raise ValueError(f"num_heads: expected a divisor of the last axis of x {x.shape}, got {num_heads}")
    return x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads)


def merge_heads(x: Annotated[ArrayLike, "*B T N H"]) -> Float[Array, "*B T D"]:
    """Concat(head_1 ... head_N), the inverse of `split_heads`.

    Args:
        x: [*B T N H].

    Returns:
        [*B T D] with D = N H.

    Raises:
        ValueError: fewer than three axes.

    >>> import jax.numpy as jnp
    >>> merge_heads(jnp.array([[[0.0, 1.0], [2.0, 3.0]]]))
    Array([[0., 1., 2., 3.]], dtype=float32)
    """
    x = floating("x", x, "*B T N H")
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def project_query(params: MultiHeadParams, query_input: Annotated[ArrayLike, "*B T D"]) -> Float[Array, "*B T N H"]:
    """X_q W^Q, by head.

    Args:
        params: of the attention.
        query_input: [*B T D].

    Returns:
        [*B T N H] in the dtype of `query_input`.

    Raises:
        ValueError: an input of another width than the kernel's.

    >>> import jax, jax.numpy as jnp
    >>> project_query(init_multi_head(jax.random.key(0), 8, 4), jnp.ones((3, 8))).shape
    (3, 4, 2)
    """
    return _project("query_input", query_input, params.query_kernel, params.query_bias)


def project_key_value(
    params: MultiHeadParams,
    key_input: Annotated[ArrayLike, "*B S Dk"],
    value_input: Annotated[ArrayLike, "*B S Dk"] | None = None,
) -> tuple[Float[Array, "*B S K H"], Float[Array, "*B S K V"]]:
    """X_k W^K and X_v W^V, by head: in cross-attention they stay the same for every decoding step.

    Args:
        params: of the attention.
        key_input: [*B S Dk].
        value_input: [*B S Dk]; `key_input` if not given.

    Returns:
        Keys [*B S K H] and values [*B S K V], in the dtype of their inputs.  A row that holds NaN or Inf gives NaN.

    Raises:
        ValueError: an input of another width than the kernel's, or keys and values of different number.

    >>> import jax, jax.numpy as jnp
    >>> key, value = project_key_value(init_multi_head(jax.random.key(0), 8, 4, value_dim=3), jnp.ones((5, 8)))
    >>> key.shape, value.shape
    ((5, 4, 2), (5, 4, 3))
    """
    value_name, value_input = ("key_input", key_input) if value_input is None else ("value_input", value_input)
    key = _project("key_input", key_input, params.key_kernel, params.key_bias)
    expect(value_name, jnp.asarray(value_input), "*B S Dk", (*key.shape[:-2], jnp.shape(value_input)[-1]))
    return key, _project(value_name, value_input, params.value_kernel, params.value_bias)


def project_output(
    params: MultiHeadParams,
    context: Annotated[ArrayLike, "*B T N V"],
    *,
    head_mask: Annotated[ArrayLike, "*B N"] | None = None,
) -> Float[Array, "*B T D"]:
    """Concat(xi_1 head_1 ... xi_N head_N) W^O.

    Args:
        params: of the attention.
        context: of every head [*B T N V].
        head_mask: xi, one number for each head, [N] or [*B N]; 0 switches a head off (Michel et al. 2019, section 2.3).

    Returns:
        [*B T D] in the dtype of `context`.

    Raises:
        ValueError: a context or head_mask that does not fit `params`.

    >>> import jax, jax.numpy as jnp
    >>> project_output(init_multi_head(jax.random.key(0), 8, 4), jnp.ones((3, 4, 2)), head_mask=jnp.array([1, 0, 1, 1])).shape
    (3, 8)
    """
    context = floating("context", context, "*B T N V")
    num_heads, value_dim, _ = params.output_kernel.shape
    expect("context", context, "*B T N V", (*context.shape[:-2], num_heads, value_dim))
    if head_mask is not None:
        xi = jnp.asarray(head_mask).astype(context.dtype)
        shape = (num_heads,) if xi.ndim == 1 else (*context.shape[:-3], num_heads)
        context = context * broadcastable("head_mask", xi, "N" if xi.ndim == 1 else "*B N", shape)[..., None, :, None]
    kernel = params.output_kernel.reshape(num_heads * value_dim, -1)
    return project(merge_heads(context), kernel, params.output_bias).astype(context.dtype)


def multi_head_attention(
    params: MultiHeadParams,
    query_input: Annotated[ArrayLike, "*B T D"],
    key_input: Annotated[ArrayLike, "*B S Dk"] | None = None,
    value_input: Annotated[ArrayLike, "*B S Dk"] | None = None,
    *,
    mask: Annotated[ArrayLike, "*B N T S"] | None = None,
    is_causal: bool = False,
    head_mask: Annotated[ArrayLike, "*B N"] | None = None,
    cache: KVCache | None = None,
    **options: Any,
) -> Float[Array, "*B T D"] | tuple[Float[Array, "*B T D"], KVCache]:
    """Concat(head_1 ... head_N) W^O, with head_n = softmax(Q_n K_n^T / sqrt(H)) V_n.

    With a `cache` the inputs are the next T tokens, of any number: their keys and values are appended, the queries sit at
    positions length ... length + T - 1 of their row and see the cached keys up to their own position, so that decoding in
    chunks equals masked self-attention over the whole.

    Args:
        params: projections.
        query_input: [*B T D].
        key_input: [*B S Dk] for cross-attention; `query_input` if not given.
        value_input: [*B S Dk]; `key_input` if not given.
        mask: Boolean, True = attend, [*B N T S] with each axis full or 1.  With a cache S is the size of the cache.
        is_causal: queries see no later keys; always so with a cache.
        head_mask: a factor for the context of each head, [N] or [*B N].
        cache: keys and values of the tokens before, from `init_cache` or the step before.
        **options: any other of `dot_product_attention`.

    Returns:
        [*B T D] in the dtype of `query_input`; with a cache, that and the cache with the new tokens.  A row whose cache has
        overflowed inside a transformation, where nothing can be raised, is NaN.

    Raises:
        TypeError, ValueError: as in `dot_product_attention`; inputs that do not fit `params`; a query_offset beside a cache,
            which has its own; a known cache length to which the new tokens no longer fit.

    >>> import jax, jax.numpy as jnp
    >>> from attn import init_cache
    >>> params = init_multi_head(jax.random.key(0), 8, 4, num_kv_heads=2)
    >>> x = jax.random.normal(jax.random.key(1), (3, 8))
    >>> whole = multi_head_attention(params, x, is_causal=True)
    >>> first, cache = multi_head_attention(params, x[:2], cache=init_cache((), 5, 2, 2))
    >>> last, cache = multi_head_attention(params, x[2:], cache=cache)
    >>> bool(jnp.allclose(whole, jnp.concatenate([first, last]), atol=1e-6))
    True

    Reference: Vaswani et al. 2017, section 3.2.2.
    """
    key_input, value_input = _sources(query_input, key_input, value_input)
    query = project_query(params, query_input)
    key, value = project_key_value(params, key_input, value_input)
    if cache is None:
        context = dot_product_attention(query, key, value, mask=mask, is_causal=is_causal, **options)
        return project_output(params, context, head_mask=head_mask)
    if "query_offset" in options:
        raise ValueError("query_offset: expected none beside a cache, whose length is the offset")
    offset, cache = cache.length, update_cache(cache, key, value)
    context = dot_product_attention(query, cache.key, cache.value, mask=mask, is_causal=True, query_offset=offset, **options)
    context = jnp.where(cache.overflowed[..., None, None, None], jnp.nan, context).astype(query.dtype)
    return project_output(params, context, head_mask=head_mask), cache


def multi_head_weights(
    params: MultiHeadParams,
    query_input: Annotated[ArrayLike, "*B T D"],
    key_input: Annotated[ArrayLike, "*B S Dk"] | None = None,
    **options: Any,
) -> Float[Array, "*B N T S"]:
    """The weights of every head of `multi_head_attention`, not averaged over heads.

    Args:
        params: projections.
        query_input: [*B T D].
        key_input: [*B S Dk] for cross-attention; `query_input` if not given.
        **options: any of `dot_product_weights`.

    Returns:
        [*B N T S] in float32 or wider.

    Raises:
        TypeError, ValueError: as in `dot_product_weights`; inputs that do not fit `params`.

    >>> import jax, jax.numpy as jnp
    >>> params = init_multi_head(jax.random.key(0), 8, 4)
    >>> multi_head_weights(params, jnp.ones((1, 8)), jnp.ones((2, 8)))[:, 0]
    Array([[0.5, 0.5],
           [0.5, 0.5],
           [0.5, 0.5],
           [0.5, 0.5]], dtype=float32)

    Reference: Vaswani et al. 2017, section 3.2.2.
    """
    key, _ = project_key_value(params, query_input if key_input is None else key_input)
    return dot_product_weights(project_query(params, query_input), key, **options)


def _sources(query_input, key_input, value_input) -> tuple[ArrayLike, ArrayLike]:
    if key_input is None and value_input is not None:
        raise ValueError("key_input: expected shape (*B, S, Dk) beside a value_input, got None")
    key_input = query_input if key_input is None else key_input
    return key_input, key_input if value_input is None else value_input


def _project(name: str, inputs: ArrayLike, kernel: Array, bias: Array | None) -> Float[Array, "*B T N H"]:
    inputs = floating(name, inputs, "*B T D")
    expect(name, inputs, "*B T D", (*inputs.shape[:-1], kernel.shape[0]))
    # Isolated, so that NaN in a padded token that nothing attends to stays out of the gradient of the kernel.
    return project(inputs, kernel, bias, isolate=True).astype(inputs.dtype)
