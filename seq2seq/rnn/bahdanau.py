"""The decoder of Bahdanau, Cho and Bengio (2015), "Neural machine translation by jointly learning to align and translate",
Appendix A, its fixed-vector baseline, and its hard form.

    alignment    e_ij = v_a . tanh(W_a s_{i-1} + U_a h_j),  alpha_i = softmax(e_i),  c_i = sum_j alpha_ij h_j
    decoder      s_i = GRU(s_{i-1}, [E y_{i-1} ; c_i])
    readout      t_i = maxout(U_o s_i + V_o E y_{i-1} + C_o c_i),  p(y_i) = softmax(W_o t_i)

The paper's readout takes s_{i-1}; ours takes s_i, which has already read c_i, as most later systems do.

``attention = "none"``: the context c_i is the same vector at every step, [forward state at the last word ; backward state at
the first], as in the RNN encoder-decoder (Cho et al. 2014); all other weights have the same shapes.

``attention = "hard"``: c_i is one encoder state, h_j with j drawn from alpha_i (Xu et al. 2015, section 4.1).  Training draws
it with Gumbel noise and passes the gradient straight through, as if it were the softmax at ``hard_temperature`` (Jang et al.
2017); evaluation takes the likeliest.

Paper to code: s_i state, h_j encoder_states, e_ij scores, alpha_ij weights, c_i context, W_a U_a v_a `AdditiveAttention`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

import attn
from seq2seq.config import RNNConfig
from seq2seq.layers import GRU, AdditiveAttention, Linear, StepOutput, dropout, split_key
from seq2seq.rnn.encoder import RNN, RNNMemory


class BahdanauRNN(RNN):
    """GRU decoder with additive attention or one fixed vector."""

    def build_decoder(self, config: RNNConfig, rngs: nnx.Rngs) -> None:
        context_dim = 2 * config.encoder_dim
        if config.attention != "none":
            self.attention = AdditiveAttention(config.hidden_dim, context_dim, config.align_dim, rngs=rngs)
        self.decoder_gru = GRU(config.embed_dim, config.hidden_dim, rngs=rngs)
        self.context_input = Linear(context_dim, 3 * config.hidden_dim, rngs=rngs)
        self.readout = Linear(config.hidden_dim + config.embed_dim + context_dim, 2 * config.maxout_dim, rngs=rngs)

    def project_keys(self, states: Float[Array, "B S E"]) -> Float[Array, "B S A"] | None:
        return None if self.config.attention == "none" else self.attention.project_keys(states)

    def context(self, memory: RNNMemory, state: Float[Array, "B H"], draw_key: Key[Array, ""] | None) -> Float[Array, "B E"]:
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

    def weights(self, memory: RNNMemory, state: Float[Array, "B H"]) -> Float[Array, "B S"] | None:
        """alpha_i from s_{i-1}, in the order of reading."""
        if memory.fixed_context is not None:
            return None
        return attn.additive_weights(
            state[:, None],
            memory.encoder_states,
            self.attention.params(state.dtype),
            mask=memory.mask[:, None],
            projected_keys=memory.projected_keys,
        )[:, 0].astype(jnp.float32)

    def draw_keys(self, dropout_key: Key[Array, ""] | None, length: int) -> Key[Array, "T"] | None:
        """A key for each target position, where the context is drawn."""
        return None

    def advance(self, memory: RNNMemory, state: Float[Array, "B H"], projected: Float[Array, "B G"], draw_key=None):
        """s_i and c_i from s_{i-1} and the projected word y_{i-1}."""
        context = self.context(memory, state, draw_key)
        return self.decoder_gru(state, projected + self.context_input(context)), context

    def features(self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, dropout_key: Key[Array, ""] | None = None):
        """t_i for all i, teacher-forced: [B, T, maxout_dim]."""
        encode_key, word_key, read_key = split_key(dropout_key, 3)
        memory = self.encode(source, encode_key)
        words = self.embed(self.target_embedding, target_in, word_key)
        projected = self.decoder_gru.project(words).swapaxes(0, 1)
        # The scores of one step are as large as all encoder states: the backward pass makes them again.
        advance = jax.checkpoint(lambda state, x: self.advance(memory, state, *x))

        def body(state, x):
            state, context = advance(state, x)
            return state, (state, context)

        steps = (projected, self.draw_keys(dropout_key, target_in.shape[1]))
        _, (states, contexts) = jax.lax.scan(body, memory.start, steps)
        read = self.read(states.swapaxes(0, 1), words, contexts.swapaxes(0, 1))
        return dropout(read, self.config.dropout_rate, read_key)

    def read(self, state: Float[Array, "*B H"], word: Float[Array, "*B D"], context: Float[Array, "*B E"]):
        """t_i: maxout over pairs (Goodfellow et al. 2013)."""
        pairs = self.readout(jnp.concatenate([state, word, context], axis=-1))
        return jnp.maximum(*jnp.split(pairs, 2, axis=-1))

    def init_state(self, memory: RNNMemory, max_length: int) -> Float[Array, "B H"]:
        """s_0; a recurrent state needs no room for `max_length` steps."""
        return memory.start

    def step(self, memory: RNNMemory, state: Float[Array, "B H"], tokens: Int[Array, "B"]) -> StepOutput:
        word, weights = self.target_embedding(tokens), self.weights(memory, state)
        state, context = self.advance(memory, state, self.decoder_gru.project(word))
        weights = None if weights is None else memory.in_source_order(weights)
        return StepOutput(self.logits(self.read(state, word, context)), state, weights)


class HardRNN(BahdanauRNN):
    """GRU decoder whose context is one encoder state, chosen by the additive scores."""

    def context(self, memory: RNNMemory, state: Float[Array, "B H"], draw_key: Key[Array, ""] | None) -> Float[Array, "B E"]:
        """h_j with j drawn from alpha_i, or without a key the likeliest j; 0 where there is no word at all."""
        return attn.straight_through_attention(
            self.scores(memory, state),
            memory.encoder_states,
            key=draw_key,
            temperature=self.config.hard_temperature,
            mask=memory.mask[:, None],
        )[:, 0]

    def weights(self, memory: RNNMemory, state: Float[Array, "B H"]) -> Float[Array, "B S"]:
        """1 at the likeliest word, in the order of reading."""
        scores = self.scores(memory, state)
        return attn.straight_through_weights(scores, key=None, mask=memory.mask[:, None])[:, 0].astype(jnp.float32)

    def scores(self, memory: RNNMemory, state: Float[Array, "B H"]) -> Float[Array, "B 1 S"]:
        """e_i from s_{i-1}."""
        params = self.attention.params(state.dtype)
        return attn.additive_scores(state[:, None], memory.encoder_states, params, projected_keys=memory.projected_keys)

    def draw_keys(self, dropout_key: Key[Array, ""] | None, length: int) -> Key[Array, "T"] | None:
        # `features` has the first three keys.
        return None if dropout_key is None else jax.random.split(split_key(dropout_key, 4)[3], length)
