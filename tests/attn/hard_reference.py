"""Hard attention in plain loops of float64 NumPy, to be checked by eye against Xu et al. 2015 and Jang et al. 2017.

One query at a time: scores, mask and noise are [S], values [S V].
"""

import numpy as np
from attention_reference import softmax


def choose(scores, mask, noise):
    """argmax_j (e_j + g_j) over the allowed keys; -1 where there is none."""
    best = -1
    for j in np.flatnonzero(mask):
        if best < 0 or scores[j] + noise[j] > scores[best] + noise[best]:
            best = int(j)
    return best


def context(values, index):
    return np.zeros(values.shape[-1]) if index < 0 else values[index]


def log_prob(scores, mask, index):
    return 0.0 if index < 0 else np.log(softmax(scores, mask)[index])


def entropy(scores, mask):
    """-sum_j alpha_j log alpha_j over the keys with a weight."""
    return -sum(alpha * np.log(alpha) for alpha in softmax(scores, mask) if alpha > 0)


def relaxed(scores, mask, noise, temperature):
    """The soft weights whose gradient the straight-through weights have."""
    return softmax((scores + noise) / temperature, mask)


def marginal(scores, log_likelihoods, mask):
    """log sum_j alpha_j p(y | j)."""
    alpha = softmax(scores, mask)
    likelihood = sum(alpha[j] * np.exp(log_likelihoods[j]) for j in np.flatnonzero(alpha))
    return np.log(likelihood) if likelihood > 0 else -np.inf


def posterior(scores, log_likelihoods, mask):
    """p(j | y) = alpha_j p(y | j) / sum_k alpha_k p(y | k)."""
    joint = softmax(scores, mask) * np.exp(np.where(mask, log_likelihoods, -np.inf))
    return joint / joint.sum() if joint.sum() > 0 else joint


def by_query(function, *arrays):
    """`function` for each query: arrays [*B T ...] to results [*B T ...]."""
    *batch, T = arrays[0].shape[:-1]
    results = [function(*(array[index] for array in arrays)) for index in np.ndindex(*batch, T)]
    return np.array(results).reshape(*batch, T, *np.shape(results[0]))
