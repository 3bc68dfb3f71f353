"""attn: attention mechanisms as pure JAX functions, one meaning for all.

Axes, one letter each in every docstring and annotation:

    B batch (any number of axes, *B)    T query (target) length    S key (source) length
    N query heads    K key/value heads    H head width    V value head width    D model width    A alignment width

Multi-head functions take [*B T N H], single-head ones [*B T D].  Scores, weights, biases and masks are [*B N T S] ([*B T S]
for one head), lse is [*B N T].  Masks are Boolean, True = attend.  A query that may attend to nothing has weights and context
0 and gives no gradient; what is masked has no influence, not even as NaN.  Softmax is computed in float32 or wider.

normalize: from scores to weights
    masked_softmax                  softmax over the allowed keys               Bahdanau et al. 2015, eq. 6
    sparsemax                       the nearest point of the simplex            Martins and Astudillo 2016, eq. 2
    entmax15                        between the two                             Peters et al. 2019, alpha = 1.5
masks: who sees whom
    causal_mask                     j <= i + offset                             Vaswani et al. 2017, 3.2.3
    padding_mask                    j < length
    sliding_window_mask             left keys before, right keys after          Beltagy et al. 2020, 3.1
    dilated_mask                    with gaps                                   Beltagy et al. 2020, 3.1
    segment_mask                    same document
    prefix_mask                     causal, but for a prefix that all see       Raffel et al. 2020, 3.2.1
    strided_mask, fixed_mask        patterns of the Sparse Transformer          Child et al. 2019, 4.3
positions
    sinusoidal_positions            sines and cosines                           Vaswani et al. 2017, 3.5
    learned_positions               rows of a table, never clamped              Gehring et al. 2017, 3.1
    apply_rope                      rotated queries and keys                    Su et al. 2021, eq. 34
    alibi_slopes, alibi_bias        a bias that falls with distance             Press et al. 2022, 3
    t5_bucket, t5_bias              a learned bias by distance                  Raffel et al. 2020, 2.1
    shaw_scores, shaw_values        learned vectors by distance                 Shaw et al. 2018, eq. 3-5
additive: v . tanh(W q + U k)                                                   Bahdanau et al. 2015, A.1.2
    additive_attention, additive_weights, additive_scores
    AdditiveParams, init_additive, project_keys, select_additive_implementation
multiplicative: q . k,  q . W k,  v . tanh(W [q ; k])                           Luong et al. 2015, 3.1
    dot_attention, dot_weights, dot_scores
    general_attention, general_weights, general_scores, GeneralParams, init_general
    concat_attention, concat_weights, concat_scores, ConcatParams, init_concat
local: only the keys near a place
    local_monotonic_attention, local_monotonic_weights     around p_t = t       Luong et al. 2015, 3.2
    local_predictive_attention, local_predictive_weights   around a learned p_t Luong et al. 2015, eq. 9-10
    LocalParams, init_local, predicted_positions
hard: one key, not an average
    hard_attention, HardSample      drawn from the weights                      Xu et al. 2015, eq. 8-9
    reinforce_loss                  its gradient by the score function          Xu et al. 2015, eq. 11; Williams 1992
    straight_through_attention, straight_through_weights   hard forwards, soft backwards   Jang et al. 2017
    marginal_log_likelihood         the exact sum over choices                  Wu, Shapiro, Cotterell 2018
dot_product: softmax(Q K^T / sqrt(H)) V                                         Vaswani et al. 2017, eq. 1
    dot_product_attention           the context
    dot_product_attention_and_lse   and the log of the softmax sum              Dao et al. 2022, 3.1
    dot_product_weights             the weights
    select_implementation           what implementation="auto" means
    flex_attention                  scores and mask as functions of one pair    Dong et al. 2024
    create_block_mask, BlockMask    the blocks of a mask that need computing    Dong et al. 2024
    mods                            ready-made functions of one pair, a module  Dong et al. 2024
    merge_attention                 two sets of keys joined                     Dao et al. 2022, 3.1
multi_head: Concat(head_1 ... head_N) W^O                                       Vaswani et al. 2017, 3.2.2
    multi_head_attention            self-, masked self- and cross-attention, grouped queries (Ainslie et al. 2023)
    multi_head_weights              its weights, by head
    MultiHeadParams, init_multi_head, split_heads, merge_heads
    project_query, project_key_value, project_output       its three steps around dot_product_attention
kv_cache: keys and values of the tokens decoded so far
    KVCache, init_cache, update_cache
sparse: the work of the pattern only
    sliding_window_attention        a window, and global tokens                 Beltagy et al. 2020, 3.1
    dilated_attention               a window with gaps                          Beltagy et al. 2020, 3.1
    strided_attention, fixed_attention                                          Child et al. 2019, 4.3
    block_sparse_attention          the blocks of a mask                        Gray et al. 2017
    top_k_attention                 the k largest scores of each query          Gupta et al. 2021
linear: phi(q) (sum phi(k) v^T) / (phi(q) . sum phi(k))                         Katharopoulos et al. 2020, eq. 4-6
    linear_attention                both ways, or causal in chunks
    linear_attention_step, linear_state, LinearState, init_linear_state         as a recurrence, eq. 16-20
    random_features                 of the map "exp"                            Choromanski et al. 2021
cost: what a layer takes, by formula
    attention_cost, additive_cost, linear_cost, window_pairs, AttentionCost
"""

from attn.additive import AdditiveParams, additive_attention, additive_scores, additive_weights, init_additive, project_keys
from attn.additive_blocks import select_additive_implementation
from attn.block_mask import BlockMask, create_block_mask
from attn.cost import AttentionCost, additive_cost, attention_cost, linear_cost, window_pairs
from attn.dot_product import dot_product_attention, dot_product_attention_and_lse, dot_product_weights
from attn.feature_maps import random_features
from attn.flex import flex_attention
from attn.hard import (
    HardSample,
    hard_attention,
    marginal_log_likelihood,
    reinforce_loss,
    straight_through_attention,
    straight_through_weights,
)
from attn.kv_cache import KVCache, init_cache, update_cache
from attn.linear import linear_attention, linear_attention_step, linear_state
from attn.linear_recurrence import LinearState, init_linear_state
from attn.local import (
    LocalParams,
    init_local,
    local_monotonic_attention,
    local_monotonic_weights,
    local_predictive_attention,
    local_predictive_weights,
    predicted_positions,
)
from attn.masks import (
    causal_mask,
    dilated_mask,
    fixed_mask,
    padding_mask,
    prefix_mask,
    segment_mask,
    sliding_window_mask,
    strided_mask,
)
from attn.merge import merge_attention
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
from attn.multiplicative import (
    ConcatParams,
    GeneralParams,
    concat_attention,
    concat_scores,
    concat_weights,
    dot_attention,
    dot_scores,
    dot_weights,
    general_attention,
    general_scores,
    general_weights,
    init_concat,
    init_general,
)
from attn.normalize import entmax15, masked_softmax, sparsemax
from attn.positions import (
    alibi_bias,
    alibi_slopes,
    apply_rope,
    learned_positions,
    shaw_scores,
    shaw_values,
    sinusoidal_positions,
    t5_bias,
    t5_bucket,
)
from attn.selection import select_implementation
from attn.sparse import (
    block_sparse_attention,
    dilated_attention,
    fixed_attention,
    sliding_window_attention,
    strided_attention,
    top_k_attention,
)

__all__ = [
    "AdditiveParams",
    "AttentionCost",
    "BlockMask",
    "ConcatParams",
    "GeneralParams",
    "HardSample",
    "KVCache",
    "LinearState",
    "LocalParams",
    "MultiHeadParams",
    "additive_attention",
    "additive_cost",
    "additive_scores",
    "additive_weights",
    "alibi_bias",
    "alibi_slopes",
    "apply_rope",
    "attention_cost",
    "block_sparse_attention",
    "causal_mask",
    "concat_attention",
    "concat_scores",
    "concat_weights",
    "create_block_mask",
    "dilated_attention",
    "dilated_mask",
    "dot_attention",
    "dot_product_attention",
    "dot_product_attention_and_lse",
    "dot_product_weights",
    "dot_scores",
    "dot_weights",
    "entmax15",
    "fixed_attention",
    "fixed_mask",
    "flex_attention",
    "general_attention",
    "general_scores",
    "general_weights",
    "hard_attention",
    "init_additive",
    "init_cache",
    "init_concat",
    "init_general",
    "init_linear_state",
    "init_local",
    "init_multi_head",
    "learned_positions",
    "linear_attention",
    "linear_attention_step",
    "linear_cost",
    "linear_state",
    "local_monotonic_attention",
    "local_monotonic_weights",
    "local_predictive_attention",
    "local_predictive_weights",
    "marginal_log_likelihood",
    "masked_softmax",
    "merge_attention",
    "merge_heads",
    "multi_head_attention",
    "multi_head_weights",
    "padding_mask",
    "predicted_positions",
    "prefix_mask",
    "project_key_value",
    "project_keys",
    "project_output",
    "project_query",
    "random_features",
    "reinforce_loss",
    "segment_mask",
    "select_additive_implementation",
    "select_implementation",
    "shaw_scores",
    "shaw_values",
    "sinusoidal_positions",
    "sliding_window_attention",
    "sliding_window_mask",
    "sparsemax",
    "split_heads",
    "straight_through_attention",
    "straight_through_weights",
    "strided_attention",
    "strided_mask",
    "t5_bias",
    "t5_bucket",
    "top_k_attention",
    "update_cache",
    "window_pairs",
]
