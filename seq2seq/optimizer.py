"""AdamW (Loshchilov and Hutter 2019) after clipping by global norm, with linear warm-up and four decays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from seq2seq.config import OptimizerConfig


def learning_rate_schedule(config: OptimizerConfig, max_steps: int) -> optax.Schedule:
    """Learning rate of each step, counted from 0.

    Warm-up rises linearly and reaches the peak at step `warmup_steps`.  After it: `inverse_sqrt` falls with
    sqrt(warmup_steps / step) (Vaswani et al. 2017, section 5.3), `cosine` and `linear` fall to 0 at `max_steps`, `constant`
    stays; so does `plateau`, which training lowers when its metric stalls.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    decay = {
        "inverse_sqrt": lambda step: peak * jnp.sqrt(max(warmup, 1) / jnp.maximum(step + max(warmup, 1), 1)),
        "cosine": optax.cosine_decay_schedule(peak, max(max_steps - warmup, 1)),
        "linear": optax.linear_schedule(peak, 0.0, max(max_steps - warmup, 1)),
        "constant": optax.constant_schedule(peak),
        "plateau": optax.constant_schedule(peak),
    }[config.schedule]
    rise = optax.linear_schedule(peak / max(warmup, 1), peak, max(warmup - 1, 1))
    return optax.join_schedules([rise, decay], [warmup])


def build_optimizer(config: OptimizerConfig, max_steps: int) -> optax.GradientTransformation:
    """Clip, AdamW; weight decay acts on matrices only, not on biases and norm scales."""
    adamw = optax.adamw(
        learning_rate_schedule(config, max_steps),
        b1=config.beta1,
        b2=config.beta2,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        mask=lambda params: jax.tree.map(lambda p: p.ndim >= 2, params),
    )
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw) if config.clip_norm > 0 else adamw
