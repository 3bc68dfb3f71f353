"""Global and local attention of Luong, Pham, Manning (2015) in plain loops of float64 NumPy, to be checked by eye.

`score` is () for dot, (W,) for general, (W, v) for concat.
"""

import numpy as np
from attention_reference import average, softmax


def score_of(h_t, h_s, score):
    """Section 3.1."""
    if len(score) == 0:
        return h_t @ h_s
    if len(score) == 1:
        return h_t @ score[0] @ h_s
    W, v = score
    return v @ np.tanh(np.concatenate([h_t, h_s]) @ W)


def luong(query, keys, values, mask, score):
    """Context [T V] and weights [T S], eq. 7, of query [T Dq], keys [S Dk], values [S V], mask [T S]."""
    context, alpha = np.zeros((len(query), values.shape[1])), np.zeros((len(query), len(keys)))
    for t in range(len(query)):
        scores = np.array([score_of(query[t], keys[s], score) for s in range(len(keys))])
        alpha[t] = softmax(scores, mask[t])
        context[t] = average(alpha[t], values)
    return context, alpha


def local_monotonic(query, keys, values, mask, score, D, offset=0):
    """p_t = t + offset, section 3.2."""
    window = np.array([[abs(s - (t + offset)) <= D for s in range(len(keys))] for t in range(len(query))], bool)
    return luong(query, keys, values, mask & window.reshape(mask.shape), score)


def position(h_t, S, W_p, v_p):
    """Eq. 9."""
    return S / (1 + np.exp(-(v_p @ np.tanh(h_t @ W_p))))


def local_predictive(query, keys, values, mask, score, D, W_p, v_p):
    """Eq. 10, of one sentence without padding: S is the number of keys."""
    context, alpha = np.zeros((len(query), values.shape[1])), np.zeros((len(query), len(keys)))
    for t in range(len(query)):
        p_t, sigma = position(query[t], len(keys), W_p, v_p), D / 2
        scores = np.array([score_of(query[t], keys[s], score) for s in range(len(keys))])
        align = softmax(scores, [mask[t, s] and abs(s - p_t) <= D for s in range(len(keys))])
        for s in range(len(keys)):
            alpha[t, s] = align[s] * np.exp(-((s - p_t) ** 2) / (2 * sigma**2))
        context[t] = average(alpha[t], values)
    return context, alpha
