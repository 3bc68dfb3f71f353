"""The functions of attn that are timed; a new one is one line of CASES."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import attn
from seq2seq.benchmarks.case import WINDOW, Case, Sizes, near_pairs, state_pairs, stride_pairs

BLOCK = 128
TOP_K = 64
DECODER = Sizes(128, batch=16, heads=8, head_dim=64)
"""Sentences of a translation: T = S = 128, and A = D = 512."""


def options_of(kind: str) -> dict[str, Any]:
    """A kind as options of `dot_product_attention`.

    >>> options_of("window")
    {'window': (256, 0)}
    """
    return {"full": {}, "causal": {"is_causal": True}, "window": {"window": WINDOW}}[kind]


def _dot_product(implementation: str) -> Callable[[Sizes, str], Callable[..., Any]]:
    def build(sizes: Sizes, kind: str):
        return lambda q, k, v: attn.dot_product_attention(q, k, v, implementation=implementation, **options_of(kind))

    return build


def _flex(sizes: Sizes, kind: str):
    flex_attention, create_block_mask = attn.flex_attention, attn.create_block_mask
    if kind == "full":
        return lambda q, k, v: flex_attention(q, k, v)
    # The keys before a query end at the window; causal attention has no such end.
    left = sizes.n if kind == "causal" else WINDOW[0]
    block_mask = create_block_mask(lambda b, h, i, j: (j <= i) & (i - j <= left), sizes.n, sizes.n)
    return lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask)


def _sliding_window(sizes: Sizes, kind: str):
    return lambda q, k, v: attn.sliding_window_attention(q, k, v, left=WINDOW[0], right=WINDOW[1])


def _dilated(sizes: Sizes, kind: str):
    return lambda q, k, v: attn.dilated_attention(q, k, v, left=WINDOW[0], right=WINDOW[1], dilation=2)


def _strided(sizes: Sizes, kind: str):
    return lambda q, k, v: attn.strided_attention(q, k, v, stride=math.isqrt(sizes.n))


def _block_sparse(sizes: Sizes, kind: str):
    """Each block of 128 with its neighbours and the first block."""
    count = -(-sizes.n // BLOCK)
    rows, columns = np.indices((count, count))
    block_mask = (np.abs(rows - columns) <= 1) | (columns == 0)
    is_causal = kind == "causal"
    if is_causal:
        block_mask &= columns <= rows
    return lambda q, k, v: attn.block_sparse_attention(q, k, v, block_mask, block_size=BLOCK, is_causal=is_causal)


def _top_k(sizes: Sizes, kind: str):
    return lambda q, k, v: attn.top_k_attention(q, k, v, k=TOP_K, **options_of(kind))


def _linear(sizes: Sizes, kind: str):
    return lambda q, k, v: attn.linear_attention(q, k, v, **options_of(kind))


def _additive(implementation: str) -> Callable[[Sizes, str], Callable[..., Any]]:
    def build(sizes: Sizes, kind: str):
        params = attn.init_additive(jax.random.key(0), sizes.width, sizes.width, sizes.width, sizes.dtype)
        return lambda q, k, v: attn.additive_attention(q, k, v, params, implementation=implementation)

    return build


def _dot(sizes: Sizes, kind: str):
    # Not scaled by itself, and sharper than any trained model at normal inputs.
    return lambda q, k, v: attn.dot_attention(q * sizes.width**-0.5, k, v)


def _general(sizes: Sizes, kind: str):
    params = attn.init_general(jax.random.key(0), sizes.width, sizes.width, sizes.dtype)
    return lambda q, k, v: attn.general_attention(q * sizes.width**-0.5, k, v, params)


def _concat(sizes: Sizes, kind: str):
    params = attn.init_concat(jax.random.key(0), sizes.width, sizes.width, sizes.width, sizes.dtype)
    return lambda q, k, v: attn.concat_attention(q, k, v, params)


FULL, FULL_CAUSAL, CAUSAL, ONLY_WINDOW = ("full",), ("full", "causal"), ("causal",), ("window",)

CASES = (
    Case("dense", _dot_product("dense"), holds_pairs=True),
    Case("blockwise", _dot_product("blockwise")),
    Case("auto", _dot_product("auto")),
    Case("flex", _flex),
    Case("sliding-window", _sliding_window, ONLY_WINDOW, pairs=near_pairs),
    Case("dilated", _dilated, ONLY_WINDOW, pairs=near_pairs),
    Case("strided", _strided, CAUSAL, pairs=stride_pairs),
    Case("block-sparse", _block_sparse, FULL_CAUSAL, pairs=near_pairs),
    Case("top-k", _top_k, FULL_CAUSAL),
    Case("linear", _linear, FULL_CAUSAL, pairs=state_pairs),
    Case("additive-dense", _additive("dense"), FULL, one_head=True),
    Case("additive-blockwise", _additive("blockwise"), FULL, one_head=True),
    Case("dot", _dot, FULL, one_head=True),
    Case("general", _general, FULL, one_head=True),
    Case("concat", _concat, FULL, one_head=True),
    Case("additive-dense", _additive("dense"), FULL, one_head=True, fixed=DECODER),
    Case("additive-blockwise", _additive("blockwise"), FULL, one_head=True, fixed=DECODER),
)
