"""The Transformer of Vaswani et al. (2017), "Attention is all you need", as an encoder-decoder.

    sublayer     pre-norm   x + dropout(f(norm(x)))      (as most later systems; a last norm closes each stack)
                 post-norm  norm(x + dropout(f(x)))      (section 5.4 of the paper)
    encoder      self-attention, feed-forward
    decoder      masked self-attention, cross-attention to the encoder, feed-forward
    in, out      E y sqrt(D) (section 3.4);  logits = x E^T with the same E when embeddings are tied
    positions    added to the embeddings (section 3.5), or within the self-attentions: see `seq2seq.positions`

Decoding keeps a `cached_attention.Cache` for each layer's self-attention and projects the encoder's output once.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int, Key

from seq2seq.cached_attention import (
    Ancestry,
    Cache,
    SourceMemory,
    advance,
    for_steps,
    grow_ancestry,
    grow_cache,
    init_ancestry,
    init_cache,
    reorder,
)
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
    word_dropout,
)
from seq2seq.positions import Positions, build_positions


class TransformerMemory(NamedTuple):
    """What a decoding step reads of the source: keys and values of each layer, laid out for one query, and true lengths."""

    layers: tuple[SourceMemory, ...]
    lengths: Int[Array, "B"]


class TransformerState(NamedTuple):
    """What the decoder remembers of the target: a cache for each layer, and whose positions stand where in them."""

    caches: tuple[Cache, ...]
    ancestry: Ancestry


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
        self.feed_forward = FeedForward(c.model_dim, c.ffn_dim, dropout_rate=c.activation_dropout_rate, rngs=rngs)
        self.attention_sublayer, self.feed_forward_sublayer = Sublayer(c), Sublayer(c)

    def __call__(self, x: Float[Array, "B S D"], lengths: Int[Array, "B"], relation: Relation, dropout_key=None):
        keys = split_key(dropout_key, 4)
        entered = self.attention_sublayer.enter(x)
        attended = self.attention(entered, relation, key_lengths=lengths, dropout_key=keys[0])
        x = self.attention_sublayer.leave(x, attended, keys[1])
        return self.feed_forward_sublayer.leave(x, self.feed_forward(self.feed_forward_sublayer.enter(x), keys[2]), keys[3])


class DecoderLayer(nnx.Module):
    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        c = config
        attention = partial(MultiHeadAttention, c.model_dim, c.num_heads, dropout_rate=c.attention_dropout_rate, rngs=rngs)
        self.self_attention, self.cross_attention = attention(), attention()
        self.feed_forward = FeedForward(c.model_dim, c.ffn_dim, dropout_rate=c.activation_dropout_rate, rngs=rngs)
        self.self_sublayer, self.cross_sublayer, self.feed_forward_sublayer = Sublayer(c), Sublayer(c), Sublayer(c)

    def __call__(self, x: Float[Array, "B T D"], memory: Memory, lengths: Int[Array, "B"], relation: Relation, dropout_key=None):
        """All target positions at once, each blind to those after it."""
        keys = split_key(dropout_key, 6)
        x = self._attend_to_target(x, relation, keys)
        entered = self.cross_sublayer.enter(x)
        attended = self.cross_attention.attend(entered, memory, key_lengths=lengths, dropout_key=keys[2])
        return self._feed_forward(self.cross_sublayer.leave(x, attended, keys[3]), keys[4:])

    def weights(self, x: Float[Array, "B T D"], memory: Memory, lengths: Int[Array, "B"], relation: Relation):
        """The weights of the cross-attention of the same call: [B, N, T, S]."""
        entered = self.cross_sublayer.enter(self._attend_to_target(x, relation, [None, None]))
        return self.cross_attention.weights_of(entered, memory, key_lengths=lengths)

    def step(
        self,
        x: Float[Array, "R 1 D"],
        memory: SourceMemory,
        lengths: Int[Array, "B"],
        relation: Relation,
        cache: Cache,
        ancestry: Ancestry,
    ) -> tuple[Float[Array, "R 1 D"], Cache, Float[Array, "R N S"]]:
        """One target position: output, new cache, cross-attention weights."""
        attended, cache = self.self_attention.step(self.self_sublayer.enter(x), relation, cache, ancestry)
        x = self.self_sublayer.leave(x, attended)
        attended, weights = self.cross_attention.step_to_source(self.cross_sublayer.enter(x), memory, lengths)
        return self._feed_forward(self.cross_sublayer.leave(x, attended), [None, None]), cache, weights

    def _attend_to_target(self, x: Float[Array, "B T D"], relation: Relation, keys: list[Key[Array, ""] | None]):
        attended = self.self_attention(self.self_sublayer.enter(x), relation, is_causal=True, dropout_key=keys[0])
        return self.self_sublayer.leave(x, attended, keys[1])

    def _feed_forward(self, x: Float[Array, "B T D"], keys: list[Key[Array, ""] | None]) -> Float[Array, "B T D"]:
        sublayer = self.feed_forward_sublayer
        return sublayer.leave(x, self.feed_forward(sublayer.enter(x), keys[0]), keys[1])


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
        self.encoder = nnx.List([EncoderLayer(config, rngs=rngs) for _ in range(config.layers_of["source"])])
        self.decoder = nnx.List([DecoderLayer(config, rngs=rngs) for _ in range(config.layers_of["target"])])
        if config.norm == "pre":
            self.encoder_norm, self.decoder_norm = LayerNorm(config.model_dim), LayerNorm(config.model_dim)
        if not config.tied_embeddings:
            self.output = Output(config.model_dim, target_vocab, rngs=rngs)

    def encode(self, source: Int[Array, "B S"]) -> TransformerMemory:
        states, lengths = self.encoder_states(source)
        projected = (layer.cross_attention.project_memory(states) for layer in self.decoder)
        return TransformerMemory(tuple(for_steps(*memory) for memory in projected), lengths)

    def encoder_states(
        self, source: Int[Array, "B S"], dropout_key: Key[Array, ""] | None = None
    ) -> tuple[Float[Array, "B S D"], Int[Array, "B"]]:
        """The encoder's output and the true lengths of the sources."""
        keys = split_key(dropout_key, 1 + len(self.encoder))
        lengths, S = lengths_of(source), source.shape[1]
        embedding = self.target_embedding if self.shared_source else self.source_embedding
        x = self._embed(self.source_positions, embedding(source), S, keys[0])
        for layer, relation, key in zip(self.encoder, self.source_positions.relations(S, S), keys[1:], strict=True):
            x = layer(x, lengths, relation, key)
        return self.encoder_norm(x) if self.config.norm == "pre" else x, lengths

    def features(self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, dropout_key: Key[Array, ""] | None = None):
        """Output of the last decoder layer at every target position, teacher-forced: [B, T, D]."""
        encode_key, embed_key, *keys = split_key(dropout_key, 2 + len(self.decoder))
        (states, lengths), T = self.encoder_states(source, encode_key), target_in.shape[1]
        x = self._embed(self.target_positions, self.target_embedding(target_in), T, embed_key)
        relations = self.target_positions.relations(T, T)
        for layer, relation, key in zip(self.decoder, relations, keys, strict=True):
            x = layer(x, layer.cross_attention.project_memory(states), lengths, relation, key)
        return self.decoder_norm(x) if self.config.norm == "pre" else x

    def attention_weights(self, source: Int[Array, "B S"], target_in: Int[Array, "B T"]) -> Float[Array, "B L N T S"]:
        """The weights of every cross-attention, teacher-forced."""
        (states, lengths), T = self.encoder_states(source), target_in.shape[1]
        x, weights = self._embed(self.target_positions, self.target_embedding(target_in), T, None), []
        for layer, relation in zip(self.decoder, self.target_positions.relations(T, T), strict=True):
            memory = layer.cross_attention.project_memory(states)
            weights.append(layer.weights(x, memory, lengths, relation))
            x = layer(x, memory, lengths, relation)
        return jnp.stack(weights, axis=1)

    def _embed(self, positions: Positions, words: Float[Array, "B T D"], T: int, dropout_key: Key[Array, ""] | None):
        """Words, some left out, with their positions."""
        word_key, entry_key = split_key(dropout_key, 2)
        x = positions.embed(word_dropout(words, self.config.word_dropout_rate, word_key), T)
        return dropout(x, self.config.embedding_dropout_rate, entry_key)

    @property
    def output_layer(self) -> Embedding | Output:
        """What makes the logits."""
        return self.target_embedding if self.config.tied_embeddings else self.output

    def logits(self, features: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        return self.output_layer.attend(features)

    def __call__(self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, dropout_key: Key[Array, ""] | None = None):
        """Logits of every target position, teacher-forced: [B, T, V]."""
        return self.logits(self.features(source, target_in, dropout_key=dropout_key))

    def init_state(self, memory: TransformerMemory, max_length: int) -> TransformerState:
        """Empty caches with room for `max_length` target tokens."""
        return self.start_beams(memory, max_length, 1)[1]

    def start_beams(
        self, memory: TransformerMemory, max_length: int, beam_size: int
    ) -> tuple[TransformerMemory, TransformerState]:
        """The same for `beam_size` hypotheses of each source, which share its memory."""
        shape, heads = (memory.lengths.shape[0], beam_size, max_length), self.config.num_heads
        caches = tuple(init_cache(*shape, heads, self.config.model_dim // heads, self.dtype) for _ in self.decoder)
        return memory, TransformerState(caches, init_ancestry(*shape))

    def grow(self, state: TransformerState, max_length: int) -> TransformerState:
        """The same hypotheses with room for `max_length` target tokens."""
        caches = tuple(grow_cache(cache, max_length) for cache in state.caches)
        return TransformerState(caches, grow_ancestry(state.ancestry, max_length))

    def reorder(self, state: TransformerState, parents: Int[Array, "B K"]) -> TransformerState:
        """Hypothesis k of each source goes on from its hypothesis parents[k]."""
        return state._replace(ancestry=reorder(state.ancestry, parents))

    def step(self, memory: TransformerMemory, state: TransformerState, tokens: Int[Array, "R"]) -> StepOutput:
        """Logits of the next token of R = B K hypotheses; the weights are the mean over heads of the last cross-attention."""
        _, K, room = state.ancestry.origin.shape
        position, ancestry = jnp.repeat(state.ancestry.length, K), advance(state.ancestry)
        x = self.target_positions.embed(self.target_embedding(tokens[:, None]), room, position)
        relations = self.target_positions.relations(1, room, position)
        caches = []
        for layer, layer_memory, relation, cache in zip(self.decoder, memory.layers, relations, state.caches, strict=True):
            x, cache, weights = layer.step(x, layer_memory, memory.lengths, relation, cache, ancestry)
            caches.append(cache)
        if self.config.norm == "pre":
            x = self.decoder_norm(x)
        average = jnp.mean(weights.astype(jnp.float32), axis=1)
        return StepOutput(self.logits(x[:, 0]), TransformerState(tuple(caches), ancestry), average)
