"""Label-smoothed cross-entropy over the real tokens of a batch.

With smoothing epsilon over V pieces (Szegedy et al. 2016, section 7; the mass is spread over all V pieces):

    loss = -sum_k q_k log p_k,   q = (1 - epsilon) onehot(y) + epsilon / V
         = logsumexp(z) - (1 - epsilon) z_y - epsilon mean(z).

The batch loss is the sum over real tokens divided by their number, so padding and batch size do not scale it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from jaxtyping import Array, Float, Int, PyTree

from seq2seq.tokenizer import PAD

ToLogits = Callable[[PyTree, Float[Array, "B C D"]], Float[Array, "B C V"]]


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


def no_sums() -> TokenSums:
    return TokenSums(*[jnp.zeros((), jnp.float32)] * 4)


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
    to_logits: ToLogits,
    params: PyTree,
    targets: Int[Array, "B T"],
    label_smoothing: float,
    *,
    chunk_tokens: int = 512,
) -> TokenSums:
    """`token_sums(to_logits(params, features), ...)` without the (B, T, V) logits: chunks of the target axis, one after another.

    Where the gradient is wanted, each chunk makes its own at once, while its logits are there: three products with the output
    matrix, where making the logits again on the way back takes four.  Only `loss` has a gradient; asking for that of the other
    sums is an error.  The chunks keep the batch axis whole, so a batch split over devices stays split.

    Args:
        features: what the logits are made of.
        to_logits: (params, [B C D]) -> [B C V].
        params: pytree of floating arrays.
        targets: ids, PAD where there is none.
        label_smoothing: epsilon.
        chunk_tokens: about how many positions a chunk has, over the whole batch.
    """
    size = max(1, chunk_tokens // targets.shape[0])
    return _in_chunks(to_logits, label_smoothing, size, params, features, targets)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _in_chunks(
    to_logits: ToLogits, label_smoothing: float, size: int, params: PyTree, features: Array, targets: Array
) -> TokenSums:
    def add(total: TokenSums, chunk: tuple[Array, Array]) -> tuple[TokenSums, None]:
        x, y = chunk
        return jax.tree.map(jnp.add, total, token_sums(to_logits(params, x), y, label_smoothing)), None

    total, _ = jax.lax.scan(add, no_sums(), _chunks(size, features, targets))
    return total


def _with_gradient(to_logits: ToLogits, label_smoothing: float, size: int, params: Any, features: Any, targets: Any):
    """The sums, and the gradient of their loss."""

    def loss(params: PyTree, x: Array, y: Array) -> tuple[Array, TokenSums]:
        sums = token_sums(to_logits(params, x), y, label_smoothing)
        return sums.loss, sums

    def add(total: tuple[PyTree, TokenSums], chunk: tuple[Array, Array]) -> tuple[Any, Array]:
        (of_params, of_x), sums = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, *chunk)
        return jax.tree.map(jnp.add, total, (of_params, sums)), of_x

    params, features, targets = jax.tree.map(lambda primal: primal.value, (params, features, targets), is_leaf=_is_primal)
    start = jax.tree.map(jnp.zeros_like, params), no_sums()
    (of_params, sums), of_chunks = jax.lax.scan(add, start, _chunks(size, features, targets))
    of_features = of_chunks.swapaxes(0, 1).reshape(features.shape[0], -1, features.shape[2])[:, : features.shape[1]]
    return sums, (of_params, of_features)


def _is_primal(leaf: Any) -> bool:
    return isinstance(leaf, CustomVJPPrimal)


def _scaled(to_logits: ToLogits, label_smoothing: float, size: int, gradients: tuple[PyTree, Array], cotangents: TokenSums):
    for name, cotangent in cotangents._asdict().items():
        if name != "loss" and not isinstance(cotangent, SymbolicZero):
            raise NotImplementedError(f"{name}: expected no gradient to be asked for, only that of loss is there")
    return *jax.tree.map(lambda g: (cotangents.loss * g).astype(g.dtype), gradients), None


_in_chunks.defvjp(_with_gradient, _scaled, symbolic_zeros=True)


def _chunks(size: int, *arrays: Array) -> tuple[Array, ...]:
    """[B T ...] -> [T / size, B, size, ...], T filled up with zeros, which as targets are PAD."""

    def cut(x: Array) -> Array:
        B, T, *rest = x.shape
        whole = jnp.pad(x, [(0, 0), (0, -T % size), *[(0, 0)] * len(rest)])
        return whole.reshape(B, -1, size, *rest).swapaxes(0, 1)

    return tuple(cut(x) for x in arrays)
