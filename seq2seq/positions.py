"""How a Transformer knows the order of its tokens: one class for each kind of `model.positions`.

    sinusoidal    x_i + p_i, sines and cosines                 Vaswani et al. 2017, section 3.5
    learned       x_i + p_i, the rows of a table               Gehring et al. 2017, section 3.1
    rope          (R_i q_i) . (R_j k_j), R_i a rotation        Su et al. 2021, eq. 16
    alibi         scores - slope_n |i - j| of head n           Press et al. 2022, section 3
    t5            scores + table[bucket(j - i), n] of head n   Raffel et al. 2020, section 2.1
    shaw          q_i . (k_j + a_{clip(j - i)}) / sqrt(H)      Shaw et al. 2018, eq. 4
    none          nothing

The first two are absolute: they enter once, with the embeddings.  The others are relative: they enter every self-attention
of their stack and no cross-attention, whose two sides share no positions.  `shaw` has the vectors of its keys only and not
those of its values (eq. 3): the paper finds the former enough (section 4.3).  Each stack, encoder or decoder, has an object of
its own, which owns its tables.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

import attn
from seq2seq.config import TransformerConfig
from seq2seq.layers import Relation, glorot


class Positions(nnx.Module):
    """No positions, the kind "none"; each other kind overrides what it changes.

    `query_offset` is the position of the first token, one for all rows or one for each; the positions of a stack begin at 0.
    """

    def __init__(self, config: TransformerConfig, side: str, *, rngs: nnx.Rngs):
        self.config, self.side = config, side

    def embed(self, x: Float[Array, "B T D"], length: int, query_offset: Int[Array, "B"] | int = 0) -> Float[Array, "B T D"]:
        """The embeddings `x` with what is added to them; all their positions are below `length`."""
        return x

    def relations(self, T: int, S: int, query_offset: Int[Array, "B"] | int = 0) -> list[Relation]:
        """How T tokens attend to the S positions of their stack, for each of its layers."""
        return [self.relation(T, S, query_offset)] * self.config.layers_of[self.side]

    def relation(self, T: int, S: int, query_offset: Int[Array, "B"] | int) -> Relation:
        """The one that all layers share."""
        return Relation()


class Sinusoidal(Positions):
    def embed(self, x: Float[Array, "B T D"], length: int, query_offset: Int[Array, "B"] | int = 0) -> Float[Array, "B T D"]:
        vectors = attn.sinusoidal_positions(length, self.config.model_dim)
        return x + vectors[positions_of(x.shape[1], query_offset)].astype(x.dtype)


class Learned(Positions):
    def __init__(self, config: TransformerConfig, side: str, *, rngs: nnx.Rngs):
        super().__init__(config, side, rngs=rngs)
        self.table = normal(rngs, config, config.max_length, config.model_dim)

    def embed(self, x: Float[Array, "B T D"], length: int, query_offset: Int[Array, "B"] | int = 0) -> Float[Array, "B T D"]:
        if length > self.config.max_length:
            raise ValueError(f"{self.side} length: expected at most model.max_length = {self.config.max_length}, got {length}")
        return x + attn.learned_positions(self.table[...], positions_of(x.shape[1], query_offset)).astype(x.dtype)


class Rope(Positions):
    def relation(self, T: int, S: int, query_offset: Int[Array, "B"] | int) -> Relation:
        positions = positions_of(T, query_offset)
        return Relation(rotate=lambda x: attn.apply_rope(x, positions, base=self.config.rope_base))


class Alibi(Positions):
    def relation(self, T: int, S: int, query_offset: Int[Array, "B"] | int) -> Relation:
        return constant_bias(attn.alibi_bias(self.config.num_heads, T, S, query_offset=query_offset))


class T5(Positions):
    def __init__(self, config: TransformerConfig, side: str, *, rngs: nnx.Rngs):
        super().__init__(config, side, rngs=rngs)
        self.table = normal(rngs, config, config.relative_buckets, config.num_heads)

    def relation(self, T: int, S: int, query_offset: Int[Array, "B"] | int) -> Relation:
        options = {"bidirectional": self.side == "source", "max_distance": self.config.relative_max_distance}
        return constant_bias(attn.t5_bias(self.table[...], T, S, query_offset=query_offset, **options))


class Shaw(Positions):
    def __init__(self, config: TransformerConfig, side: str, *, rngs: nnx.Rngs):
        super().__init__(config, side, rngs=rngs)
        rows, head_dim = 2 * config.shaw_distance + 1, config.model_dim // config.num_heads
        self.tables = nnx.List([glorot(rngs, rows, head_dim) for _ in range(config.layers_of[side])])

    def relations(self, T: int, S: int, query_offset: Int[Array, "B"] | int = 0) -> list[Relation]:
        def relation(table: Float[Array, "R H"]) -> Relation:
            scale = table.shape[-1] ** -0.5
            return Relation(bias=lambda query: attn.shaw_scores(scale * query, table, S, query_offset=query_offset))

        return [relation(table[...]) for table in self.tables]


KINDS: dict[str, type[Positions]] = {
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rope": Rope,
    "alibi": Alibi,
    "t5": T5,
    "shaw": Shaw,
    "none": Positions,
}


def build_positions(config: TransformerConfig, side: str, *, rngs: nnx.Rngs) -> Positions:
    """The positions of one stack: `side` is "source" for the encoder's, "target" for the decoder's."""
    return KINDS[config.positions](config, side, rngs=rngs)


def positions_of(T: int, query_offset: Int[Array, "B"] | int) -> Int[Array, "*B T"]:
    """query_offset ... query_offset + T - 1, [T] where all rows have the same."""
    return jnp.asarray(query_offset, jnp.int32)[..., None] + jnp.arange(T)


def constant_bias(bias: Float[Array, "*B N T S"]) -> Relation:
    """The same bias whatever the queries, computed once for all layers."""
    bias = bias if bias.ndim == 4 else bias[None]
    return Relation(bias=lambda query: bias)


def normal(rngs: nnx.Rngs, config: TransformerConfig, *shape: int) -> nnx.Param:
    """Of the size of an embedding."""
    return nnx.Param(nnx.initializers.normal(config.model_dim**-0.5)(rngs.params(), shape, jnp.float32))
