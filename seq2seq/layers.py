"""Layers that hold weights and call `attn` or one matrix product, and nothing else.

Every layer computes in `dtype` and keeps its parameters in float32.  Randomness enters through the argument
`dropout_key`; ``None`` means evaluation.  Axes: B batch, T target length, S source length, D model, A alignment, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, DTypeLike, Float, Int, Key

import attn
from seq2seq.cached_attention import Ancestry, Cache, SourceMemory, append, attend_to_cache, attend_to_source


def dense(x: Float[Array, "*B D"], kernel: Float[Array, "D E"], bias: Float[Array, "E"] | None = None) -> Float[Array, "*B E"]:
    """x W + b as one two-dimensional product: batched products are several times slower on XLA:CPU."""
    flat = x.reshape(-1, x.shape[-1]) @ kernel.astype(x.dtype)
    if bias is not None:
        flat = flat + bias.astype(x.dtype)
    return flat.reshape(*x.shape[:-1], kernel.shape[-1])


def dropout(x: Float[Array, "*B"], rate: float, key: Key[Array, ""] | None) -> Float[Array, "*B"]:
    """Inverted dropout (Srivastava et al. 2014): each entry is 0 with probability `rate`, else x / (1 - rate).

    The bits come from a counter through the 32-bit finaliser of MurmurHash3, seeded from `key`: it fuses with the
    product it masks, where a counter-based generator such as threefry costs more than the layer itself on a CPU.
    """
    if rate == 0.0 or key is None:
        return x
    bits = jax.lax.iota(jnp.uint32, math.prod(x.shape)) ^ jax.random.bits(key, (), jnp.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ (bits >> shift)) * jnp.uint32(factor)
    bits = bits ^ (bits >> 16)
    keep = bits.reshape(x.shape) >= jnp.uint32(round(rate * 2**32))
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))


def word_dropout(x: Float[Array, "*B D"], rate: float, key: Key[Array, ""] | None) -> Float[Array, "*B D"]:
    """Dropout of whole rows, each the embedding of a word (Sennrich, Haddow and Birch 2016)."""
    if rate == 0.0 or key is None:
        return x
    return x * dropout(jnp.ones((*x.shape[:-1], 1), x.dtype), rate, key)


def split_key(key: Key[Array, ""] | None, count: int) -> list[Key[Array, ""] | None]:
    """`count` keys from one, or as many ``None``."""
    return [None] * count if key is None else list(jax.random.split(key, count))


def glorot(rngs: nnx.Rngs, *shape: int) -> nnx.Param:
    """Glorot and Bengio (2010), uniform."""
    return nnx.Param(nnx.initializers.glorot_uniform()(rngs.params(), shape, jnp.float32))


def zeros(*shape: int) -> nnx.Param:
    return nnx.Param(jnp.zeros(shape, jnp.float32))


class Linear(nnx.Module):
    """x W + b."""

    def __init__(self, in_dim: int, out_dim: int, *, rngs: nnx.Rngs):
        self.kernel = glorot(rngs, in_dim, out_dim)
        self.bias = zeros(out_dim)

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B E"]:
        return dense(x, self.kernel[...], self.bias[...])


class Embedding(nnx.Module):
    """A table E of one row per piece: rows in (times sqrt(D), as Vaswani et al. 2017, section 3.4), and x E^T out."""

    def __init__(self, vocab_size: int, dim: int, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32):
        self.table = nnx.Param(jax.random.normal(rngs.params(), (vocab_size, dim)) * dim**-0.5)
        self.dtype = dtype

    def __call__(self, tokens: Int[Array, "*B"]) -> Float[Array, "*B D"]:
        table = self.table[...]
        return table[tokens].astype(self.dtype) * math.sqrt(table.shape[-1])

    def attend(self, x: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        return dense(x, self.table[...].T).astype(jnp.float32)


class Output(nnx.Module):
    """x W + b over the vocabulary, where the output has a matrix of its own."""

    def __init__(self, dim: int, vocab_size: int, *, rngs: nnx.Rngs):
        self.linear = Linear(dim, vocab_size, rngs=rngs)

    def attend(self, x: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        return self.linear(x).astype(jnp.float32)


class GRU(nnx.Module):
    """Gated recurrent unit in the form of Bahdanau et al. (2015), Appendix A.1.1 and A.2.1:

        z = sigmoid(W_z x + U_z s),  r = sigmoid(W_r x + U_r s),  s~ = tanh(W x + U (r * s)),  s' = (1 - z) * s + z * s~.

    The products with x do not depend on the state, so `project` makes them for all steps at once.
    """

    def __init__(self, input_dim: int, hidden_dim: int, *, rngs: nnx.Rngs):
        orthogonal = nnx.initializers.orthogonal()
        gates = [orthogonal(rngs.params(), (hidden_dim, hidden_dim), jnp.float32) for _ in range(3)]
        self.input = Linear(input_dim, 3 * hidden_dim, rngs=rngs)
        self.gates = nnx.Param(jnp.concatenate(gates[:2], axis=1))
        self.candidate = nnx.Param(gates[2])

    def project(self, x: Float[Array, "*B D"]) -> Float[Array, "*B G"]:
        return self.input(x)

    def __call__(self, state: Float[Array, "B H"], projected: Float[Array, "B G"]) -> Float[Array, "B H"]:
        x_z, x_r, x_s = jnp.split(projected, 3, axis=-1)
        s_z, s_r = jnp.split(dense(state, self.gates[...]), 2, axis=-1)
        z, r = jax.nn.sigmoid(x_z + s_z), jax.nn.sigmoid(x_r + s_r)
        proposed = jnp.tanh(x_s + dense(r * state, self.candidate[...]))
        return (1 - z) * state + z * proposed


def cast_params(params: Any, dtype: DTypeLike) -> Any:
    """The arrays inside a tree of `nnx.Param`, in `dtype`."""
    return jax.tree.map(lambda param: param[...].astype(dtype), params, is_leaf=lambda leaf: isinstance(leaf, nnx.Param))


class AdditiveAttention(nnx.Module):
    """The weights W_a, U_a, v_a of Bahdanau et al. (2015); the mathematics is `attn.additive_attention`."""

    def __init__(self, query_dim: int, key_dim: int, align_dim: int, *, rngs: nnx.Rngs):
        params = attn.init_additive(rngs.params(), query_dim, key_dim, align_dim)
        self.weights = nnx.data(jax.tree.map(nnx.Param, params))

    def params(self, dtype: DTypeLike) -> attn.AdditiveParams:
        return cast_params(self.weights, dtype)

    def project_keys(self, keys: Float[Array, "B S D"]) -> Float[Array, "B S A"]:
        return attn.project_keys(keys, self.params(keys.dtype))


class Memory(NamedTuple):
    """Keys and values of a source, projected once for all decoding steps of one layer."""

    key: Float[Array, "B S N H"]
    value: Float[Array, "B S N H"]


class Relation(NamedTuple):
    """How positions enter the self-attention of one layer: not at all, unless said otherwise."""

    rotate: Callable[[Float[Array, "B T N H"]], Float[Array, "B T N H"]] = lambda x: x
    """What queries and keys become before they meet."""
    bias: Callable[[Float[Array, "B T N H"]], Float[Array, "#B #N T S"] | None] = lambda query: None
    """What these queries add to their scaled scores, for every key of the call."""


class MultiHeadAttention(nnx.Module):
    """The projections of Vaswani et al. (2017), section 3.2.2; the mathematics is in `attn`."""

    def __init__(self, model_dim: int, num_heads: int, *, dropout_rate: float = 0.0, rngs: nnx.Rngs):
        params = attn.init_multi_head(rngs.params(), model_dim, num_heads)
        self.weights = nnx.data(jax.tree.map(nnx.Param, params))
        self.dropout_rate = dropout_rate

    def params(self, dtype: DTypeLike) -> attn.MultiHeadParams:
        return cast_params(self.weights, dtype)

    def __call__(
        self, x: Float[Array, "B T D"], relation: Relation, *, dropout_key: Key[Array, ""] | None = None, **options: Any
    ):
        """Self-attention; `options` are those of `attn.dot_product_attention`."""
        params, rate = self.params(x.dtype), 0.0 if dropout_key is None else self.dropout_rate
        query, memory = _project_related(params, x, relation)
        options |= {"bias": relation.bias(query), "dropout_rate": rate, "dropout_key": dropout_key}
        return attn.project_output(params, attn.dot_product_attention(query, *memory, **options))

    def step(self, x: Float[Array, "R 1 D"], relation: Relation, cache: Cache, ancestry: Ancestry):
        """Self-attention of the next token to the cache and itself: output, new cache.  A row without room for it is NaN."""
        params = self.params(x.dtype)
        query, key, value = _project_together(x, (params.query_kernel, params.key_kernel, params.value_kernel))
        query, key = relation.rotate(query), relation.rotate(key)
        cache = append(cache, ancestry, key[:, 0], value[:, 0])
        context = attend_to_cache(query[:, 0], cache, ancestry, relation.bias(query))
        return attn.project_output(params, context[:, None]), cache

    def step_to_source(self, x: Float[Array, "R 1 D"], memory: SourceMemory, lengths: Int[Array, "B"]):
        """Cross-attention of the next tokens of R = B K hypotheses: output, weights [R, N, S]."""
        params = self.params(x.dtype)
        (query,) = _project_together(x, (params.query_kernel,))
        context, weights = attend_to_source(query[:, 0], memory, lengths)
        return attn.project_output(params, context[:, None]), weights

    def project_memory(self, states: Float[Array, "B S D"]) -> Memory:
        """Keys and values of cross-attention."""
        return Memory(*attn.project_key_value(self.params(states.dtype), states))

    def attend(self, x: Float[Array, "B T D"], memory: Memory, *, dropout_key: Key[Array, ""] | None = None, **options: Any):
        """Cross-attention to a projected memory."""
        params, rate = self.params(x.dtype), 0.0 if dropout_key is None else self.dropout_rate
        query = attn.project_query(params, x)
        context = attn.dot_product_attention(query, *memory, dropout_rate=rate, dropout_key=dropout_key, **options)
        return attn.project_output(params, context)

    def weights_of(self, x: Float[Array, "B T D"], memory: Memory, **options: Any) -> Float[Array, "B N T S"]:
        """The weights of `attend`, without dropout."""
        return attn.dot_product_weights(attn.project_query(self.params(x.dtype), x), memory.key, **options)


def _project_together(x: Float[Array, "R 1 D"], kernels: Sequence[Float[Array, "D N H"]]) -> list[Float[Array, "R 1 N H"]]:
    """x W of each kernel, in one product: a decoding step has few rows, and many small products would each wait for the last."""
    columns = jnp.concatenate([kernel.reshape(len(kernel), -1) for kernel in kernels], axis=1)
    parts = jnp.split(dense(x, columns), len(kernels), axis=-1)
    return [part.reshape(*x.shape[:2], *kernel.shape[1:]) for part, kernel in zip(parts, kernels, strict=True)]


def _project_related(params: attn.MultiHeadParams, x: Float[Array, "B T D"], relation: Relation):
    """Queries [B, T, N, H], and keys and values: queries and keys where their positions put them."""
    query, (key, value) = attn.project_query(params, x), attn.project_key_value(params, x)
    return relation.rotate(query), Memory(relation.rotate(key), value)


class FeedForward(nnx.Module):
    """max(0, x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, equation 2)."""

    def __init__(self, model_dim: int, ffn_dim: int, *, dropout_rate: float = 0.0, rngs: nnx.Rngs):
        self.inner, self.outer = Linear(model_dim, ffn_dim, rngs=rngs), Linear(ffn_dim, model_dim, rngs=rngs)
        self.dropout_rate = dropout_rate

    def __call__(self, x: Float[Array, "*B D"], dropout_key: Key[Array, ""] | None = None) -> Float[Array, "*B D"]:
        return self.outer(dropout(jax.nn.relu(self.inner(x)), self.dropout_rate, dropout_key))


class LayerNorm(nnx.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis (Ba et al. 2016), computed in float32."""

    def __init__(self, dim: int, *, epsilon: float = 1e-6):
        self.scale, self.bias, self.epsilon = nnx.Param(jnp.ones(dim)), zeros(dim), epsilon

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + self.epsilon)
        return (normed * self.scale[...] + self.bias[...]).astype(x.dtype)


class StepOutput(NamedTuple):
    """One decoding step: logits of the next token, the state after it, attention weights over the source (or None)."""

    logits: Float[Array, "B V"]
    state: Any
    weights: Float[Array, "B S"] | None


def lengths_of(tokens: Int[Array, "B S"], pad: int = 0) -> Int[Array, "B"]:
    """Number of real tokens of each row; padding stands at the end."""
    return jnp.sum(tokens != pad, axis=-1, dtype=jnp.int32)


def mask_of(tokens: Int[Array, "B S"], pad: int = 0) -> Bool[Array, "B S"]:
    """True at real tokens."""
    return tokens != pad
