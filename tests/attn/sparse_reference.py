"""The masks of the sparse patterns in plain loops, to be checked by eye against the papers."""

import numpy as np


def drawn(T, S, sees):
    """The [T S] matrix of a rule about query i and key j."""
    return np.array([[bool(sees(i, j)) for j in range(S)] for i in range(T)], bool).reshape(T, S)


def sliding_window(T, S, *, left, right, num_global=0, query_offset=0):
    """Longformer, section 3.1: a window, and tokens that see all and are seen by all."""

    def sees(i, j):
        p = i + query_offset
        near = (left is None or j >= p - left) and (right is None or j <= p + right)
        return near or j < num_global or 0 <= p < num_global

    return drawn(T, S, sees)


def dilated(T, S, *, left, right, dilation, query_offset=0):
    """Longformer, section 3.1: the keys p + m dilation."""

    def sees(i, j):
        m, rest = divmod(j - (i + query_offset), dilation)
        return rest == 0 and (left is None or m >= -left) and (right is None or m <= right)

    return drawn(T, S, sees)


def strided(T, S, *, stride, query_offset=0):
    """Sparse transformers, section 4.2: A^(1) = {t ... i} with t = max(0, i - l), A^(2) = {j : (i - j) mod l = 0}, causal."""

    def sees(i, j):
        p = i + query_offset
        return j <= p and (j >= max(0, p - stride) or (p - j) % stride == 0)

    return drawn(T, S, sees)


def fixed(T, S, *, stride, summary=1, query_offset=0):
    """Section 4.2 as well: A^(1) = {j : floor(j / l) = floor(i / l)}, A^(2) = {j : j mod l in {l - c, ..., l}}, causal."""

    def sees(i, j):
        p = i + query_offset
        return j <= p and (j // stride == p // stride or j % stride >= stride - summary)

    return drawn(T, S, sees)


def blocks(T, S, block_mask, block_size):
    """The block mask with each entry as a square of queries and keys."""
    return drawn(T, S, lambda i, j: block_mask[i // block_size, j // block_size])


def top_k(scores, mask, k):
    """Of one query: the k visible keys with the largest scores, the lower index first among equal ones."""
    visible = [j for j in range(len(scores)) if mask[j]]
    best = sorted(visible, key=lambda j: (-scores[j], j))[:k]
    return np.array([j in best for j in range(len(scores))], bool)
