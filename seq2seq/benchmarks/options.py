"""What scripts/benchmark_attention.py is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Options:
    """Arguments of the command line."""

    lengths: tuple[int, ...] = ()
    """Numbers of queries and keys; 256 1024 4096 16384 65536, or what suits the device in a check, if none is given."""
    heads: int = 8
    """Query heads; functions of one head get one as wide as all of them."""
    head_dim: int = 64
    """Width of a head."""
    batch: int = 1
    """Batch entries."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of query, key and value; a check does float32 and bfloat16."""
    cases: tuple[str, ...] = ()
    """Names of functions, such as dense blockwise jax.nn; all if none is given."""
    kinds: tuple[str, ...] = ()
    """Of full, causal, window; all if none is given."""
    passes: tuple[str, ...] = ()
    """Of forward, gradient; both if none is given."""
    repeats: int = 5
    """Timed runs of each function, in turns with the others, after one that is not counted."""
    out: Path = Path("runs/benchmark_attention")
    """Folder that receives results.json, table.txt and the figures."""
    time_limit_per_case: float = 120.0
    """Seconds for all runs of one function at one length; what would take longer is left out."""
    memory_limit: float | None = None
    """GiB of temporary memory; half of the computer's, or four fifths of the accelerator's, if not given."""
    check: bool = False
    """Compare with float64 NumPy instead."""
