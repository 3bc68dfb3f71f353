"""What fits: time and memory that a case would take, before it takes them."""

from __future__ import annotations

import os
import time

import jax
import jax.numpy as jnp

from seq2seq.benchmarks.case import Case, Comparison

GIB = 2**30
_PROBE = 1024
_SHARE = 0.3  # of the speed of one large product, taken for attention until a case has been measured


class LeftOut(Exception):
    """A case that is not measured, and why."""


class Limits:
    """Refuses what would exceed `seconds` for all runs of one case, or `gib` of temporary memory."""

    def __init__(self, seconds: float, gib: float | None, runs: int):
        self.seconds, self.gib, self.runs = seconds, gib or memory_at_hand() / GIB, runs
        self._default_rate = _SHARE * product_rate()
        self._rates: dict[tuple[Case, str, str], float] = {}

    def check_time(self, case: Case, comparison: Comparison) -> None:
        """Raise LeftOut if all runs are expected to take too long, by the speed of the case at the last length."""
        rate = self._rates.get(_key(case, comparison), self._default_rate)
        self.check_seconds(case.operations(comparison.sizes, comparison.of_pass) / rate)

    def check_seconds(self, seconds: float) -> None:
        """Raise LeftOut if all runs would take too long at `seconds` each."""
        if seconds * self.runs > self.seconds:
            raise LeftOut(f"{self.runs} runs of {seconds:.3g} s, limit {self.seconds:g} s")

    def check_memory(self, held: int | None) -> None:
        """Raise LeftOut if that many bytes are too many."""
        if held is not None and held > self.gib * GIB:
            raise LeftOut(f"{held / GIB:.3g} GiB, limit {self.gib:.3g} GiB")

    def learn(self, case: Case, comparison: Comparison, seconds: float) -> None:
        """Remember how fast a case was."""
        self._rates[_key(case, comparison)] = case.operations(comparison.sizes, comparison.of_pass) / max(seconds, 1e-9)


def _key(case: Case, comparison: Comparison) -> tuple[Case, str, str]:
    return case, comparison.kind, comparison.of_pass


def product_rate() -> float:
    """Operations a second of a large matrix product."""
    x = jnp.ones((_PROBE, _PROBE))
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(x, x))
    started = time.perf_counter()
    jax.block_until_ready(product(x, x))
    return 2 * _PROBE**3 / (time.perf_counter() - started)


def memory_at_hand() -> float:
    """Bytes: four fifths of the accelerator's memory, or half of the computer's."""
    stats = jax.devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    if stats and "bytes_limit" in stats:
        return 0.8 * stats["bytes_limit"]
    try:
        return 0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return 8 * GIB
