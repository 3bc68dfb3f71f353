"""What is compared: a case is one function, at any length, for some kinds of attention.

full      every key
causal    the keys j <= i
window    the 256 keys before i, and i
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

KINDS = ("full", "causal", "window")
PASSES = ("forward", "gradient")
WINDOW = (256, 0)
JAX_NN, TORCH = "jax.nn", "torch-sdpa"
"""The two whose times the others' are divided by."""


@dataclass(frozen=True)
class Sizes:
    """Self-attention of n queries to n keys, with the width of all heads together in one head where there is but one."""

    n: int
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    dtype: str = "float32"

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


def every_pair(sizes: Sizes) -> int:
    """n^2."""
    return sizes.n**2


def near_pairs(sizes: Sizes) -> int:
    """Pairs of a window, or of a few blocks: 512 a query."""
    return sizes.n * min(sizes.n, 512)


def stride_pairs(sizes: Sizes) -> int:
    """2 sqrt(n) a query."""
    return int(2 * sizes.n**1.5)


def state_pairs(sizes: Sizes) -> int:
    """What linear attention does for a query, in pairs: its state is as wide as a head."""
    return sizes.n * sizes.head_dim


@dataclass(frozen=True)
class Case:
    """A function to be timed.

    `build(sizes, kind)` makes the function of query, key and value: [B n N H], or [B n D] for one head; torch tensors if
    that is its library.
    """

    name: str
    build: Callable[[Sizes, str], Callable[..., Any]]
    kinds: tuple[str, ...] = KINDS
    passes: tuple[str, ...] = PASSES
    pairs: Callable[[Sizes], int] = every_pair
    """Pairs of query and key that it computes: the estimate of its time grows with them."""
    holds_pairs: bool = False
    """Whether the scores of all pairs are in memory at once: too long a case is then left out without compiling it."""
    one_head: bool = False
    fixed: Sizes | None = None
    """Sizes whatever was asked for."""
    library: Literal["jax", "torch"] = "jax"

    def operations(self, sizes: Sizes, of_pass: str) -> float:
        """Floating-point operations of its products: two forward, five more in a gradient that computes scores anew."""
        return 4.0 * sizes.batch * self.pairs(sizes) * sizes.width * (1.0 if of_pass == "forward" else 3.5)

    def held_bytes(self, sizes: Sizes) -> int:
        """The least that it holds, known before it is compiled."""
        return 4 * sizes.batch * (1 if self.one_head else sizes.heads) * sizes.n**2 if self.holds_pairs else 0


@dataclass(frozen=True)
class Comparison:
    """Cases that take turns on the same inputs."""

    sizes: Sizes
    kind: str
    of_pass: str
    one_head: bool
    cases: tuple[Case, ...]

    @property
    def inputs(self) -> str:
        """The inputs in a few letters.

        >>> Comparison(Sizes(16), "full", "forward", False, ()).inputs, Comparison(Sizes(16), "full", "forward", True, ()).inputs
        ('B=1 N=8 H=64', 'B=1 D=512')
        """
        sizes = self.sizes
        return f"B={sizes.batch} D={sizes.width}" if self.one_head else f"B={sizes.batch} N={sizes.heads} H={sizes.head_dim}"

    def __str__(self) -> str:
        return f"n = {self.sizes.n}, {self.kind}, {self.of_pass}, {self.inputs}"


def comparisons(
    cases: Sequence[Case], lengths: Sequence[int], sizes: Sizes, kinds: Sequence[str], passes: Sequence[str]
) -> list[Comparison]:
    """All that is to be measured, short lengths first and fixed sizes before all."""
    rooms = list(dict.fromkeys((case.fixed, case.one_head) for case in cases))
    rooms.sort(key=lambda room: (room[0] is None, room[1]))
    every = [
        Comparison(fixed or replace(sizes, n=n), kind, of_pass, one_head, tuple(_of(cases, fixed, one_head, kind, of_pass)))
        for n in sorted(lengths)
        for fixed, one_head in rooms
        for kind in kinds
        for of_pass in passes
    ]
    return list(dict.fromkeys(comparison for comparison in every if _is_of_use(comparison)))


def _is_of_use(comparison: Comparison) -> bool:
    """Whether there is something to compare; in one head, something beside the yardstick."""
    names = {case.name for case in comparison.cases}
    return bool(names - {JAX_NN} if comparison.one_head else names)


def _of(cases: Sequence[Case], fixed: Sizes | None, one_head: bool, kind: str, of_pass: str) -> list[Case]:
    rooms = [case for case in cases if (case.fixed, case.one_head) == (fixed, one_head)]
    return [case for case in rooms if kind in case.kinds and of_pass in case.passes]


def chosen(argument: str, names: Sequence[str], choices: Sequence[str]) -> list[str]:
    """`names` in the order of `choices`, all of them if none is named.

    >>> chosen("kinds", ["window", "full"], KINDS)
    ['full', 'window']
    """
    unknown = [name for name in names if name not in choices]
    if unknown:
        raise ValueError(f"{argument}: expected some of {', '.join(dict.fromkeys(choices))}; got {unknown[0]!r}")
    return [choice for choice in dict.fromkeys(choices) if not names or choice in names]


def inputs(sizes: Sizes, one_head: bool) -> tuple[Array, Array, Array, Array]:
    """Normal query, key, value, and the cotangent of the context."""
    heads = (sizes.width,) if one_head else (sizes.heads, sizes.head_dim)
    shape = (sizes.batch, sizes.n, *heads)
    generator = np.random.default_rng(0)
    arrays = [jnp.asarray(generator.standard_normal(shape, dtype=np.float32), dtype=sizes.dtype) for _ in range(4)]
    return tuple(jax.block_until_ready(arrays))
