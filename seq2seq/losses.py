"""Label-smoothed cross-entropy over the real tokens of a batch.

With smoothing epsilon over V pieces (Szegedy et al. 2016, section 7; the mass is spread over all V pieces):

    loss = -sum_k q_k log p_k,   q = (1 - epsilon) onehot(y) + epsilon / V
         = logsumexp(z) - (1 - epsilon) z_y - epsilon mean(z).

The batch loss is the sum over real tokens divided by their number, so padding and batch size do not scale it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from seq2seq.tokenizer import PAD


class TokenSums(NamedTuple):
    """Sums over the real tokens of a batch."""

    loss: Float[Array, ""]
    """Label-smoothed cross-entropy."""
    nll: Float[Array, ""]
    """Negative log-likelihood, without smoothing."""
    correct: Float[Array, ""]
    """Tokens whose likeliest prediction is right."""
    tokens: Float[Array, ""]
    """Real tokens."""


def token_sums(logits: Float[Array, "*B V"], targets: Int[Array, "*B"], label_smoothing: float) -> TokenSums:
    """Sums over the positions whose target is not padding."""
    logits = logits.astype(jnp.float32)
    log_total = jax.nn.logsumexp(logits, axis=-1)
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    smoothed = log_total - (1 - label_smoothing) * picked - label_smoothing * jnp.mean(logits, axis=-1)
    real = (targets != PAD).astype(jnp.float32)
    correct = picked >= jnp.max(logits, axis=-1)
    return TokenSums(jnp.sum(real * smoothed), jnp.sum(real * (log_total - picked)), jnp.sum(real * correct), jnp.sum(real))


def chunked_token_sums(
    features: Float[Array, "B T D"],
    to_logits: Callable[[Float[Array, "B C D"]], Float[Array, "B C V"]],
    targets: Int[Array, "B T"],
    label_smoothing: float,
    *,
    chunk_tokens: int = 512,
) -> TokenSums:
    """`token_sums(to_logits(features), ...)` without the (B, T, V) logits: chunks of the target axis, each made again in the
    backward pass.  The chunks keep the batch axis whole, so a batch split over devices stays split."""
    batch, length = targets.shape
    size = max(1, chunk_tokens // batch)
    chunk = jax.checkpoint(lambda x, y: token_sums(to_logits(x), y, label_smoothing))
    parts = [chunk(features[:, i : i + size], targets[:, i : i + size]) for i in range(0, length, size)]
    return jax.tree.map(lambda *sums: sum(sums), *parts)
