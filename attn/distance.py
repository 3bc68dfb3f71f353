"""The distance from a query to a key, on which masks over positions and relative positions rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from attn.shapes import integers, size

Offset = Annotated[ArrayLike, "*B"] | Sequence[int]


def relative_positions(T: int, S: int | None, query_offset: Offset) -> Int[Array, "*B T S"]:
    """Key position minus query position, j - i - query_offset; S is T if not given."""
    query = jnp.arange(size("T", T), dtype=jnp.int32)
    key = jnp.arange(size("S", T if S is None else S), dtype=jnp.int32)
    offset = integers("query_offset", query_offset).astype(jnp.int32)
    return key - (query + offset[..., None])[..., :, None]
