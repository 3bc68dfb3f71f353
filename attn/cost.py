"""What attention costs: parameters, operations and bytes, by formula, as exact Python integers.

    projections    X W^Q, X W^K, X W^V     2 B (T D N H + S Dk K H + S Dk K V)
    scores         Q K^T                   2 B N T S H
    context        softmax(scores) V       2 B N T S V
    output         Concat(...) W^O         2 B T N V D

A multiply-add is two operations.  Not counted are the gradient, and the softmax, scale, bias and masks, a few operations for
each weight.  The paper's h is our `num_heads`, its d_k and d_v our `head_dim` and `value_dim` (Vaswani et al. 2017, 3.2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike

from attn.additive_blocks import choose_blocks
from attn.shapes import size

IMPLEMENTATIONS = ("dense", "blockwise")


class AttentionCost(NamedTuple):
    """Parameters, floating-point operations (FLOPs) and bytes of one forward pass."""

    projection_parameters: int
    """Of W^Q, W^K, W^V and their biases; of W, U and v in additive attention."""
    projection_flops: int
    score_flops: int
    context_flops: int
    """Of the weighted sum of the values."""
    cache_bytes: int
    """What a decoder keeps for its next step: keys and values of all S tokens, or the sums of linear attention."""
    input_bytes: int
    output_bytes: int
    output_parameters: int = 0
    """Of W^O and its bias."""
    output_flops: int = 0
    weights_bytes: int = 0
    """Of the weights held at one time, in float32 or wider."""
    hidden_bytes: int = 0
    """Of the tensor [B T S A] inside additive scores, in float32 or wider."""

    @property
    def parameters(self) -> int:
        """Of the whole block."""
        return self.projection_parameters + self.output_parameters

    @property
    def flops(self) -> int:
        """Of all products together."""
        return self.projection_flops + self.score_flops + self.context_flops + self.output_flops


def attention_cost(
    model_dim: int,
    num_heads: int,
    *,
    batch: int,
    query_length: int,
    key_length: int | None = None,
    cached_length: int = 0,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    key_input_dim: int | None = None,
    use_bias: bool = False,
    dtype: DTypeLike = jnp.float32,
    pairs: int | None = None,
    implementation: str = "dense",
    block_sizes: Sequence[int] = (128, 128),
) -> AttentionCost:
    """Cost of `multi_head_attention`.

        parameters    = D N H + Dk K (H + V) + N V D             4 D^2 for H = V = D / N, whatever N
        flops         = 2 B (T D N H + S Dk K (H + V) + N T S (H + V) + T N V D)
        weights_bytes = B N T S itemsize                         B N Tb Sb itemsize in blocks of Tb x Sb

    Blocks change neither parameters nor operations, only the memory.

    Args:
        model_dim: D.
        num_heads: N.
        batch: B.
        query_length: T.
        key_length: S of cross-attention, whose keys have an input of their own.  If not given, the T tokens attend to the
            cached ones and to each other.
        cached_length: how many of the S keys and values are in a cache, and need no projection any more.
        num_kv_heads: K, a divisor of N; N if not given.
        head_dim: H; D / N if not given.
        value_dim: V; H if not given.
        key_input_dim: Dk; D if not given.
        use_bias: add biases to the four projections.
        dtype: of parameters, inputs and cache; weights are in float32 or wider.
        pairs: how many scores a sparse pattern computes for each head, as by `window_pairs`; T S if not given.
        implementation: "dense", which holds every weight, or "blockwise", which holds one block for each head.
        block_sizes: (Tb, Sb), queries and keys of a block.

    Returns:
        AttentionCost.

    Raises:
        TypeError: a dtype that is not floating.
        ValueError: a size that is no integer >= 0, heads that do not divide what they must, more cached keys than keys, more
            pairs than T S, an unknown implementation.

    >>> for num_heads in (1, 8):
    ...     cost = attention_cost(512, num_heads, batch=32, query_length=1024)
    ...     print(cost.projection_parameters, cost.output_parameters, cost.parameters, cost.weights_bytes)
    786432 262144 1048576 134217728
    786432 262144 1048576 1073741824
    >>> attention_cost(512, 8, batch=32, query_length=1024, implementation="blockwise").weights_bytes
    16777216

    Reference: Vaswani et al. Attention is all you need. 2017, section 3.2.2 and table 1; in blocks, Dao et al.
    FlashAttention. 2022, section 3.1.
    """
    _check_implementation(implementation)
    layer = _layer(model_dim, num_heads, num_kv_heads, head_dim, value_dim, key_input_dim, use_bias, dtype)
    B, T, S, new = _lengths(batch, query_length, key_length, cached_length)
    pairs = T * S if pairs is None else _at_most("pairs", pairs, T * S, "T S")
    held = pairs if implementation == "dense" else _block(block_sizes, T, S)
    return AttentionCost(
        projection_parameters=layer.projection_parameters,
        output_parameters=layer.output_parameters,
        projection_flops=layer.projection_flops(B, T, new),
        score_flops=2 * B * layer.N * pairs * layer.H,
        context_flops=2 * B * layer.N * pairs * layer.V,
        output_flops=layer.output_flops(B, T),
        weights_bytes=B * layer.N * held * _wide(layer.itemsize),
        cache_bytes=B * S * layer.K * (layer.H + layer.V) * layer.itemsize,
        input_bytes=layer.input_bytes(B, T, 0 if key_length is None else new),
        output_bytes=B * T * layer.D * layer.itemsize,
    )


def linear_cost(
    model_dim: int,
    num_heads: int,
    *,
    batch: int,
    query_length: int,
    key_length: int | None = None,
    cached_length: int = 0,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    key_input_dim: int | None = None,
    use_bias: bool = False,
    dtype: DTypeLike = jnp.float32,
    num_features: int | None = None,
) -> AttentionCost:
    """Cost of multi-head attention with phi(q_i) . sum_j phi(k_j) v_j^T / phi(q_i) . sum_j phi(k_j) in place of softmax.

        score_flops   = 2 B S K R V                  the sums over the keys, R = H features
        context_flops = 2 B T N R (V + 1)            their products with the queries
        cache_bytes   = B K R (V + 1) itemsize       whatever S; the sums are in float32 or wider

    There are no weights: every length enters once, none as T S.

    Args:
        num_features: R of a feature map with a random projection, whose 2 B (T N + S K) H R operations count as scores; if
            not given the map works on each of the H numbers.
        cached_length: how many of the S keys are in the sums already.
        model_dim, num_heads, and every other option: as in `attention_cost`.

    Returns:
        AttentionCost.

    Raises:
        TypeError, ValueError: as in `attention_cost`.

    >>> [linear_cost(512, 8, batch=1, query_length=n).context_flops for n in (1024, 2048)]
    [68157440, 136314880]

    Reference: Katharopoulos et al. Transformers are RNNs. 2020, eq. 4-6; random features, Choromanski et al. 2021, section 2.2.
    """
    layer = _layer(model_dim, num_heads, num_kv_heads, head_dim, value_dim, key_input_dim, use_bias, dtype)
    B, T, _, new = _lengths(batch, query_length, key_length, cached_length)
    features = layer.H if num_features is None else size("num_features", num_features)
    map_flops = 0 if num_features is None else 2 * B * (T * layer.N + new * layer.K) * layer.H * features
    return AttentionCost(
        projection_parameters=layer.projection_parameters,
        output_parameters=layer.output_parameters,
        projection_flops=layer.projection_flops(B, T, new),
        score_flops=map_flops + 2 * B * new * layer.K * features * layer.V,
        context_flops=2 * B * T * layer.N * features * (layer.V + 1),
        output_flops=layer.output_flops(B, T),
        cache_bytes=B * layer.K * features * (layer.V + 1) * _wide(layer.itemsize),
        input_bytes=layer.input_bytes(B, T, 0 if key_length is None else new),
        output_bytes=B * T * layer.D * layer.itemsize,
    )


def additive_cost(
    query_dim: int,
    key_dim: int,
    align_dim: int,
    *,
    batch: int,
    query_length: int,
    key_length: int,
    cached_length: int = 0,
    value_dim: int | None = None,
    dtype: DTypeLike = jnp.float32,
    implementation: str = "dense",
) -> AttentionCost:
    """Cost of `additive_attention`, v . tanh(W q_i + U k_j).

        parameters   = (Dq + Dk + 1) A
        flops        = 2 B (T Dq A + S Dk A + T S A + T S V)
        hidden_bytes = B T S A itemsize       A times the weights; at most about 2^20 elements in blocks, on a CPU

    Args:
        query_dim: Dq.
        key_dim: Dk.
        align_dim: A.
        batch: B.
        query_length: T.
        key_length: S.
        cached_length: how many of the S keys are projected already, by `project_keys`.
        value_dim: V; the values are the keys if not given.
        dtype: of parameters, inputs and projected keys; scores and weights are in float32 or wider.
        implementation: "dense" or "blockwise", see `select_additive_implementation`.

    Returns:
        AttentionCost; cache_bytes are those of projected keys and values.

    Raises:
        TypeError: a dtype that is not floating.
        ValueError: a size that is no integer >= 0, more cached keys than keys, or another implementation.

    >>> cost = additive_cost(1000, 2000, 1000, batch=80, query_length=1, key_length=50, cached_length=50)
    >>> cost.parameters, cost.hidden_bytes // cost.weights_bytes
    (3001000, 1000)

    Reference: Bahdanau et al. 2015, Appendix A.1.2.
    """
    dims = {"query_dim": query_dim, "key_dim": key_dim, "align_dim": align_dim}
    Dq, Dk, A = (size(name, value) for name, value in dims.items())
    V = Dk if value_dim is None else size("value_dim", value_dim)
    B, T, S, new = _lengths(batch, query_length, key_length, cached_length)
    itemsize = _itemsize(dtype)
    _check_implementation(implementation)
    held = prod(choose_blocks(B, T, S, A)) if implementation == "blockwise" else B * T * S
    return AttentionCost(
        projection_parameters=(Dq + Dk + 1) * A,
        projection_flops=2 * B * (T * Dq + new * Dk) * A,
        score_flops=2 * B * T * S * A,
        context_flops=2 * B * T * S * V,
        weights_bytes=B * T * S * _wide(itemsize),
        hidden_bytes=held * A * _wide(itemsize),
        cache_bytes=B * S * (A + V) * itemsize,
        input_bytes=B * (T * Dq + new * Dk + (0 if value_dim is None else S * V)) * itemsize,
        output_bytes=B * T * V * itemsize,
    )


def window_pairs(T: int, S: int | None = None, *, left: int | None, right: int | None, query_offset: int = 0) -> int:
    """How many pairs of query and key `sliding_window_mask` allows: about T (left + 1 + right), not T S.

    Args:
        T: number of queries.
        S: number of keys; T if not given.
        left, right, query_offset: as in `sliding_window_mask`; (None, 0) is causal.

    Returns:
        The number of pairs, for `attention_cost(..., pairs=...)`.

    Raises:
        ValueError: a negative size or side.

    >>> window_pairs(4, left=1, right=0), window_pairs(4, left=None, right=0)
    (7, 10)

    Reference: Beltagy, Peters, Cohan. Longformer: the long-document transformer. 2020, section 3.1.
    """
    T, S = size("T", T), size("S", T if S is None else S)
    left = None if left is None else size("left", left)
    right = None if right is None else size("right", right)
    pairs = 0
    for position in range(query_offset, query_offset + T):
        first = 0 if left is None else max(0, position - left)
        last = S - 1 if right is None else min(S - 1, position + right)
        pairs += max(0, last - first + 1)
    return pairs


class _Layer(NamedTuple):
    """Widths and heads of a multi-head layer, and what its four projections cost."""

    D: int
    Dk: int
    N: int
    K: int
    H: int
    V: int
    use_bias: bool
    itemsize: int

    @property
    def projection_parameters(self) -> int:
        biases = self.N * self.H + self.K * (self.H + self.V) if self.use_bias else 0
        return self.D * self.N * self.H + self.Dk * self.K * (self.H + self.V) + biases

    @property
    def output_parameters(self) -> int:
        return self.N * self.V * self.D + (self.D if self.use_bias else 0)

    def projection_flops(self, B: int, T: int, new_keys: int) -> int:
        return 2 * B * (T * self.D * self.N * self.H + new_keys * self.Dk * self.K * (self.H + self.V))

    def output_flops(self, B: int, T: int) -> int:
        return 2 * B * T * self.N * self.V * self.D

    def input_bytes(self, B: int, T: int, own_keys: int) -> int:
        return B * (T * self.D + own_keys * self.Dk) * self.itemsize


def _layer(model_dim, num_heads, num_kv_heads, head_dim, value_dim, key_input_dim, use_bias, dtype) -> _Layer:
    D, N = size("model_dim", model_dim), size("num_heads", num_heads)
    K = N if num_kv_heads is None else size("num_kv_heads", num_kv_heads)
    if N == 0 or K == 0 or N % K:
        raise ValueError(f"num_kv_heads: expected a divisor of num_heads = {num_heads}, got {num_kv_heads}")
    if head_dim is None and D % N:
        raise ValueError(f"num_heads: expected a divisor of model_dim = {model_dim} (or a head_dim), got {num_heads}")
    H = D // N if head_dim is None else size("head_dim", head_dim)
    V = H if value_dim is None else size("value_dim", value_dim)
    Dk = D if key_input_dim is None else size("key_input_dim", key_input_dim)
    return _Layer(D, Dk, N, K, H, V, use_bias, _itemsize(dtype))


def _lengths(batch, query_length, key_length, cached_length) -> tuple[int, int, int, int]:
    """B, T, S, and how many of the S keys are new."""
    B, T, cached = size("batch", batch), size("query_length", query_length), size("cached_length", cached_length)
    S = T + cached if key_length is None else size("key_length", key_length)
    return B, T, S, S - _at_most("cached_length", cached, S, "S")


def _check_implementation(implementation: str) -> None:
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation: expected one of {', '.join(map(repr, IMPLEMENTATIONS))}, got {implementation!r}")


def _block(block_sizes: Sequence[int], T: int, S: int) -> int:
    """Scores in one block."""
    if len(block_sizes) != 2:
        raise ValueError(f"block_sizes: expected (Tb, Sb), got {block_sizes!r}")
    rows, columns = (size("block_sizes", n) for n in block_sizes)
    return min(rows, T) * min(columns, S)


def _at_most(name: str, value: int, limit: int, symbol: str) -> int:
    if size(name, value) > limit:
        raise ValueError(f"{name}: expected at most {symbol} = {limit}, got {value}")
    return size(name, value)


def _itemsize(dtype: DTypeLike) -> int:
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"dtype: expected a floating dtype, got {jnp.dtype(dtype)}")
    return jnp.dtype(dtype).itemsize


def _wide(itemsize: int) -> int:
    """Bytes of a number in float32 or wider."""
    return max(itemsize, 4)
