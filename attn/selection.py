"""Which implementation of dot-product attention a call takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import jax
from jaxtyping import Array

from attn.cudnn import absence

IMPLEMENTATIONS = ("auto", "dense", "blockwise", "cudnn")


def select_implementation(
    query_length: int, key_length: int, rows: int = 1, *, platform: str = "cpu", fits_cudnn: bool = False
) -> str:
    """The implementation that "auto" stands for: a pure rule of the shapes and the platform.

    Blocks pay where the scores do not stay in the cache; a single query has no scores to save.  The crossover was measured on
    two CPU cores with heads of 64: below 2^21 scores (8 heads at T = S = 512) both take about the same time.

    On a GPU nothing was measured.  The same crossover stands between the two there, and the one to cuDNN is a guess: its kernels
    go over tiles of about 128 x 128 scores of a head, so that with less than one of them most of the work is padding.

    Args:
        query_length: T.
        key_length: S.
        rows: number of heads, over all batch entries.
        platform: as `jax.default_backend()` says it.
        fits_cudnn: whether cuDNN is there, and these arguments mean the same to it (half precision, H = V a multiple of 8 and
            at most 128, a scale > 0 known when traced, no other option than is_causal without an offset).

    Returns:
        "cudnn" on "gpu" where it fits, from 2^14 scores of a head and 16 queries on; else "blockwise" from 2^21 scores and 16
        queries on, else "dense".

    >>> select_implementation(128, 128), select_implementation(4096, 4096), select_implementation(1, 65536, rows=64)
    ('dense', 'blockwise', 'dense')
    >>> select_implementation(128, 128, platform="gpu", fits_cudnn=True), select_implementation(4096, 4096, platform="gpu")
    ('cudnn', 'blockwise')
    """
    if query_length < 16:
        return "dense"
    if platform in ("gpu", "cuda") and fits_cudnn and query_length * key_length >= 2**14:
        return "cudnn"
    return "blockwise" if query_length * key_length * rows >= 2**21 else "dense"


def chosen_implementation(
    implementation: str,
    block_sizes: Sequence[int] | None,
    query: Array,
    key: Array,
    cudnn_misfits: Iterator[str],
) -> str:
    """The implementation, once what was asked for can be done; `cudnn_misfits` are `attn.cudnn.misfits` of the call."""
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation: expected one of {', '.join(map(repr, IMPLEMENTATIONS))}, got {implementation!r}")
    if block_sizes is not None and implementation == "dense":
        raise ValueError(f"block_sizes: expected None for the dense implementation, which has no blocks, got {block_sizes!r}")
    if implementation == "cudnn" and (reason := next(cudnn_misfits, None) or absence()):
        raise ValueError(reason)
    if implementation != "auto":
        return implementation
    if block_sizes is not None:
        return "blockwise"
    *batch, T, N, _ = query.shape
    fits = absence() is None and next(cudnn_misfits, None) is None
    return select_implementation(T, key.shape[-3], prod(batch) * N, platform=jax.default_backend(), fits_cudnn=fits)
