"""sparsemax and 1.5-entmax of one row in float64 NumPy: by the conditions that define them, and by the papers' algorithms."""

import numpy as np


def on_seen(transform, scores, mask):
    """The weights of one row, `transform` of the scores that the mask allows; all zero where it allows none."""
    weights = np.zeros(len(scores))
    seen = np.flatnonzero(mask & ~np.isneginf(scores))
    if len(seen):
        weights[seen] = transform(scores[seen])
    return weights


def sparsemax(z):
    """Martins and Astudillo 2016, Algorithm 1."""
    ordered = sorted(z, reverse=True)
    k = max(k for k in range(1, len(z) + 1) if 1 + k * ordered[k - 1] > sum(ordered[:k]))
    tau = (sum(ordered[:k]) - 1) / k
    return np.array([max(value - tau, 0) for value in z])


def entmax15(z):
    """Peters, Niculae and Martins 2019, Algorithm 2."""
    ordered = sorted((value / 2 for value in z), reverse=True)
    for k in range(len(z), 0, -1):
        mean = sum(ordered[:k]) / k
        variation = sum((value - mean) ** 2 for value in ordered[:k])
        if variation <= 1 and ordered[k - 1] > (tau := mean - np.sqrt((1 - variation) / k)):
            return np.array([max(value / 2 - tau, 0) ** 2 for value in z])
    raise AssertionError("the highest score alone is always a solution")


def entmax_by_bisection(z, alpha):
    """[(alpha - 1) z - tau]_+^(1 / (alpha - 1)) with tau such that the sum is 1; sparsemax for alpha = 2."""
    scaled = (alpha - 1) * z
    low, high = scaled.max() - 1, scaled.max()
    for _ in range(200):
        tau = (low + high) / 2
        total = (np.maximum(scaled - tau, 0) ** (1 / (alpha - 1))).sum()
        low, high = (tau, high) if total > 1 else (low, tau)
    return np.maximum(scaled - tau, 0) ** (1 / (alpha - 1))


def sparsemax_jacobian(z):
    """Martins and Astudillo 2016, section 2.5: Diag(s) - s s^T / |support|, s = 1 on the support."""
    s = (sparsemax(z) > 0).astype(float)
    return np.diag(s) - np.outer(s, s) / s.sum()


def entmax15_jacobian(z):
    """Peters, Niculae and Martins 2019, section 3: Diag(s) - s s^T / sum(s), s = weights^(2 - 1.5)."""
    s = np.sqrt(entmax15(z))
    return np.diag(s) - np.outer(s, s) / s.sum()
