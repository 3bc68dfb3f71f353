"""The mathematics in plain loops of float64 NumPy, to be checked by eye against the papers."""

import numpy as np


def softmax(scores, mask):
    """Weights of one query over its keys; all zero where the mask allows none."""
    weights = np.zeros(len(scores))
    seen = np.flatnonzero(mask)
    if len(seen):
        exps = np.exp(scores[seen] - scores[seen].max())
        weights[seen] = exps / exps.sum()
    return weights


def lse(scores, mask):
    seen = np.flatnonzero(mask)
    if not len(seen):
        return -np.inf
    peak = scores[seen].max()
    return peak + np.log(np.exp(scores[seen] - peak).sum())


def average(weights, values):
    """sum_j alpha_j v_j over the keys with a weight."""
    return sum((weights[j] * values[j] for j in np.flatnonzero(weights)), np.zeros(values.shape[-1]))


def sees(i, j, *, is_causal=False, query_offset=0, window=None, query_length=None, key_length=None, query_ids=None, key_ids=None):
    """Whether query i may attend to key j."""
    position = i + query_offset
    left, right = window if isinstance(window, tuple) else (window, window)
    return (
        (not is_causal or j <= position)
        and (left is None or j >= position - left)
        and (right is None or j <= position + right)
        and (query_length is None or i < query_length)
        and (key_length is None or j < key_length)
        and (query_ids is None or query_ids[i] == key_ids[j])
    )


def visible(T, S, **options):
    return np.array([[sees(i, j, **options) for j in range(S)] for i in range(T)], bool).reshape(T, S)


def dot_product(query, key, value, mask, *, bias=None, scale=None, softcap=None):
    """Context [T N V], lse [N T] and weights [N T S] of query [T N H], key [S K H], value [S K V], mask [N T S]."""
    (T, N, H), (S, K, V) = query.shape, value.shape
    scale = H**-0.5 if scale is None else scale
    context, sums, alpha = np.zeros((T, N, V)), np.zeros((N, T)), np.zeros((N, T, S))
    for n in range(N):
        k = n // (N // K)
        for i in range(T):
            scores = np.array([scale * query[i, n] @ key[j, k] for j in range(S)])
            if bias is not None:
                scores = scores + bias[n, i]
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            alpha[n, i], sums[n, i] = softmax(scores, mask[n, i]), lse(scores, mask[n, i])
            context[i, n] = average(alpha[n, i], value[:, k])
    return context, sums, alpha


def dot_product_and_gradients(query, key, value, mask, factor, *, bias, softcap, context_weight, lse_weight):
    """Context, lse, and the gradients of sum(context * context_weight) + sum(lse * lse_weight) to query, key, value and scores.

    All pairs at once, where `dot_product` goes pair by pair: for long inputs.  `factor` multiplies the weights (dropout).
    """
    N, K, scale = query.shape[1], key.shape[1], query.shape[-1] ** -0.5
    keys, values = (np.repeat(x, N // K, axis=1) for x in (key, value))
    s = scale * np.einsum("tnh,snh->nts", query, keys) + bias
    e = np.where(mask, softcap * np.tanh(s / softcap), -np.inf)
    peak = np.maximum(e.max(-1, initial=-np.inf), np.finfo(float).min)
    total = np.exp(e - peak[..., None]).sum(-1)
    alpha = np.exp(e - peak[..., None]) / np.where(total == 0, 1, total)[..., None]
    context, sums = np.einsum("nts,snv->tnv", alpha * factor, values), np.full(total.shape, -np.inf)
    sums[total > 0] = peak[total > 0] + np.log(total[total > 0])
    # d context / d e and d lse / d e, then back through the cap and the product.
    to_alpha = factor * np.einsum("tnv,snv->nts", context_weight, values)
    to_e = alpha * (to_alpha - (alpha * to_alpha).sum(-1, keepdims=True) + lse_weight[..., None])
    to_s = to_e * (1 - np.tanh(s / softcap) ** 2)
    grouped = [np.einsum("nts,tnh->snh", *pair) for pair in ((scale * to_s, query), (alpha * factor, context_weight))]
    to_key, to_value = (x.reshape(len(key), K, N // K, -1).sum(2) for x in grouped)
    return context, sums, scale * np.einsum("nts,snh->tnh", to_s, keys), to_key, to_value, to_s


def additive(query, keys, values, params, mask):
    """Context [T V] and weights [T S] of query [T Dq], keys [S Dk], values [S V], mask [T S]."""
    W, U, v = params
    context, alpha = np.zeros((len(query), values.shape[1])), np.zeros((len(query), len(keys)))
    for i in range(len(query)):
        scores = np.array([v @ np.tanh(query[i] @ W + keys[j] @ U) for j in range(len(keys))])
        alpha[i] = softmax(scores, mask[i])
        context[i] = average(alpha[i], values)
    return context, alpha


def multi_head(params, query_input, key_input, value_input, mask):
    """MultiHead(X) [T D] for mask [N T S]."""
    query = np.einsum("td,dnh->tnh", query_input, params.query_kernel) + params.query_bias
    key = np.einsum("sd,dkh->skh", key_input, params.key_kernel) + params.key_bias
    value = np.einsum("sd,dkv->skv", value_input, params.value_kernel) + params.value_bias
    context, _, _ = dot_product(query, key, value, mask)
    return np.einsum("tnv,nvd->td", context, params.output_kernel) + params.output_bias


def gradient(function, *arrays, step=1e-5):
    """d function / d array for every array, by central differences (error about 1e-9 in float64)."""
    results = []
    for n, array in enumerate(arrays):
        result = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            sides = []
            for sign in (1, -1):
                moved = array.copy()
                moved[index] += sign * step
                sides.append(function(*arrays[:n], moved, *arrays[n + 1 :]))
            result[index] = (sides[0] - sides[1]) / (2 * step)
        results.append(result)
    return results
