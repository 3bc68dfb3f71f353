"""Programs that are compiled once, and then timed in turns so that what slows the computer slows all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from seq2seq.benchmarks.case import Case, Comparison
from seq2seq.benchmarks.peers import torch_run


class Program(NamedTuple):
    """Ready to run; None is what is not known of it."""

    run: Callable[[], Any]
    """Returns when the result is there."""
    compile_seconds: float | None
    temporary_bytes: int | None


def compiled(function: Callable[..., Any], arrays: Sequence[Array]) -> Program:
    """`function` as a program for these arrays."""
    started = time.perf_counter()
    program = jax.jit(function).lower(*arrays).compile()
    seconds = time.perf_counter() - started
    memory = program.memory_analysis()
    return Program(
        lambda: jax.block_until_ready(program(*arrays)), seconds, None if memory is None else memory.temp_size_in_bytes
    )


def gradient_of(attend: Callable[..., Array]) -> Callable[..., tuple[Array, ...]]:
    """d sum(context * cotangent) / d (query, key, value), as a function of these three and the cotangent."""

    def product(query, key, value, cotangent):
        return jnp.sum(attend(query, key, value).astype(jnp.float32) * cotangent)

    return jax.grad(product, argnums=(0, 1, 2))


def program_of(case: Case, comparison: Comparison, arrays: Sequence[Array]) -> Program:
    """The case, compiled, for query, key, value and cotangent; PyTorch compiles in its first run."""
    attend = case.build(comparison.sizes, comparison.kind)
    if case.library == "torch":
        return Program(torch_run(attend, arrays, comparison.of_pass), None, None)
    return compiled(attend, arrays[:3]) if comparison.of_pass == "forward" else compiled(gradient_of(attend), arrays)


REST = 0.3
"""Seconds at most between two runs: what the first has freed is given back to the system after its result is there."""


def seconds_of(run: Callable[[], Any]) -> float:
    """Wall time of one run."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def take_turns(runs: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each repeat: one run of each, forwards through the names and in the next repeat backwards."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name in list(runs)[:: -1 if repeat % 2 else 1]:
            samples[name].append(seconds_of(runs[name]))
            time.sleep(min(samples[name][-1], REST))
    return samples


def paired_ratio(samples: Sequence[float], others: Sequence[float] | None) -> float | None:
    """The median over repeats of our time divided by the other's in the same repeat; None without the other.

    >>> paired_ratio([1.0, 4.0, 3.0], [2.0, 4.0, 1.0])
    1.0
    """
    return median(a / b for a, b in zip(samples, others, strict=True)) if others else None
