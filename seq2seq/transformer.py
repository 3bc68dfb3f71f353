"""The Transformer of Vaswani et al. (2017), "Attention is all you need", as an encoder-decoder.

    sublayer     pre-norm   x + dropout(f(norm(x)))      (as most later systems; a last norm closes each stack)
                 post-norm  norm(x + dropout(f(x)))      (section 5.4 of the paper)
    encoder      self-attention, feed-forward
    decoder      masked self-attention, cross-attention to the encoder, feed-forward
    in, out      E y sqrt(D) (section 3.4);  logits = x E^T with the same E when embeddings are tied
    positions    added to the embeddings (section 3.5), or within the self-attentions: see `seq2seq.positions`

Decoding keeps a `attn.KVCache` for each layer's self-attention and projects the encoder's output once.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int, Key

import attn
from seq2seq.config import TransformerConfig
from seq2seq.layers import (
    Embedding,
    FeedForward,
    LayerNorm,
    Memory,
    MultiHeadAttention,
    Output,
    Relation,
    StepOutput,
    dropout,
    lengths_of,
    split_key,
)
from seq2seq.positions import build_positions


class TransformerMemory(NamedTuple):
    """What the decoder reads of the source: keys and values of each layer, and true lengths."""

    layers: tuple[Memory, ...]
    lengths: Int[Array, "B"]


class TransformerState(NamedTuple):
    """What the decoder remembers of the target: a cache for each layer, and the position of the next token."""

    caches: tuple[attn.KVCache, ...]
    position: Int[Array, "B"]


class Sublayer(nnx.Module):
    """Residual sum, norm and dropout around one function."""

    def __init__(self, config: TransformerConfig):
        self.norm, self.norm_first, self.rate = LayerNorm(config.model_dim), config.norm == "pre", config.dropout_rate

    def enter(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        return self.norm(x) if self.norm_first else x

    def leave(self, x: Float[Array, "*B D"], y: Float[Array, "*B D"], dropout_key: Key[Array, ""] | None = None):
        total = x + dropout(y, self.rate, dropout_key)
        return total if self.norm_first else self.norm(total)


class EncoderLayer(nnx.Module):
    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        c = config
        self.attention = MultiHeadAttention(c.model_dim, c.num_heads, dropout_rate=c.attention_dropout_rate, rngs=rngs)
        self.feed_forward = FeedForward(c.model_dim, c.ffn_dim, rngs=rngs)
        self.attention_sublayer, self.feed_forward_sublayer = Sublayer(c), Sublayer(c)

    def __call__(self, x: Float[Array, "B S D"], lengths: Int[Array, "B"], relation: Relation, dropout_key=None):
        keys = split_key(dropout_key, 3)
        entered = self.attention_sublayer.enter(x)
        attended = self.attention(entered, relation, key_lengths=lengths, dropout_key=keys[0])
        x = self.attention_sublayer.leave(x, attended, keys[1])
        return self.feed_forward_sublayer.leave(x, self.feed_forward(self.feed_forward_sublayer.enter(x)), keys[2])


class DecoderLayer(nnx.Module):
    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        c = config
        attention = partial(MultiHeadAttention, c.model_dim, c.num_heads, dropout_rate=c.attention_dropout_rate, rngs=rngs)
        self.self_attention, self.cross_attention = attention(), attention()
        self.feed_forward = FeedForward(c.model_dim, c.ffn_dim, rngs=rngs)
        self.self_sublayer, self.cross_sublayer, self.feed_forward_sublayer = Sublayer(c), Sublayer(c), Sublayer(c)

    def __call__(self, x: Float[Array, "B T D"], memory: Memory, lengths: Int[Array, "B"], relation: Relation, dropout_key=None):
        """All target positions at once, each blind to those after it."""
        keys = split_key(dropout_key, 5)
        attended = self.self_attention(self.self_sublayer.enter(x), relation, is_causal=True, dropout_key=keys[0])
        x = self.self_sublayer.leave(x, attended, keys[1])
        return self._rest(x, memory, lengths, keys[2:])

    def step(self, x: Float[Array, "B 1 D"], memory: Memory, lengths: Int[Array, "B"], relation: Relation, cache: attn.KVCache):
        """One target position: output, new cache, cross-attention weights [B, N, 1, S]."""
        attended, cache = self.self_attention.step(self.self_sublayer.enter(x), relation, cache)
        x = self.self_sublayer.leave(x, attended)
        weights = self.cross_attention.attention_weights(self.cross_sublayer.enter(x), memory, key_lengths=lengths)
        return self._rest(x, memory, lengths, split_key(None, 3)), cache, weights

    def _rest(self, x: Float[Array, "B T D"], memory: Memory, lengths: Int[Array, "B"], keys):
        entered = self.cross_sublayer.enter(x)
        attended = self.cross_attention.attend(entered, memory, key_lengths=lengths, dropout_key=keys[0])
        x = self.cross_sublayer.leave(x, attended, keys[1])
        return self.feed_forward_sublayer.leave(x, self.feed_forward(self.feed_forward_sublayer.enter(x)), keys[2])


class Transformer(nnx.Module):
    """Encoder-decoder; see the module's docstring."""

    def __init__(
        self,
        config: TransformerConfig,
        source_vocab: int,
        target_vocab: int,
        *,
        shared_vocab: bool,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
    ):
        self.config, self.dtype = config, dtype
        embedding = partial(Embedding, dim=config.model_dim, rngs=rngs, dtype=dtype)
        self.shared_source = shared_vocab and config.tied_embeddings
        self.target_embedding = embedding(target_vocab)
        if not self.shared_source:
            self.source_embedding = embedding(source_vocab)
        self.source_positions = build_positions(config, "source", rngs=rngs)
        self.target_positions = build_positions(config, "target", rngs=rngs)
        self.encoder = nnx.List([EncoderLayer(config, rngs=rngs) for _ in range(config.num_layers)])
        self.decoder = nnx.List([DecoderLayer(config, rngs=rngs) for _ in range(config.num_layers)])
        if config.norm == "pre":
            self.encoder_norm, self.decoder_norm = LayerNorm(config.model_dim), LayerNorm(config.model_dim)
        if not config.tied_embeddings:
            self.output = Output(config.model_dim, target_vocab, rngs=rngs)

    def encode(self, source: Int[Array, "B S"], dropout_key: Key[Array, ""] | None = None) -> TransformerMemory:
        keys = split_key(dropout_key, 1 + self.config.num_layers)
        lengths, S = lengths_of(source), source.shape[1]
        embedding = self.target_embedding if self.shared_source else self.source_embedding
        x = dropout(self.source_positions.embed(embedding(source), S), self.config.dropout_rate, keys[0])
        for layer, relation, key in zip(self.encoder, self.source_positions.relations(S, S), keys[1:], strict=True):
            x = layer(x, lengths, relation, key)
        if self.config.norm == "pre":
            x = self.encoder_norm(x)
        return TransformerMemory(tuple(layer.cross_attention.project_memory(x) for layer in self.decoder), lengths)

    def features(self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, dropout_key: Key[Array, ""] | None = None):
        """Output of the last decoder layer at every target position, teacher-forced: [B, T, D]."""
        encode_key, embed_key, *keys = split_key(dropout_key, 2 + self.config.num_layers)
        memory, T = self.encode(source, encode_key), target_in.shape[1]
        x = self.target_positions.embed(self.target_embedding(target_in), T)
        x = dropout(x, self.config.dropout_rate, embed_key)
        relations = self.target_positions.relations(T, T)
        for layer, layer_memory, relation, key in zip(self.decoder, memory.layers, relations, keys, strict=True):
            x = layer(x, layer_memory, memory.lengths, relation, key)
        return self.decoder_norm(x) if self.config.norm == "pre" else x

    def logits(self, features: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        return (self.target_embedding if self.config.tied_embeddings else self.output).attend(features)

    def __call__(self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, dropout_key: Key[Array, ""] | None = None):
        """Logits of every target position, teacher-forced: [B, T, V]."""
        return self.logits(self.features(source, target_in, dropout_key=dropout_key))

    def init_state(self, memory: TransformerMemory, max_length: int) -> TransformerState:
        """Empty caches with room for `max_length` target tokens."""
        batch, heads = memory.lengths.shape[0], self.config.num_heads
        cache = partial(attn.init_cache, batch, max_length, heads, self.config.model_dim // heads, dtype=self.dtype)
        return TransformerState(tuple(cache() for _ in self.decoder), jnp.zeros(batch, jnp.int32))

    def step(self, memory: TransformerMemory, state: TransformerState, tokens: Int[Array, "B"]) -> StepOutput:
        """Logits of the next token; the weights are the last layer's cross-attention, averaged over heads."""
        room = state.caches[0].key.shape[1]
        x = self.target_positions.embed(self.target_embedding(tokens[:, None]), room, state.position)
        relations = self.target_positions.relations(1, room, state.position)
        caches = []
        for layer, layer_memory, relation, cache in zip(self.decoder, memory.layers, relations, state.caches, strict=True):
            x, cache, weights = layer.step(x, layer_memory, memory.lengths, relation, cache)
            caches.append(cache)
        if self.config.norm == "pre":
            x = self.decoder_norm(x)
        average = jnp.mean(weights[:, :, 0].astype(jnp.float32), axis=1)
        return StepOutput(self.logits(x[:, 0]), TransformerState(tuple(caches), state.position + 1), average)
