"""What a translation model is to the trainer and the decoder, and how a config becomes one."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int, Key

from seq2seq.config import RNNConfig, TransformerConfig
from seq2seq.layers import StepOutput
from seq2seq.rnn import RNN, build_rnn
from seq2seq.transformer import Transformer

__all__ = ["EncoderDecoder", "StepOutput", "build_model", "count_parameters"]


@runtime_checkable
class EncoderDecoder(Protocol):
    """An encoder-decoder.  Sources end in EOS, padding is PAD = 0; every leaf of memory and state has the batch axis first.

    `features` and `logits` are for training, all target positions at once; `encode`, `init_state` and `step` are for
    decoding, one target position at a time.  `__call__` is logits(features(...)).

    A search keeps several hypotheses of each source by repeating and gathering rows.  A model that can do with less has
    `start_beams(memory, max_length, beam_size) -> (memory, state)` and `reorder(state, parents) -> state` of its own (see
    `seq2seq.decoding.beams`), and may have `grow(state, max_length) -> state`, so that a search begins with less room.
    """

    def __call__(
        self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, dropout_key: Key[Array, ""] | None = None
    ) -> Float[Array, "B T V"]: ...

    def features(
        self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, dropout_key: Key[Array, ""] | None = None
    ) -> Float[Array, "B T D"]: ...

    def logits(self, features: Float[Array, "*B D"]) -> Float[Array, "*B V"]: ...

    def encode(self, source: Int[Array, "B S"]) -> Any: ...

    def init_state(self, memory: Any, max_length: int) -> Any: ...

    def step(self, memory: Any, state: Any, tokens: Int[Array, "B"]) -> StepOutput: ...


def build_model(
    config: RNNConfig | TransformerConfig,
    source_vocab: int,
    target_vocab: int,
    *,
    shared_vocab: bool,
    rngs: nnx.Rngs,
    dtype: DTypeLike = jnp.float32,
) -> RNN | Transformer:
    """The model of `config` with fresh float32 parameters, computing in `dtype`."""
    kinds = {RNNConfig: build_rnn, TransformerConfig: Transformer}
    return kinds[type(config)](config, source_vocab, target_vocab, shared_vocab=shared_vocab, rngs=rngs, dtype=dtype)


def count_parameters(model: nnx.Module) -> int:
    """Number of trained numbers."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
