"""Attention and its gradient in float64 NumPy, by hand.

P = softmax(scale Q K^T) over the pairs seen        dV = P^T dO
O = P V                                             dS = P (dP - sum_j P dP),   dP = dO V^T
                                                    dQ = scale dS K,   dK = scale dS^T Q
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def reference(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, cotangent: np.ndarray, seen: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Context, and the gradients of sum(context * cotangent) by query, key and value.

    Args:
        query, cotangent: [B T N H].
        key, value: [B S K H].
        seen: Boolean [B T S]; each query sees something.
    """
    query, key, value, cotangent = (np.asarray(x, np.float64) for x in (query, key, value, cotangent))
    context, of_query = np.zeros_like(query), np.zeros_like(query)
    of_key, of_value = np.zeros_like(key), np.zeros_like(value)
    group, scale = query.shape[2] // key.shape[2], query.shape[-1] ** -0.5
    for b, n in np.ndindex(query.shape[0], query.shape[2]):
        q, k, v, of_context = query[b, :, n], key[b, :, n // group], value[b, :, n // group], cotangent[b, :, n]
        scores = np.where(seen[b], scale * q @ k.T, -np.inf)
        exps = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights = exps / exps.sum(axis=1, keepdims=True)
        of_weights = of_context @ v.T
        of_scores = weights * (of_weights - (weights * of_weights).sum(axis=1, keepdims=True))
        context[b, :, n], of_query[b, :, n] = weights @ v, scale * of_scores @ k
        of_key[b, :, n // group] += scale * of_scores.T @ q
        of_value[b, :, n // group] += weights.T @ of_context
    return context, of_query, of_key, of_value


def pairs_seen(
    rows: np.ndarray, S: int, *, is_causal: bool, window: tuple[int, int] | None, key_lengths: Sequence[int]
) -> np.ndarray:
    """Boolean [B T S]: whether the queries at positions `rows` see each key.

    >>> pairs_seen(np.arange(2), 3, is_causal=True, window=None, key_lengths=[3]).astype(int)
    array([[[1, 0, 0],
            [1, 1, 0]]])
    """
    i, j = rows[:, None], np.arange(S)
    seen = np.ones((len(rows), S), bool)
    if is_causal:
        seen &= j <= i
    if window is not None:
        seen &= (i - j <= window[0]) & (j - i <= window[1])
    return seen & (j < np.asarray(key_lengths)[:, None, None])
