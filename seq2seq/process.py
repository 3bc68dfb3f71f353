"""What a process keeps: compiled programs for the next one, and the memory it frees for its own next step."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import sys
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Parameters of `mallopt`, from glibc's malloc.h."""


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed, instead of giving it back to the system; whether it does.

    XLA asks for one buffer of some hundred MiB for each step and frees it again.  glibc maps it anew each time, and the system
    clears each of its pages: a fifth of the time of a training step on a CPU.  In one arena without maps the buffer stays.
    What the user said in GLIBC_TUNABLES or MALLOC_ARENA_MAX holds; other C libraries are left as they are.
    """
    if os.environ.get("GLIBC_TUNABLES") or os.environ.get("MALLOC_ARENA_MAX"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    settings = {M_ARENA_MAX: 1, M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1}
    taken = [mallopt(parameter, value) for parameter, value in settings.items()]
    return all(taken)


def keep_compiled_programs() -> None:
    """Keep compiled programs in ~/.cache/attn-seq2seq, apart for each kind of processor, unless JAX_COMPILATION_CACHE_DIR names
    another folder, or is empty for none.

    A program is found again by what it computes, the options it was compiled with and the version of XLA.  Where there is no
    home that can be written to, nothing is kept.
    """
    try:
        folder = Path.home() / ".cache" / "attn-seq2seq" / f"{platform.machine()}-{_processor()}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return
    # The environment for a jax that is yet to be imported: `train.py --help` need not wait for it.
    for name, value in (("JAX_COMPILATION_CACHE_DIR", str(folder)), ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")):
        given = os.environ.setdefault(name, value)
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(name.lower(), float(given) if name.endswith("SECS") else given or None)


def _processor() -> str:
    """A short name of the instructions that this processor has: code for others may not run on it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n")
        features = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    except OSError:
        features = platform.processor()
    return hashlib.sha256(" ".join(sorted(features.split())).encode()).hexdigest()[:12]
