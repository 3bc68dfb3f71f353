"""The recurrent encoder-decoder of Bahdanau, Cho and Bengio (2015), "Neural machine translation by jointly learning to
align and translate", Appendix A, and its fixed-vector baseline.

    encoder      h_j = [forward GRU at j ; backward GRU at j]                       (A.2.1)
    start        s_0 = tanh(W_s h_1 backward)
    alignment    e_ij = v_a . tanh(W_a s_{i-1} + U_a h_j),  alpha_i = softmax(e_i),  c_i = sum_j alpha_ij h_j
    decoder      s_i = GRU(s_{i-1}, [E y_{i-1} ; c_i])
    readout      t_i = maxout(U_o s_i + V_o E y_{i-1} + C_o c_i),  p(y_i) = softmax(W_o t_i)

The paper's readout takes s_{i-1}; ours takes s_i, which has already read c_i, as most later systems do.  With
``attention = "none"`` the context c_i is the same vector at every step, [forward state at the last word ; backward state at
the first], as in the RNN encoder-decoder (Cho et al. 2014); all other weights have the same shapes.

Paper to code: s_i state, h_j encoder_states, e_ij scores, alpha_ij weights, c_i context, W_a U_a v_a `AdditiveAttention`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, DTypeLike, Float, Int, Key

import attn
from seq2seq.config import RNNConfig
from seq2seq.layers import GRU, AdditiveAttention, Embedding, Linear, Output, StepOutput, dropout, mask_of, split_key


class RNNMemory(NamedTuple):
    """What the decoder reads of the source."""

    encoder_states: Float[Array, "B S E"]
    projected_keys: Float[Array, "B S A"] | None
    mask: Bool[Array, "B S"]
    fixed_context: Float[Array, "B E"] | None
    start: Float[Array, "B H"]


class RNN(nnx.Module):
    """Bidirectional GRU encoder, GRU decoder, additive attention or one fixed vector."""

    def __init__(
        self,
        config: RNNConfig,
        source_vocab: int,
        target_vocab: int,
        *,
        shared_vocab: bool,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
    ):
        self.config, self.dtype = config, dtype
        context_dim = 2 * config.encoder_dim
        embedding = partial(Embedding, dim=config.embed_dim, rngs=rngs, dtype=dtype)
        self.shared_source = shared_vocab and config.tied_embeddings
        self.target_embedding = embedding(target_vocab)
        if not self.shared_source:
            self.source_embedding = embedding(source_vocab)
        self.forward_gru = GRU(config.embed_dim, config.encoder_dim, rngs=rngs)
        self.backward_gru = GRU(config.embed_dim, config.encoder_dim, rngs=rngs)
        self.start = Linear(config.encoder_dim, config.hidden_dim, rngs=rngs)
        if config.attention == "additive":
            self.attention = AdditiveAttention(config.hidden_dim, context_dim, config.align_dim, rngs=rngs)
        self.decoder_gru = GRU(config.embed_dim, config.hidden_dim, rngs=rngs)
        self.context_input = Linear(context_dim, 3 * config.hidden_dim, rngs=rngs)
        self.readout = Linear(config.hidden_dim + config.embed_dim + context_dim, 2 * config.maxout_dim, rngs=rngs)
        if not config.tied_embeddings:
            self.output = Output(config.maxout_dim, target_vocab, rngs=rngs)

    def encode(self, source: Int[Array, "B S"], dropout_key: Key[Array, ""] | None = None) -> RNNMemory:
        keys = split_key(dropout_key, 2)
        rate, mask = self.config.dropout_rate, mask_of(source)
        embedding = self.target_embedding if self.shared_source else self.source_embedding
        embedded = dropout(embedding(source), rate, keys[0])
        forward, forward_last = _run(self.forward_gru, embedded, mask, reverse=False)
        backward, backward_first = _run(self.backward_gru, embedded, mask, reverse=True)
        states = dropout(jnp.concatenate([forward, backward], axis=-1), rate, keys[1])
        start = jnp.tanh(self.start(backward_first))
        if self.config.attention == "none":
            fixed = dropout(jnp.concatenate([forward_last, backward_first], axis=-1), rate, keys[1])
            return RNNMemory(states, None, mask, fixed, start)
        return RNNMemory(states, self.attention.project_keys(states), mask, None, start)

    def context(self, memory: RNNMemory, state: Float[Array, "B H"]) -> Float[Array, "B E"]:
        """c_i from s_{i-1}."""
        if memory.fixed_context is not None:
            return memory.fixed_context
        return attn.additive_attention(
            state[:, None],
            memory.encoder_states,
            memory.encoder_states,
            self.attention.params(state.dtype),
            mask=memory.mask[:, None],
            projected_keys=memory.projected_keys,
        )[:, 0]

    def advance(self, memory: RNNMemory, state: Float[Array, "B H"], projected: Float[Array, "B G"]):
        """s_i and c_i from s_{i-1} and the projected word y_{i-1}."""
        context = self.context(memory, state)
        return self.decoder_gru(state, projected + self.context_input(context)), context

    def features(self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, dropout_key: Key[Array, ""] | None = None):
        """t_i for all i, teacher-forced: [B, T, maxout_dim]."""
        encode_key, word_key, read_key = split_key(dropout_key, 3)
        memory = self.encode(source, encode_key)
        words = dropout(self.target_embedding(target_in), self.config.dropout_rate, word_key)
        projected = self.decoder_gru.project(words).swapaxes(0, 1)
        # The scores of one step are as large as all encoder states: the backward pass makes them again.
        advance = jax.checkpoint(lambda state, x: self.advance(memory, state, x))

        def body(state, x):
            state, context = advance(state, x)
            return state, (state, context)

        _, (states, contexts) = jax.lax.scan(body, memory.start, projected)
        read = self.read(states.swapaxes(0, 1), words, contexts.swapaxes(0, 1))
        return dropout(read, self.config.dropout_rate, read_key)

    def read(self, state: Float[Array, "*B H"], word: Float[Array, "*B D"], context: Float[Array, "*B E"]):
        """t_i: maxout over pairs (Goodfellow et al. 2013)."""
        pairs = self.readout(jnp.concatenate([state, word, context], axis=-1))
        return jnp.maximum(*jnp.split(pairs, 2, axis=-1))

    def logits(self, features: Float[Array, "*B M"]) -> Float[Array, "*B V"]:
        return (self.target_embedding if self.config.tied_embeddings else self.output).attend(features)

    def __call__(self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, dropout_key: Key[Array, ""] | None = None):
        """Logits of every target position, teacher-forced: [B, T, V]."""
        return self.logits(self.features(source, target_in, dropout_key=dropout_key))

    def init_state(self, memory: RNNMemory, max_length: int) -> Float[Array, "B H"]:
        """s_0; a recurrent state needs no room for `max_length` steps."""
        return memory.start

    def step(self, memory: RNNMemory, state: Float[Array, "B H"], tokens: Int[Array, "B"]) -> StepOutput:
        word = self.target_embedding(tokens)
        weights = None
        if memory.fixed_context is None:
            weights = attn.additive_weights(
                state[:, None],
                memory.encoder_states,
                self.attention.params(state.dtype),
                mask=memory.mask[:, None],
                projected_keys=memory.projected_keys,
            )[:, 0].astype(jnp.float32)
        state, context = self.advance(memory, state, self.decoder_gru.project(word))
        return StepOutput(self.logits(self.read(state, word, context)), state, weights)


def _run(gru: GRU, embedded: Float[Array, "B S D"], mask: Bool[Array, "B S"], *, reverse: bool):
    """States at every position and the last one; on padding the state stays as it is."""
    start = jnp.zeros((embedded.shape[0], gru.candidate[...].shape[0]), embedded.dtype)

    def body(state, step):
        projected, real = step
        state = jnp.where(real[:, None], gru(state, projected), state)
        return state, state

    last, states = jax.lax.scan(body, start, (gru.project(embedded).swapaxes(0, 1), mask.T), reverse=reverse)
    return states.swapaxes(0, 1), last
