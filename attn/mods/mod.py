"""What a mod is, and the parts that several share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn.distance import Offset
from attn.shapes import integers

MaskMod = Callable[[Any, Any, Any, Any], Any]
ScoreMod = Callable[[Any, Any, Any, Any, Any], Any]


class Mod(partial):
    """A rule with the arguments it was given; numbers are compared by value, arrays and other mods as themselves."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mod) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Any, ...]:
        return self.func, tuple(("array", id(given)) if isinstance(given, jax.Array) else given for given in self.args)


def distance_of(offset, b, q_idx, kv_idx):
    return kv_idx - (q_idx + entry(offset, b))


def entry(value, b):
    """What holds for batch entry b, of one value for all or one for each."""
    return value[b] if jnp.ndim(value) else value


def per_batch(name: str, value: Offset) -> int | Array:
    """Integers, one for all or one for each batch entry; a Python integer stays one, so that it is compared by value."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    array = integers(name, value)
    if array.ndim > 1:
        raise ValueError(f"{name}: expected a scalar or shape (B), got {array.shape}")
    return array.astype(jnp.int32)


def functions(name: str, mods: Sequence[Any]) -> Sequence[Any]:
    for mod in mods:
        if not callable(mod):
            raise TypeError(f"{name}: expected functions, got {mod!r}")
    return mods
