"""attn: attention mechanisms as pure JAX functions, one meaning for all.

Axes, one letter each in every docstring and annotation:

    B batch (any number of axes, *B)    T query (target) length    S key (source) length
    N query heads    K key/value heads    H head width    V value head width    D model width    A alignment width

Multi-head functions take [*B T N H], single-head ones [*B T D].  Scores, weights, biases and masks are [*B N T S] ([*B T S]
for one head), lse is [*B N T].  Masks are Boolean, True = attend.  A query that may attend to nothing has weights and context
0 and gives no gradient; what is masked has no influence, not even as NaN.  Softmax is computed in float32 or wider.

normalize: from scores to weights
    masked_softmax                  softmax over the allowed keys               Bahdanau et al. 2015, eq. 6
masks: who sees whom
    causal_mask                     j <= i + offset                             Vaswani et al. 2017, 3.2.3
    padding_mask                    j < length
    sliding_window_mask             left keys before, right keys after          Beltagy et al. 2020, 3.1
    segment_mask                    same document
positions
    sinusoidal_positions            sines and cosines                           Vaswani et al. 2017, 3.5
    learned_positions               rows of a table, never clamped              Gehring et al. 2017, 3.1
additive: v . tanh(W q + U k)                                                   Bahdanau et al. 2015, A.1.2
    additive_attention, additive_weights, additive_scores
    AdditiveParams, init_additive, project_keys
dot_product: softmax(Q K^T / sqrt(H)) V                                         Vaswani et al. 2017, eq. 1
    dot_product_attention           the context
    dot_product_attention_and_lse   and the log of the softmax sum              Dao et al. 2022, 3.1
    dot_product_weights             the weights
    select_implementation           what implementation="auto" means
multi_head: Concat(head_1 ... head_N) W^O                                       Vaswani et al. 2017, 3.2.2
    multi_head_attention            self-, masked self- and cross-attention, grouped queries (Ainslie et al. 2023)
    multi_head_weights              its weights, by head
    MultiHeadParams, init_multi_head, split_heads, merge_heads
    project_query, project_key_value, project_output       its three steps around dot_product_attention
kv_cache: keys and values of the tokens decoded so far
    KVCache, init_cache, update_cache
"""

from attn.additive import (
    AdditiveParams,
    additive_attention,
    additive_scores,
    additive_weights,
    init_additive,
    project_keys,
)
from attn.dot_product import (
    dot_product_attention,
    dot_product_attention_and_lse,
    dot_product_weights,
    select_implementation,
)
from attn.kv_cache import KVCache, init_cache, update_cache
from attn.masks import causal_mask, padding_mask, segment_mask, sliding_window_mask
from attn.multi_head import (
    MultiHeadParams,
    init_multi_head,
    merge_heads,
    multi_head_attention,
    multi_head_weights,
    project_key_value,
    project_output,
    project_query,
    split_heads,
)
from attn.normalize import masked_softmax
from attn.positions import learned_positions, sinusoidal_positions

__all__ = [
    "AdditiveParams",
    "KVCache",
    "MultiHeadParams",
    "additive_attention",
    "additive_scores",
    "additive_weights",
    "causal_mask",
    "dot_product_attention",
    "dot_product_attention_and_lse",
    "dot_product_weights",
    "init_additive",
    "init_cache",
    "init_multi_head",
    "learned_positions",
    "masked_softmax",
    "merge_heads",
    "multi_head_attention",
    "multi_head_weights",
    "padding_mask",
    "project_key_value",
    "project_keys",
    "project_output",
    "project_query",
    "segment_mask",
    "select_implementation",
    "sinusoidal_positions",
    "sliding_window_mask",
    "split_heads",
    "update_cache",
]
