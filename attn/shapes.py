"""What arrays must look like: each check names the argument, the expected symbolic shape and the actual one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array


def is_traced(value: Any) -> bool:
    """Whether `value` is unknown while a function is being transformed, so that nothing can be raised about it."""
    return isinstance(value, jax.core.Tracer)


def known(array: Array) -> list[Any] | None:
    """All entries of an array in one list, or None while a transformation leaves them unknown.

    Under `jit` every operation is traced, even on an array that is not, so the list is made outside of it.
    """
    if is_traced(array):
        return None
    with jax.ensure_compile_time_eval():
        return jnp.ravel(array).tolist()


def compute_dtype(*arrays: Array) -> DTypeLike:
    """Type of softmax, lse and accumulation: at least float32, and float64 for float64."""
    return jnp.promote_types(jnp.result_type(*arrays), jnp.float32)


def floating(name: str, value: ArrayLike, axes: str) -> Array:
    """`value` as an array, once it is floating and has at least the named `axes` (those after a leading `*B`)."""
    array = jnp.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name}: expected a floating dtype, got {array.dtype}")
    names = axes.split()
    batched = names[0].startswith("*")
    rank = len(names) - batched
    if array.ndim < rank or (not batched and array.ndim != rank):
        raise ValueError(f"{name}: expected shape ({', '.join(names)}), got {array.shape}")
    return array


def integers(name: str, value: ArrayLike | Sequence[int]) -> Array:
    """`value` as an array, once it is of integer dtype."""
    array = jnp.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{name}: expected an integer dtype, got {array.dtype}")
    return array


def size(name: str, value: Any, *, least: int = 0) -> int:
    """`value` as a Python integer, once it is a count of at least `least`."""
    try:
        count = value.__index__()
    except (AttributeError, TypeError):
        count = -1
    if isinstance(value, bool) or count < least:
        raise ValueError(f"{name}: expected an integer >= {least}, got {value!r}")
    return count


def positive(name: str, value: Any) -> int:
    """`value` as a Python integer, once it is at least 1."""
    return size(name, value, least=1)


def expect(name: str, array: Array, axes: str, shape: Sequence[int]) -> None:
    """Raise unless `array` has exactly this `shape`, whose symbolic form is `axes`."""
    if array.shape != tuple(shape):
        raise ValueError(f"{name}: expected shape ({', '.join(axes.split())}) = {tuple(shape)}, got {array.shape}")


def broadcastable(name: str, array: Array, axes: str, shape: Sequence[int]) -> Array:
    """`array`, once its rank is that of `shape` and each of its axes is full or 1: a (B, T, S) mask is no (N, T, S) mask."""
    if array.ndim != len(shape) or any(n not in (1, full) for n, full in zip(array.shape, shape, strict=True)):
        symbols = ", ".join(axes.split())
        raise ValueError(f"{name}: expected shape ({symbols}) = {tuple(shape)}, each axis full or 1, got {array.shape}")
    return array


def boolean_mask(mask: ArrayLike, axes: str, shape: Sequence[int]) -> Array:
    """`mask` as an array, once it is Boolean and of a rank and shape that leave no doubt."""
    array = jnp.asarray(mask)
    if array.dtype != jnp.bool_:
        raise TypeError(f"mask: expected bool (True = attend), got {array.dtype}; what is added to scores is a bias")
    return broadcastable("mask", array, axes, shape)


def per_batch(name: str, value: ArrayLike | Sequence[int], batch: Sequence[int]) -> Array:
    """Integers, one for all or one for each batch entry ([*B]); a scalar stays a scalar."""
    array = integers(name, value)
    return array if array.ndim == 0 else broadcastable(name, array, "*B", batch)


def lengths_within(name: str, value: ArrayLike | Sequence[int], batch: Sequence[int], symbol: str, limit: int) -> Array:
    """Lengths, one for all or one for each batch entry, once none that is known is negative or beyond the padded length."""
    # Evaluated at once also inside jit, so that lengths that are constants there are checked.
    with jax.ensure_compile_time_eval():
        lengths = per_batch(name, value, batch)
    outside = [length for length in known(lengths) or () if not 0 <= length <= limit]
    if outside:
        raise ValueError(f"{name}: expected integers from 0 to {symbol} = {limit}, got {outside[0]}")
    return lengths
