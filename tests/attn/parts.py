"""The table behind test_laws_of_parts.py: every public function that does not attend, one row each.

A row gives the function, the arrays it is called with (each a float64 or integer NumPy array, or a tree of them), its options,
and calls that it must refuse, with the error they must raise.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from mechanisms import ADDITIVE, CONCAT, FEATURES, GENERAL, LOCAL, MULTI_HEAD

import attn


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


class Part(NamedTuple):
    """One row."""

    function: Callable
    arrays: tuple[Any, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})
    refused: tuple[tuple[dict[str, Any] | tuple[Any, ...], type[Exception], str], ...] = ()
    """Other options, or other arrays, with the error and its message."""
    half: str | None = None
    """Type of the result for half-precision arrays: "same", "wide" (float32), or None where it does not depend on them."""
    differentiable: bool = True
    """Whether the derivative is that of the value (a sampled or rounded result has none)."""

    def __call__(self, *arrays, **options):
        return self.function(*arrays, **{**self.options, **options})


T, S, D = 3, 4, 4
KEY = jax.random.key(0)
QUERY, KEYS = normal(0, T, D), normal(1, S, D)
HEADS, KEY_HEADS, VALUE_HEADS = normal(2, T, 2, D), normal(3, T, 2, D), normal(4, T, 2, 3)
CACHE = attn.KVCache(normal(5, 6, 2, D), normal(6, 6, 2, 3), np.int32(2))
NEGATIVE_SIZE = ({"T": -2}, ValueError, r"T: expected an integer >= 0, got -2")
FLOAT_OFFSET = ({"query_offset": 1.5}, TypeError, r"query_offset: expected an integer dtype, got float32")


def mask_part(function, **options):
    """Masks over positions: sizes are static, the offset is an array."""
    return Part(
        lambda query_offset, T=3, **options: function(T, 5, query_offset=query_offset, **options),
        (np.int32(1),),
        options,
        (NEGATIVE_SIZE, ((1.5,), TypeError, r"query_offset: expected an integer dtype, got float32")),
    )


def draws(function, *sizes, **options):
    """Functions of a random key and sizes."""
    return Part(lambda key: function(key, *sizes, **options), (KEY,))


PARTS = {
    "causal_mask": mask_part(attn.causal_mask),
    "sliding_window_mask": mask_part(attn.sliding_window_mask, left=1, right=2),
    "dilated_mask": mask_part(attn.dilated_mask, left=1, right=2, dilation=2),
    "strided_mask": mask_part(attn.strided_mask, stride=2),
    "fixed_mask": mask_part(attn.fixed_mask, stride=2),
    "prefix_mask": Part(
        lambda lengths, query_offset, T=3: attn.prefix_mask(lengths, T, 5, query_offset=query_offset),
        (np.int32(2), np.int32(1)),
        refused=(NEGATIVE_SIZE, ((1.5, 1), TypeError, r"prefix_lengths: expected an integer dtype, got float32")),
    ),
    "padding_mask": Part(
        lambda lengths, S=4: attn.padding_mask(lengths, S),
        (np.array([1, 3]),),
        refused=(
            ({"S": -1}, ValueError, r"S: expected an integer >= 0, got -1"),
            ((np.ones(2),), TypeError, r"lengths: expected an integer dtype, got float"),
        ),
    ),
    "segment_mask": Part(
        attn.segment_mask,
        (np.array([0, 0, 1]), np.array([0, 1, 1, 2])),
        refused=(((np.ones(3),), TypeError, r"query_segment_ids: expected an integer dtype, got float"),),
    ),
    "sinusoidal_positions": Part(
        lambda length=3, dim=4, **options: attn.sinusoidal_positions(length, dim, **options),
        refused=(
            ({"length": -1}, ValueError, r"length: expected an integer >= 0, got -1"),
            ({"variant": "t2t"}, ValueError, r"variant: expected 'paper' or 'tensor2tensor', got 't2t'"),
            ({"base": 0}, ValueError, r"base: expected a number > 0, got 0"),
        ),
    ),
    "learned_positions": Part(
        attn.learned_positions,
        (normal(7, 6, D), np.array([0, 5, 2])),
        refused=(
            ((normal(7, 6, D), np.array([6])), ValueError, r"positions: expected 0 <= position < 6 .*, got 6"),
            ((normal(7, 6, D), np.array([-1])), ValueError, r"positions: expected 0 <= position < 6 .*, got -1"),
            ((normal(7, 6), np.array([0])), ValueError, r"table: expected shape \(L, D\), got \(6,\)"),
        ),
        half="same",
    ),
    "apply_rope": Part(
        attn.apply_rope,
        (HEADS, np.array([0, 7, 3])),
        refused=(
            ((HEADS[..., :3], np.arange(T)), ValueError, r"x: expected .*even.*, got"),
            ((HEADS, np.arange(T + 1)), ValueError, r"positions: expected shape .*got \(4,\)"),
            ((HEADS, np.ones(T)), TypeError, r"positions: expected an integer dtype, got float"),
            ({"base": -1.0}, ValueError, r"base: expected a number > 0, got -1.0"),
        ),
        half="same",
    ),
    "alibi_slopes": Part(
        lambda num_heads=6: attn.alibi_slopes(num_heads),
        refused=(({"num_heads": -2}, ValueError, r"num_heads: expected an integer >= \d, got -2"),),
    ),
    "alibi_bias": Part(
        lambda query_offset: attn.alibi_bias(6, T, S, query_offset=query_offset),
        (np.int32(2),),
        refused=(((0.5,), TypeError, r"query_offset: expected an integer dtype, got float32"),),
    ),
    "t5_bucket": Part(
        attn.t5_bucket,
        (np.array([-200, -9, -1, 0, 1, 9, 200]),),
        {"bidirectional": True},
        (
            ((np.ones(3),), TypeError, r"relative_position: expected an integer dtype, got float"),
            ({"num_buckets": 1}, ValueError, r"num_buckets: expected .*, got 1"),
        ),
    ),
    "t5_bias": Part(
        lambda table, query_offset, **options: attn.t5_bias(table, T, S, query_offset=query_offset, **options),
        (normal(8, 32, 2), np.int32(1)),
        {"bidirectional": False},
        (((normal(8, 32), 0), ValueError, r"table: expected shape \(.*\), got \(32,\)"),),
        half="same",
    ),
    "shaw_scores": Part(
        lambda query, table, query_offset: attn.shaw_scores(query, table, S, query_offset=query_offset),
        (HEADS, normal(9, 5, D), np.int32(1)),
        refused=(
            ((HEADS, normal(9, 4, D), 0), ValueError, r"table: expected .*got \(4, 4\)"),
            ((HEADS, normal(9, 5, 3), 0), ValueError, r"table: expected .*got \(5, 3\)"),
        ),
        half="wide",
    ),
    "shaw_values": Part(
        lambda weights, table, query_offset: attn.shaw_values(weights, table, query_offset=query_offset),
        (abs(normal(10, 2, T, S)), normal(9, 5, D), np.int32(1)),
        refused=(((normal(10, 2, T, S), normal(9, 4, D), 0), ValueError, r"table: expected .*got \(4, 4\)"),),
        half="same",
    ),
    "init_additive": draws(attn.init_additive, 4, 6, 5),
    "init_general": draws(attn.init_general, 4, 6),
    "init_concat": draws(attn.init_concat, 4, 6, 5),
    "init_local": draws(attn.init_local, 4, 5),
    "init_multi_head": draws(attn.init_multi_head, 8, 4, num_kv_heads=2, use_bias=True),
    "random_features": draws(attn.random_features, 6, 4),
    "project_keys": Part(
        attn.project_keys,
        (KEYS, ADDITIVE),
        refused=(((KEYS[:, :3], ADDITIVE), ValueError, r"keys: expected shape .* = \(4, 4\), got \(4, 3\)"),),
        half="same",
    ),
    "additive_scores": Part(
        attn.additive_scores,
        (QUERY, KEYS, ADDITIVE),
        refused=(((QUERY[:, :3], KEYS, ADDITIVE), ValueError, r"query: expected shape .* = \(3, 4\), got \(3, 3\)"),),
        half="wide",
    ),
    "dot_scores": Part(
        attn.dot_scores,
        (QUERY, KEYS),
        refused=(((QUERY, KEYS[:, :3]), ValueError, r"keys: expected shape .* = \(4, 4\), got \(4, 3\)"),),
        half="wide",
    ),
    "general_scores": Part(
        attn.general_scores,
        (QUERY, KEYS, GENERAL),
        refused=(((QUERY, KEYS[:, :3], GENERAL), ValueError, r"keys: expected shape .* = \(4, 4\), got \(4, 3\)"),),
        half="wide",
    ),
    "concat_scores": Part(
        attn.concat_scores,
        (QUERY, KEYS, CONCAT),
        refused=(((QUERY, KEYS[:, :3], CONCAT), ValueError, r"\w+: expected .*got \("),),
        half="wide",
    ),
    "hard_attention": Part(
        lambda scores, values: attn.hard_attention(scores, values, key=KEY),
        (normal(11, T, S), normal(12, S, D)),
        refused=(((normal(11, T, S), normal(12, 3, D)), ValueError, r"values: expected shape .*got \(3, 4\)"),),
        differentiable=False,
    ),
    "reinforce_loss": Part(
        lambda log_prob, reward, baseline, entropy, **options: attn.reinforce_loss(
            log_prob, reward, baseline=baseline, entropy=entropy, **options
        ),
        (-abs(normal(13, T)), normal(14, T), normal(15, T), abs(normal(16, T))),
        {"entropy_weight": 0.1},
        (((normal(13, T), normal(14, 2), 0.0, None), ValueError, r"reward: expected .*got \(2,\)"),),
        differentiable=False,
    ),
    "marginal_log_likelihood": Part(
        attn.marginal_log_likelihood,
        (normal(17, T, S), -abs(normal(18, T, S))),
        refused=(((normal(17, T, S), normal(18, T, 3)), ValueError, r"log_likelihoods: expected .*got \(3, 3\)"),),
        half="wide",
    ),
    "split_heads": Part(
        attn.split_heads,
        (QUERY,),
        {"num_heads": 2},
        (({"num_heads": 3}, ValueError, r"num_heads: expected a divisor of the last axis of x \(3, 4\), got 3"),),
        half="same",
    ),
    "merge_heads": Part(
        attn.merge_heads,
        (HEADS,),
        refused=(((QUERY[0],), ValueError, r"x: expected shape \(\*B, T, N, H\), got \(4,\)"),),
        half="same",
    ),
    "project_query": Part(
        lambda query_input, params: attn.project_query(params, query_input),
        (QUERY, MULTI_HEAD),
        refused=(((QUERY[:, :3], MULTI_HEAD), ValueError, r"query_input: expected shape .* = \(3, 4\), got \(3, 3\)"),),
        half="same",
    ),
    "project_key_value": Part(
        lambda key_input, params: attn.project_key_value(params, key_input),
        (KEYS, MULTI_HEAD),
        refused=(((KEYS[:, :3], MULTI_HEAD), ValueError, r"key_input: expected shape .* = \(4, 4\), got \(4, 3\)"),),
        half="same",
    ),
    "project_output": Part(
        lambda context, params, head_mask: attn.project_output(params, context, head_mask=head_mask),
        (normal(19, T, 2, 2), MULTI_HEAD, np.array([1.0, 0.5])),
        refused=(
            ((normal(19, T, 1, 2), MULTI_HEAD, None), ValueError, r"context: expected shape .* = \(3, 2, 2\), got \(3, 1, 2\)"),
            ((normal(19, T, 2, 2), MULTI_HEAD, np.ones(3)), ValueError, r"head_mask: expected shape .*got \(3,\)"),
        ),
        half="same",
    ),
    "init_cache": Part(
        lambda batch_shape=2, max_length=5: attn.init_cache(batch_shape, max_length, 2, 4),
        refused=(({"max_length": -1}, ValueError, r"max_length: expected an integer >= 0, got -1"),),
    ),
    "update_cache": Part(
        attn.update_cache,
        (CACHE, KEY_HEADS, VALUE_HEADS),
        refused=(
            ((CACHE, KEY_HEADS[..., :3], VALUE_HEADS), ValueError, r"key: expected shape .* = \(3, 2, 4\), got \(3, 2, 3\)"),
            ((CACHE._replace(length=jnp.int32(4)), KEY_HEADS, VALUE_HEADS), ValueError, r"cache: expected room for 3 more"),
        ),
    ),
    "init_linear_state": Part(
        lambda batch_shape=(), num_kv_heads=2: attn.init_linear_state(batch_shape, num_kv_heads, D, 3),
        refused=(({"num_kv_heads": -1}, ValueError, r"num_kv_heads: expected an integer >= 0, got -1"),),
    ),
    "linear_state": Part(
        lambda key, value, **options: attn.linear_state(key, value, **options),
        (KEY_HEADS, VALUE_HEADS),
        refused=(
            ({"feature_map": "gelu"}, ValueError, r"feature_map: expected .*elu1.*, got 'gelu'"),
            ((KEY_HEADS, VALUE_HEADS[1:]), ValueError, r"value: expected shape .*got \(2, 2, 3\)"),
        ),
    ),
    "linear_attention_step": Part(
        lambda query, key, value, key_sum_source: attn.linear_attention_step(
            query, key, value, attn.linear_state(*key_sum_source, feature_map="exp", projection=FEATURES),
            feature_map="exp", projection=FEATURES,
        ),
        (HEADS[0], KEY_HEADS[0], VALUE_HEADS[0], (KEY_HEADS, VALUE_HEADS)),
        refused=(
            ((HEADS[0], KEY_HEADS[0, :, :3], VALUE_HEADS[0], (KEY_HEADS, VALUE_HEADS)), ValueError, r"key: .*got \(2, 3\)"),
        ),
    ),
    "select_implementation": Part(lambda T=128, S=128: jnp.array(attn.select_implementation(T, S) == "dense")),
    "select_additive_implementation": Part(
        lambda A=128: jnp.array(attn.select_additive_implementation(16, 128, 128, A) == "blockwise")
    ),
    # Of a mask that depends on an array, so that it can be traced.
    "create_block_mask": Part(
        lambda limit, block_size=(2, 2): attn.create_block_mask(
            lambda b, h, i, j: j <= i + limit, 3, 5, block_size=block_size
        ).live,
        (np.int32(1),),
        refused=(({"block_size": (2, 0)}, ValueError, r"block_size: expected an integer >= 1, got 0"),),
    ),
    "attention_cost": Part(
        lambda model_dim=512, num_heads=8: attn.attention_cost(model_dim, num_heads, batch=2, query_length=10),
        refused=(({"num_heads": 7}, ValueError, r"num_heads: expected a divisor of model_dim = 512.*, got 7"),),
    ),
    "additive_cost": Part(
        lambda align_dim=5: attn.additive_cost(4, 6, align_dim, batch=2, query_length=3, key_length=4),
        refused=(({"align_dim": -1}, ValueError, r"align_dim: expected an integer >= 0, got -1"),),
    ),
    "linear_cost": Part(
        lambda model_dim=512, num_heads=8: attn.linear_cost(model_dim, num_heads, batch=2, query_length=10),
        refused=(({"num_heads": 7}, ValueError, r"num_heads: expected a divisor of model_dim = 512.*, got 7"),),
    ),
    "window_pairs": Part(
        lambda T=5, left=1: attn.window_pairs(T, left=left, right=0),
        refused=(({"left": -1}, ValueError, r"left: expected an integer >= 0, got -1"),),
    ),
    "predicted_positions": Part(
        attn.predicted_positions,
        (QUERY, LOCAL, np.int32(7)),
        refused=(((QUERY[:, :3], LOCAL, 7), ValueError, r"query: expected shape .* = \(3, 4\), got \(3, 3\)"),),
        half="wide",
    ),
}  # fmt: skip
