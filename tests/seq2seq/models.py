"""Small models and batches that several tests share."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from seq2seq.config import RNNConfig, TransformerConfig
from seq2seq.model import build_model

CONFIGS = {
    "rnn_none": RNNConfig(
        attention="none", embed_dim=8, encoder_dim=6, hidden_dim=10, align_dim=7, maxout_dim=8, dropout_rate=0.3
    ),
    "rnn_additive": RNNConfig(embed_dim=8, encoder_dim=6, hidden_dim=10, align_dim=7, maxout_dim=8, dropout_rate=0.3),
    "transformer": TransformerConfig(model_dim=8, ffn_dim=12, num_heads=2, num_layers=2, dropout_rate=0.3),
    "transformer_post": TransformerConfig(
        model_dim=8, ffn_dim=12, num_heads=2, num_layers=2, norm="post", positions="learned", max_length=64
    ),
}


def small_model(name, *, vocab=11, target_vocab=None, shared=True, seed=0, **options):
    return build_model(CONFIGS[name], vocab, target_vocab or vocab, shared_vocab=shared, rngs=nnx.Rngs(seed), **options)


def random_batch(rows=3, source_length=6, target_length=5, *, vocab=11, seed=0):
    """(source, target_in, target_out) of mixed lengths; ids as in the tokenizer: PAD 0, BOS 2, EOS 3."""
    rng = np.random.default_rng(seed)
    source, target_in, target_out = (
        np.zeros((rows, source_length), np.int32),
        np.zeros((rows, target_length), np.int32),
        np.zeros((rows, target_length), np.int32),
    )
    for row in range(rows):
        s, t = rng.integers(1, source_length + 1), rng.integers(1, target_length + 1)
        source[row, :s] = [*rng.integers(4, vocab, s - 1), 3]
        words = rng.integers(4, vocab, t - 1)
        target_in[row, :t], target_out[row, :t] = [2, *words], [*words, 3]
    return jnp.asarray(source), jnp.asarray(target_in), jnp.asarray(target_out)


@partial(jax.jit, static_argnums=(0, 2))
def _call(graphdef, params, method, arguments, options):
    return getattr(nnx.merge(graphdef, params), method)(*arguments, **options)


def call(model, *arguments, method="__call__", **options):
    """A method of the model as one compiled function: op by op, the tests would spend their time compiling single operations."""
    return _call(*nnx.split(model, nnx.Param), method, arguments, options)
