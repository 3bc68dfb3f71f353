"""Linear attention in plain loops of float64 NumPy, O(T S), to be checked by eye against the papers.

Everything is the logarithm of what the papers write, so that no exponential leaves the range of float64.
"""

import numpy as np


def log_features(x, feature_map, projection=None):
    """log phi(x) of one query or key."""
    with np.errstate(divide="ignore"):
        if feature_map == "elu1":
            return np.array([np.log(x_f + 1) if x_f > 0 else x_f for x_f in x])
        if feature_map == "relu":
            return np.log(np.array([max(x_f, 0.0) for x_f in x]))
        if feature_map == "exp":
            x = x / len(x) ** 0.25
            return np.array([w @ x - x @ x / 2 - np.log(len(projection)) / 2 for w in projection])
        return np.log(feature_map(x))


def log_sum(terms):
    peak = max(terms, default=-np.inf)
    return peak if peak == -np.inf else peak + np.log(sum(np.exp(term - peak) for term in terms))


def linear(query, key, value, *, feature_map, projection=None, is_causal=False, key_length=None):
    """sum_j phi(q_i) . phi(k_j) v_j / sum_j phi(q_i) . phi(k_j) for query [T N H], key [S K H], value [S K V]."""
    (T, N, _), (S, K, V) = query.shape, value.shape
    context = np.zeros((T, N, V))
    for n in range(N):
        k = n // (N // K)
        for i in range(T):
            seen = [j for j in range(S) if (key_length is None or j < key_length) and (not is_causal or j <= i)]
            phi_q = log_features(query[i, n], feature_map, projection)
            similarity = [log_sum(phi_q + log_features(key[j, k], feature_map, projection)) for j in seen]
            total = log_sum(similarity)
            if total > -np.inf:
                context[i, n] = sum(np.exp(s - total) * value[j, k] for s, j in zip(similarity, seen, strict=True))
    return context
