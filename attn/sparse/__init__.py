"""Sparse attention: patterns that skip the keys they do not see, each equal to dense attention under its mask.

windows: around each query
    sliding_window_attention    left keys before and right keys after, and global tokens    Beltagy et al. 2020, 3.1
    dilated_attention           a window with gaps                                          Beltagy et al. 2020, 3.1
patterns: unions of a local and a far part, causal
    strided_attention           the last `stride` keys and every `stride`-th one            Child et al. 2019, 4.3
    fixed_attention             the own block and the ends of the earlier ones              Child et al. 2019, 4.3
blocks
    block_sparse_attention      any Boolean matrix of blocks                                Gray et al. 2017, Zaheer et al. 2020
top_k
    top_k_attention             the keys with the k largest scores                          Gupta et al. 2021, 2
pairs: which pairs of positions a pattern allows, and which blocks can be skipped
parts: attention to the pairs of a pattern
residues: positions that are equal modulo a stride, as batch entries
"""

from attn.sparse.blocks import block_sparse_attention
from attn.sparse.patterns import fixed_attention, strided_attention
from attn.sparse.top_k import top_k_attention
from attn.sparse.windows import dilated_attention, sliding_window_attention

__all__ = [
    "block_sparse_attention",
    "dilated_attention",
    "fixed_attention",
    "sliding_window_attention",
    "strided_attention",
    "top_k_attention",
]
