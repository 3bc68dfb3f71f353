"""Score mods: biases by distance, the soft cap, and how they combine."""

from __future__ import annotations

from functools import reduce
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from attn.distance import Offset
from attn.mods.mod import Mod, ScoreMod, distance_of, functions, per_batch
from attn.positions import t5_bucket
from attn.shapes import compute_dtype, floating, is_traced, size


def alibi(slopes: Annotated[ArrayLike, "N"], query_offset: Offset = 0) -> ScoreMod:
    """score - slopes[h] |p - j|: `attn.alibi_bias`, with slopes [N] as from `attn.alibi_slopes`, or learned.

    Raises:
        TypeError: slopes that are not floating, or an offset that is no integer.
        ValueError: slopes that are not [N], or an offset that is neither a scalar nor [B].

    >>> import jax.numpy as jnp
    >>> [float(alibi(jnp.array([0.5]))(0.0, 0, 0, 2, j)) for j in range(4)]
    [-1.0, -0.5, 0.0, -0.5]

    Reference: Press, Smith, Lewis. Train short, test long. ICLR 2022, section 3.
    """
    slopes = floating("slopes", slopes, "N")
    return Mod(_alibi, slopes.astype(compute_dtype(slopes)), per_batch("query_offset", query_offset))


def _alibi(slopes, offset, score, b, h, q_idx, kv_idx):
    return score - slopes[h] * jnp.abs(distance_of(offset, b, q_idx, kv_idx))


def relative_table(table: Annotated[ArrayLike, "R N"], query_offset: Offset = 0) -> ScoreMod:
    """score + table[clip(j - p, -L, L) + L, h]: a learned bias of each head by distance.

    The table is [2L+1 N], its middle row for distance 0.

    Raises:
        TypeError: a table that is not floating, or an offset that is no integer.
        ValueError: a table that is no matrix or has an even number of rows, an offset that is neither a scalar nor [B].

    >>> import jax.numpy as jnp
    >>> table = jnp.array([[-1.0], [0.0], [1.0]])   # L = 1, one head
    >>> [float(relative_table(table)(0.0, 0, 0, 2, j)) for j in range(5)]
    [-1.0, -1.0, 0.0, 1.0, 1.0]

    Reference: Shaw, Uszkoreit, Vaswani. Self-attention with relative position representations. NAACL 2018, section 3.2, the
    clipped distance.
    """
    table = floating("table", table, "2L+1 N")
    if table.shape[0] % 2 == 0:
        raise ValueError(f"table: expected shape (2L+1, N), an odd number of rows, got {table.shape}")
    return Mod(_relative_table, table, per_batch("query_offset", query_offset))


def _relative_table(table, offset, score, b, h, q_idx, kv_idx):
    L = table.shape[0] // 2
    return score + table[jnp.clip(distance_of(offset, b, q_idx, kv_idx), -L, L) + L, h]


def t5(table: Annotated[ArrayLike, "R N"], bidirectional: bool, max_distance: int = 128, query_offset: Offset = 0) -> ScoreMod:
    """score + table[bucket(j - p), h], [num_buckets N]: `attn.t5_bias`.

    From max_distance on the bucket stays the same, so this is `relative_table` of a row for each distance up to there.

    Raises:
        TypeError: a table that is not floating, or an offset that is no integer.
        ValueError: a table that is no matrix or has too few rows, max_distance out of range, an offset that does not fit.

    >>> import jax.numpy as jnp
    >>> table = jnp.arange(8.0)[:, None]   # one head, whose bias is the bucket itself
    >>> [float(t5(table, bidirectional=True)(0.0, 0, 0, 1, j)) for j in range(3)]
    [1.0, 0.0, 5.0]

    Reference: Raffel et al. Exploring the limits of transfer learning. JMLR 2020, section 2.1.
    """
    table = floating("table", table, "R N")
    distances = jnp.arange(-size("max_distance", max_distance), max_distance + 1, dtype=jnp.int32)
    buckets = t5_bucket(distances, bidirectional=bidirectional, num_buckets=table.shape[0], max_distance=max_distance)
    return relative_table(table[buckets], query_offset)


def softcap(cap: ArrayLike) -> ScoreMod:
    """cap tanh(score / cap): a score that stays within -cap ... cap.

    Raises:
        ValueError: a cap that is no scalar, or not above 0 where known.

    >>> float(softcap(2.0)(100.0, 0, 0, 0, 0))
    2.0

    Reference: Gemma Team. Gemma 2: improving open language models at a practical size. 2024, section 2.
    """
    if jnp.ndim(cap):
        raise ValueError(f"cap: expected a scalar, got shape {jnp.shape(cap)}")
    with jax.ensure_compile_time_eval():
        if not is_traced(cap) and not cap > 0:
            raise ValueError(f"cap: expected a number > 0, got {cap}")
    return Mod(_softcap, cap if isinstance(cap, int | float) else jnp.asarray(cap))


def _softcap(cap, score, b, h, q_idx, kv_idx):
    return cap * jnp.tanh(score / cap)


def compose(*score_mods: ScoreMod) -> ScoreMod:
    """One mod after the other, the first one first; of none, the score itself.

    Raises:
        TypeError: a mod that is no function.

    >>> import jax.numpy as jnp
    >>> float(compose(alibi(jnp.array([50.0])), softcap(2.0))(0.0, 0, 0, 2, 0))   # -100, then capped
    -2.0
    """
    return Mod(_compose, *functions("score_mods", score_mods))


def _compose(*mods_and_pair):
    *mods, score, b, h, q_idx, kv_idx = mods_and_pair
    return reduce(lambda score, mod: mod(score, b, h, q_idx, kv_idx), mods, score)
