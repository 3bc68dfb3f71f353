"""Linear attention in plain loops of float64 NumPy, O(T S), to be checked by eye against the papers.

Similarities are kept as logarithms, so that no exponential leaves the range of float64.
"""

import numpy as np


def log_features(x, feature_map, projection=None):
    """log phi(x) of one query or key."""
    with np.errstate(divide="ignore"):
        if feature_map == "elu1":
            return np.where(x > 0, np.log(np.maximum(x, 0) + 1), x)
        if feature_map == "relu":
            return np.log(np.maximum(x, 0))
        if feature_map == "exp":
            x = x / len(x) ** 0.25
            return projection @ x - x @ x / 2 - np.log(len(projection)) / 2
        return np.log(feature_map(x))


def linear(query, key, value, *, feature_map, projection=None, is_causal=False, key_length=None):
    """sum_j phi(q_i) . phi(k_j) v_j / sum_j phi(q_i) . phi(k_j) for query [T N H], key [S K H], value [S K V]."""
    (T, N, _), (S, K, V) = query.shape, value.shape
    log_phi_k = [[log_features(key[j, k], feature_map, projection) for k in range(K)] for j in range(S)]
    context = np.zeros((T, N, V))
    for n in range(N):
        k = n // (N // K)
        for i in range(T):
            log_phi_q = log_features(query[i, n], feature_map, projection)
            seen = [j for j in range(S) if (key_length is None or j < key_length) and (not is_causal or j <= i)]
            log_similarity = [np.logaddexp.reduce(log_phi_q + log_phi_k[j][k]) for j in seen]
            log_total = np.logaddexp.reduce(log_similarity)
            if log_total > -np.inf:
                for j, log_s in zip(seen, log_similarity, strict=True):
                    context[i, n] += np.exp(log_s - log_total) * value[j, k]
    return context
