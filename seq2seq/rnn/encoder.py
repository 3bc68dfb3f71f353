"""What all recurrent encoder-decoders share: embeddings, the bidirectional encoder of Bahdanau, Cho and Bengio (2015),
Appendix A, and the output.

    encoder      h_j = [forward GRU at j ; backward GRU at j]                       (A.2.1)
    start        s_0 = tanh(W_s h_1 backward)
    output       p(y_i) = softmax(W_o r_i), r_i the readout of the decoder

With ``reverse_source`` the words of each source are read from the last to the first, ``</s>`` last as ever (Sutskever et al.
2014, section 3.3; Luong et al. 2015, section 4.1).  The encoder states then stand in the order of reading; the weights that a
decoding step returns stand in the order of the source.

Paper to code: h_j encoder_states, s_0 start.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, DTypeLike, Float, Int, Key

from seq2seq.config import RNNConfig
from seq2seq.layers import GRU, Embedding, Linear, Output, dropout, lengths_of, mask_of, split_key, word_dropout


class RNNMemory(NamedTuple):
    """What the decoder reads of the source; S runs in the order of reading."""

    encoder_states: Float[Array, "B S E"]
    mask: Bool[Array, "B S"]
    start: Float[Array, "B H"]
    projected_keys: Float[Array, "B S A"] | None
    """U h_j, where the scores are additive."""
    fixed_context: Float[Array, "B E"] | None
    """The one context of a model without attention."""
    order: Int[Array, "B S"] | None
    """`reversed_order` of a source that is read backwards."""

    @property
    def lengths(self) -> Int[Array, "B"]:
        """Number of words of each source, `</s>` included."""
        return jnp.sum(self.mask, axis=1, dtype=jnp.int32)

    def in_source_order(self, weights: Float[Array, "B S"]) -> Float[Array, "B S"]:
        """Weights over the encoder states as weights over the words of the source as given."""
        return weights if self.order is None else jnp.take_along_axis(weights, self.order, axis=1)


class EncoderLayer(nnx.Module):
    """A GRU in each direction."""

    def __init__(self, input_dim: int, encoder_dim: int, *, rngs: nnx.Rngs):
        self.forward, self.backward = (GRU(input_dim, encoder_dim, rngs=rngs) for _ in range(2))


class RNN(nnx.Module):
    """Embeddings, encoder and output; a subclass adds the decoder (`build_decoder`, `features`, `init_state`, `step`)."""

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
        embedding = partial(Embedding, dim=config.embed_dim, rngs=rngs, dtype=dtype)
        self.shared_source = shared_vocab and config.tied_embeddings
        self.target_embedding = embedding(target_vocab)
        if not self.shared_source:
            self.source_embedding = embedding(source_vocab)
        below = [config.embed_dim] + [2 * config.encoder_dim] * (config.encoder_layers - 1)
        self.encoder = nnx.List([EncoderLayer(width, config.encoder_dim, rngs=rngs) for width in below])
        self.start = Linear(config.encoder_dim, config.hidden_dim, rngs=rngs)
        self.build_decoder(config, rngs)
        if not config.tied_embeddings:
            self.output = Output(config.maxout_dim, target_vocab, rngs=rngs)

    def embed(self, embedding: Embedding, words: Int[Array, "B T"], dropout_key: Key[Array, ""] | None) -> Float[Array, "B T D"]:
        """The embeddings of words, some of them and some of their entries left out."""
        word_key, entry_key = split_key(dropout_key, 2)
        embedded = word_dropout(embedding(words), self.config.word_dropout_rate, word_key)
        return dropout(embedded, self.config.embedding_dropout_rate, entry_key)

    def build_decoder(self, config: RNNConfig, rngs: nnx.Rngs) -> None:
        """The weights of the decoder."""
        raise NotImplementedError

    def project_keys(self, states: Float[Array, "B S E"]) -> Float[Array, "B S A"] | None:
        """What the scores need of the encoder states and need only once."""
        return None

    def encode(self, source: Int[Array, "B S"], dropout_key: Key[Array, ""] | None = None) -> RNNMemory:
        keys = split_key(dropout_key, 1 + len(self.encoder))
        rate, mask = self.config.dropout_rate, mask_of(source)
        order = reversed_order(source) if self.config.reverse_source else None
        words = source if order is None else jnp.take_along_axis(source, order, axis=1)
        embedding = self.target_embedding if self.shared_source else self.source_embedding
        states = self.embed(embedding, words, keys[0])
        for layer, key in zip(self.encoder, keys[1:], strict=True):
            forward, forward_last = run_gru(layer.forward, states, mask, reverse=False)
            backward, backward_first = run_gru(layer.backward, states, mask, reverse=True)
            states = dropout(jnp.concatenate([forward, backward], axis=-1), rate, key)
        fixed = None
        if self.config.attention == "none":
            fixed = dropout(jnp.concatenate([forward_last, backward_first], axis=-1), rate, keys[-1])
        return RNNMemory(states, mask, jnp.tanh(self.start(backward_first)), self.project_keys(states), fixed, order)

    def features(self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, dropout_key: Key[Array, ""] | None = None):
        """r_i for all i, teacher-forced: [B, T, maxout_dim]."""
        raise NotImplementedError

    @property
    def output_layer(self) -> Embedding | Output:
        """What makes the logits."""
        return self.target_embedding if self.config.tied_embeddings else self.output

    def logits(self, features: Float[Array, "*B M"]) -> Float[Array, "*B V"]:
        return self.output_layer.attend(features)

    def __call__(self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, dropout_key: Key[Array, ""] | None = None):
        """Logits of every target position, teacher-forced: [B, T, V]."""
        return self.logits(self.features(source, target_in, dropout_key=dropout_key))

    def init_state(self, memory: RNNMemory, max_length: int) -> Any:
        """The state before the first word; a recurrent state needs no room for `max_length` steps."""
        raise NotImplementedError


def run_gru(gru: GRU, embedded: Float[Array, "B S D"], mask: Bool[Array, "B S"], *, reverse: bool):
    """States at every position and the last one; on padding the state stays as it is."""
    start = jnp.zeros((embedded.shape[0], gru.candidate[...].shape[0]), embedded.dtype)

    def body(state, step):
        projected, real = step
        state = jnp.where(real[:, None], gru(state, projected), state)
        return state, state

    last, states = jax.lax.scan(body, start, (gru.project(embedded).swapaxes(0, 1), mask.T), reverse=reverse)
    return states.swapaxes(0, 1), last


def reversed_order(source: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """The position in the source of each word as it is read backwards; being its own inverse, it also leads back.

    The last word of each row, `</s>`, and the padding stay where they are.

    >>> import jax.numpy as jnp
    >>> reversed_order(jnp.array([[7, 8, 9, 3, 0], [7, 3, 0, 0, 0]]))
    Array([[2, 1, 0, 3, 4],
           [0, 1, 2, 3, 4]], dtype=int32)
    """
    place = jnp.arange(source.shape[1], dtype=jnp.int32)
    last = lengths_of(source)[:, None] - 1
    return jnp.where(place < last, last - 1 - place, place)
