"""The decoder of Luong, Pham and Manning (2015), "Effective approaches to attention-based neural machine translation".

    decoder      s_t = GRU(s_{t-1}, [E y_{t-1} ; h~_{t-1}]),  h~_0 = 0              input feeding, section 3.3
    global       a_t(j) = softmax_j score(s_t, h_j),  c_t = sum_j a_t(j) h_j        section 3.1
    local        the same within the window [p_t - D, p_t + D]                      section 3.2
                 monotonic   p_t = t
                 predictive  p_t = S sigmoid(v_p . tanh(W_p s_t)),  times a Gaussian about p_t
    score        dot  s.h      general  s.W_a h      concat  v_a . tanh(W_a [s ; h])
                 W_a of general is trained as sqrt(n) W_a, n units of s
    readout      h~_t = tanh(W_c [c_t ; s_t]),  p(y_t) = softmax(W_o h~_t)          equations 5 and 6

The attention starts from the state of this step, where Bahdanau's starts from the one before.  Without ``input_feeding`` the
decoder reads y_{t-1} alone.  The encoder and the start state are those of the other models (the paper has stacked LSTMs), and
target positions are counted from 0, as source positions are.  Biases are left out of the formulas.

The scale of W_a is ours.  It changes no model, only the way to it: a step of Adam moves every entry of a matrix by the learning
rate, and s.W_a h, a sum of as many terms as W_a has entries, by so much that the softmax soon sees one word alone and learns no
more, while v_a . tanh(...) hardly moves.  With sqrt(n) it moves as the scaled products of Vaswani et al. (2017) do.

Paper to code: s_t (its h_t) hidden, h_j (its h-bar_s) encoder_states, h~_t attentional, a_t weights, c_t context, D window.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int, Key

import attn
from seq2seq.config import RNNConfig
from seq2seq.layers import GRU, Linear, StepOutput, cast_params, dropout, split_key
from seq2seq.rnn.encoder import RNN, RNNMemory

# The context and the weights of each kind of attention.
FUNCTIONS = {
    "dot": (attn.dot_attention, attn.dot_weights),
    "general": (attn.general_attention, attn.general_weights),
    "concat": (attn.concat_attention, attn.concat_weights),
    "local_monotonic": (attn.local_monotonic_attention, attn.local_monotonic_weights),
    "local_predictive": (attn.local_predictive_attention, attn.local_predictive_weights),
}


class LuongState(NamedTuple):
    """What the decoder remembers of the target: s_t, h~_t and the position of the next word."""

    hidden: Float[Array, "B H"]
    attentional: Float[Array, "B M"]
    position: Int[Array, "B"]


class LuongAttention(nnx.Module):
    """The weights W_a, v_a, W_p, v_p of Luong et al. (2015), as far as the attention has them; the mathematics is in `attn`."""

    def __init__(self, config: RNNConfig, *, rngs: nnx.Rngs):
        query_dim, key_dim = config.hidden_dim, 2 * config.encoder_dim
        self.kind, self.window = config.attention, config.local_window
        self.score = config.local_score if config.attention.startswith("local") else config.attention
        if self.score == "general":
            self.scale = query_dim**-0.5
            self.scaled_kernel = nnx.Param(attn.init_general(rngs.params(), query_dim, key_dim).kernel / self.scale)
        elif self.score == "concat":
            self.score_weights = _params(attn.init_concat(rngs.params(), query_dim, key_dim, config.align_dim))
        if self.kind == "local_predictive":
            self.position_weights = _params(attn.init_local(rngs.params(), query_dim, config.align_dim))

    def project_keys(self, states: Float[Array, "B S E"]) -> Float[Array, "B S A"] | None:
        """The part of W_a [s ; h] that no step changes, for global attention."""
        if self.kind != "concat":
            return None
        return attn.project_keys(states, cast_params(self.score_weights, states.dtype).additive)

    def context(self, memory: RNNMemory, hidden: Float[Array, "B H"], position: Int[Array, "B"]) -> Float[Array, "B E"]:
        """c_t from s_t, t being `position`."""
        attention, _ = FUNCTIONS[self.kind]
        params, options = self._arguments(memory, position)
        return attention(hidden[:, None], memory.encoder_states, memory.encoder_states, *params, **options)[:, 0]

    def weights(self, memory: RNNMemory, hidden: Float[Array, "B H"], position: Int[Array, "B"]) -> Float[Array, "B S"]:
        """a_t from s_t, in the order of reading."""
        _, weights = FUNCTIONS[self.kind]
        params, options = self._arguments(memory, position)
        return weights(hidden[:, None], memory.encoder_states, *params, **options)[:, 0].astype(jnp.float32)

    def _score_params(self, dtype: DTypeLike) -> attn.GeneralParams | attn.ConcatParams | None:
        """W_a and v_a, as far as the score has them."""
        if self.score == "dot":
            return None
        if self.score == "general":
            return attn.GeneralParams((self.scaled_kernel[...] * self.scale).astype(dtype))
        return cast_params(self.score_weights, dtype)

    def _arguments(self, memory: RNNMemory, position: Int[Array, "B"]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Parameters and options of the functions in `FUNCTIONS`."""
        dtype = memory.encoder_states.dtype
        score = self._score_params(dtype)
        local = {"window": self.window, "key_lengths": memory.lengths}
        mask = {"mask": memory.mask[:, None]}
        if self.kind == "local_monotonic":
            return (score,), {"query_offset": position, **local}
        if self.kind == "local_predictive":
            return (cast_params(self.position_weights, dtype), score), local
        if self.kind == "concat":
            return (score,), {"projected_keys": memory.projected_keys, **mask}
        return () if score is None else (score,), mask


class LuongRNN(RNN):
    """GRU decoder with global or local multiplicative attention and input feeding."""

    def build_decoder(self, config: RNNConfig, rngs: nnx.Rngs) -> None:
        self.attention = LuongAttention(config, rngs=rngs)
        self.decoder_gru = GRU(config.embed_dim, config.hidden_dim, rngs=rngs)
        if config.input_feeding:
            self.feed_input = Linear(config.maxout_dim, 3 * config.hidden_dim, rngs=rngs)
        self.readout = Linear(2 * config.encoder_dim + config.hidden_dim, config.maxout_dim, rngs=rngs)

    def project_keys(self, states: Float[Array, "B S E"]) -> Float[Array, "B S A"] | None:
        return self.attention.project_keys(states)

    def advance(self, memory: RNNMemory, state: LuongState, projected: Float[Array, "B G"]) -> LuongState:
        """s_t and h~_t from s_{t-1}, h~_{t-1} and the projected word y_{t-1}."""
        if self.config.input_feeding:
            projected = projected + self.feed_input(state.attentional)
        hidden = self.decoder_gru(state.hidden, projected)
        context = self.attention.context(memory, hidden, state.position)
        attentional = jnp.tanh(self.readout(jnp.concatenate([context, hidden], axis=-1)))
        return LuongState(hidden, attentional, state.position + 1)

    def features(self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, dropout_key: Key[Array, ""] | None = None):
        """h~_t for all t, teacher-forced: [B, T, maxout_dim]."""
        encode_key, word_key, read_key = split_key(dropout_key, 3)
        memory = self.encode(source, encode_key)
        words = self.embed(self.target_embedding, target_in, word_key)
        # The scores of one step are as large as all encoder states: the backward pass makes them again.
        advance = jax.checkpoint(lambda state, projected: self.advance(memory, state, projected))

        def body(state, projected):
            state = advance(state, projected)
            return state, state.attentional

        projected = self.decoder_gru.project(words).swapaxes(0, 1)
        _, attentional = jax.lax.scan(body, self.init_state(memory, target_in.shape[1]), projected)
        return dropout(attentional.swapaxes(0, 1), self.config.dropout_rate, read_key)

    def init_state(self, memory: RNNMemory, max_length: int) -> LuongState:
        """s_0, h~_0 = 0 and position 0; a recurrent state needs no room for `max_length` steps."""
        batch = memory.start.shape[0]
        nothing = jnp.zeros((batch, self.config.maxout_dim), memory.start.dtype)
        return LuongState(memory.start, nothing, jnp.zeros(batch, jnp.int32))

    def step(self, memory: RNNMemory, state: LuongState, tokens: Int[Array, "B"]) -> StepOutput:
        position, projected = state.position, self.decoder_gru.project(self.target_embedding(tokens))
        state = self.advance(memory, state, projected)
        weights = self.attention.weights(memory, state.hidden, position)
        return StepOutput(self.logits(state.attentional), state, memory.in_source_order(weights))


def _params(values: Any) -> Any:
    """A tuple of arrays as trained parameters."""
    return nnx.data(jax.tree.map(nnx.Param, values))
