"""Positions in plain loops of float64 NumPy, to be checked by eye against the papers."""

import math

import numpy as np


def sinusoidal(length, dim, base=10_000.0):
    table = np.zeros((length, dim))
    for p in range(length):
        for c in range(dim):
            phase = p / base ** (2 * (c // 2) / dim)
            table[p, c] = np.cos(phase) if c % 2 else np.sin(phase)
    return table


def sinusoidal_tensor2tensor(length, dim, base=10_000.0):
    n = dim // 2
    table = np.zeros((length, dim))
    for p in range(length):
        for i in range(n):
            phase = p * np.exp(-i * np.log(base) / max(n - 1, 1))
            table[p, i], table[p, n + i] = np.sin(phase), np.cos(phase)
    return table


def rope(x, positions, base=10_000.0, interleaved=False):
    """x [T N H] turned by positions [T]: one 2 x 2 rotation for each pair (Su et al. 2021, eq. 15)."""
    (T, N, H), result = x.shape, np.zeros(x.shape)
    for t in range(T):
        for n in range(N):
            for i in range(H // 2):
                angle = positions[t] * base ** (-2 * i / H)
                rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
                pair = [2 * i, 2 * i + 1] if interleaved else [i, i + H // 2]
                result[t, n, pair] = rotation @ x[t, n, pair]
    return result


def alibi_slopes(num_heads):
    """For a power of two a geometric sequence from 2^(-8/N) on; for others the authors' recursion."""
    if num_heads == 2 ** int(math.log2(num_heads)):
        return [2 ** (-8 / num_heads * (n + 1)) for n in range(num_heads)]
    power = 2 ** int(math.log2(num_heads))
    return alibi_slopes(power) + alibi_slopes(2 * power)[0::2][: num_heads - power]


def alibi(num_heads, T, S, query_offset=0):
    bias = np.zeros((num_heads, T, S))
    for n, slope in enumerate(alibi_slopes(num_heads)):
        for i in range(T):
            for j in range(S):
                bias[n, i, j] = -slope * abs(i + query_offset - j)
    return bias


def t5_bucket(relative_position, *, bidirectional, num_buckets=32, max_distance=128):
    """One bucket, by the logarithm; 1e-9 keeps the rounding of a whole result from taking it one down."""
    first = 0
    distance = max(-relative_position, 0)
    if bidirectional:
        num_buckets //= 2
        first = num_buckets if relative_position > 0 else 0
        distance = abs(relative_position)
    single = num_buckets // 2
    if distance < single:
        return first + distance
    share = math.log(distance / single) / math.log(max_distance / single)
    return first + min(single + math.floor(share * (num_buckets - single) + 1e-9), num_buckets - 1)


def t5(table, T, S, query_offset=0, **options):
    bias = np.zeros((table.shape[1], T, S))
    for i in range(T):
        for j in range(S):
            bias[:, i, j] = table[t5_bucket(j - i - query_offset, num_buckets=len(table), **options)]
    return bias


def relative_vector(table, i, j, query_offset=0):
    """a_ij = w_{clip(j - i, -L, L)} (Shaw et al. 2018, section 3.2); the table starts with w_{-L}."""
    L = len(table) // 2
    return table[min(max(j - i - query_offset, -L), L) + L]


def shaw_scores(query, table, S, query_offset=0):
    """[N T S] of query [T N H]."""
    T, N, _ = query.shape
    scores = np.zeros((N, T, S))
    for n in range(N):
        for i in range(T):
            for j in range(S):
                scores[n, i, j] = query[i, n] @ relative_vector(table, i, j, query_offset)
    return scores


def shaw_values(weights, table, query_offset=0):
    """[T N V] of weights [N T S]."""
    N, T, S = weights.shape
    values = np.zeros((T, N, table.shape[1]))
    for n in range(N):
        for i in range(T):
            for j in range(S):
                values[i, n] += weights[n, i, j] * relative_vector(table, i, j, query_offset)
    return values
