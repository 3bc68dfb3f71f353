"""What local-m and local-p share: the choice of the score, and the keys that are there at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool

from attn.masks import padding_mask
from attn.multiplicative.concat import ConcatParams, concat_attention, concat_weights
from attn.multiplicative.dot import dot_attention, dot_weights
from attn.multiplicative.general import GeneralParams, general_attention, general_weights
from attn.shapes import boolean_mask, expect, floating, lengths_within

ScoreParams = GeneralParams | ConcatParams | None
Integers = Annotated[ArrayLike, "*B"] | Sequence[int]


def score_functions(params: ScoreParams) -> tuple[Callable, Callable, tuple]:
    """The functions that give weights and context with the score that `params` stand for, and what they take of it."""
    match params:
        case None:
            return dot_weights, dot_attention, ()
        case GeneralParams():
            return general_weights, general_attention, (params,)
        case ConcatParams():
            return concat_weights, concat_attention, (params,)
    raise TypeError(f"params: expected None (dot), GeneralParams or ConcatParams, got {type(params).__name__}")


def real_keys(query: Array, keys: Array, lengths: Array | None, mask: ArrayLike | None) -> Bool[Array, "*#B #T S"]:
    """The keys that the mask and the lengths allow, with the batch and query axes full or 1."""
    S = keys.shape[-2]
    real = jnp.ones((1,) * (query.ndim - 1) + (S,), bool)
    if mask is not None:
        real &= boolean_mask(mask, "*B T S", (*query.shape[:-1], S))
    return real if lengths is None else real & padding_mask(lengths, S)[..., None, :]


def checked_lengths(key_lengths: Integers | None, keys: Array) -> Array | None:
    """Lengths as an array; unless traced, none is negative or beyond the keys: S of eq. 9 would be wrong."""
    if key_lengths is None:
        return None
    return lengths_within("key_lengths", key_lengths, keys.shape[:-2], "S", keys.shape[-2])


def checked(query: ArrayLike, keys: ArrayLike, *values: ArrayLike) -> list[Array]:
    """Query, keys and values, if any, of one batch; the score checks the widths."""
    arrays = [floating("query", query, "*B T Dq"), floating("keys", keys, "*B S Dk")]
    batch, S = arrays[0].shape[:-2], arrays[1].shape[-2]
    expect("keys", arrays[1], "*B S Dk", (*batch, S, arrays[1].shape[-1]))
    for given in values:
        arrays.append(floating("values", given, "*B S V"))
        expect("values", arrays[2], "*B S V", (*batch, S, arrays[2].shape[-1]))
    return arrays
