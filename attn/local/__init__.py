"""Local attention (Luong, Pham, Manning 2015, section 3.2): a window of 2D + 1 keys around one source position p_t.

    p_t    = t                                                        local-m, monotonic
    p_t    = S sigmoid(v_p . tanh(W_p h_t))                           local-p, predictive, eq. 9
    a_t(s) = align(h_t, h_s)                                          local-m, |s - p_t| <= D
    a_t(s) = align(h_t, h_s) exp(-(s - p_t)^2 / (2 sigma^2))          local-p, |s - p_t| <= D, sigma = D/2, eq. 10
    c_t    = sum_s a_t(s) h_s

where align is the softmax of eq. 7 inside the window.  Its score is dot, general or concat (`attn.multiplicative`).

Names: D is `window`, S is `key_lengths` or the number of keys, W_p is `position_kernel`, v_p is `position_vector`.  Positions
t and s count from zero.  Where the window crosses an end of the sentence, the part outside is ignored.
"""

from attn.local.monotonic import local_monotonic_attention, local_monotonic_weights
from attn.local.predictive import (
    LocalParams,
    init_local,
    local_predictive_attention,
    local_predictive_weights,
    predicted_positions,
)

__all__ = [
    "LocalParams",
    "init_local",
    "local_monotonic_attention",
    "local_monotonic_weights",
    "local_predictive_attention",
    "local_predictive_weights",
    "predicted_positions",
]
