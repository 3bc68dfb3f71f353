"""Which keys each query sees, as sets in the papers' words, in plain loops."""

import numpy as np


def visible(T, S, sees):
    """[T S] of a rule that gives the set of keys of query i; keys outside 0 ... S - 1 do not exist."""
    mask = np.zeros((T, S), bool)
    for i in range(T):
        for j in sees(i):
            if 0 <= j < S:
                mask[i, j] = True
    return mask


def prefix(T, S, prefix_length, query_offset=0):
    """The prefix, and everything up to the query itself (Raffel et al. 2020, section 3.2.1)."""
    return visible(T, S, lambda i: set(range(min(prefix_length, S))) | set(range(i + query_offset + 1)))


def dilated(T, S, left, right, dilation, query_offset=0):
    """`left` keys before and `right` after, `dilation` apart (Beltagy et al. 2020, section 3.1); None: more than there are."""
    everything = T + S + abs(query_offset)
    left, right = (everything if side is None else side for side in (left, right))
    return visible(T, S, lambda i: {i + query_offset + m * dilation for m in range(-left, right + 1)})


def strided(T, S, stride, query_offset=0):
    """Child et al. 2019, section 4.3: A1 = {t ... i} for t = max(0, i - l), A2 = {j <= i : (i - j) mod l = 0}."""

    def sees(i):
        i += query_offset
        A1 = set(range(max(0, i - stride), i + 1))
        A2 = {j for j in range(i + 1) if (i - j) % stride == 0}
        return A1 | A2

    return visible(T, S, sees)


def fixed(T, S, stride, summary, query_offset=0):
    """Child et al. 2019, section 4.3: A1 = {j <= i of the same block}, A2 = {j <= i : j mod l in {l - c ... l - 1}}."""

    def sees(i):
        i += query_offset
        A1 = {j for j in range(i + 1) if j // stride == i // stride}
        A2 = {j for j in range(i + 1) if j % stride in range(stride - summary, stride)}
        return A1 | A2

    return visible(T, S, sees)
