"""Where a token stands, told to attention in one of six ways.

absolute: vectors that are added to embeddings
    sinusoidal_positions    sines and cosines                               Vaswani et al. 2017, 3.5
    learned_positions       rows of a table, never clamped                  Gehring et al. 2017, 3.1
rope: queries and keys are turned
    apply_rope              the scores depend on the distance only          Su et al. 2021, eq. 34
alibi: scores fall with the distance
    alibi_slopes            one rate for each head, any number of heads     Press et al. 2022, 3
    alibi_bias              what is added to the scores
t5: a learned bias for each range of distances
    t5_bucket               near distances singly, far ones by logarithm    Raffel et al. 2020, 2.1
    t5_bias                 what is added to the scores
shaw: a learned vector for each distance
    shaw_scores             its product with the query                      Shaw et al. 2018, eq. 4-5
    shaw_values             its average by the weights                      Shaw et al. 2018, eq. 3

relative and phase hold what these share: the distance from query to key, and angles that are exact at any position.
"""

from attn.positions.absolute import learned_positions, sinusoidal_positions
from attn.positions.alibi import alibi_bias, alibi_slopes
from attn.positions.rope import apply_rope
from attn.positions.shaw import shaw_scores, shaw_values
from attn.positions.t5 import t5_bias, t5_bucket

__all__ = [
    "alibi_bias",
    "alibi_slopes",
    "apply_rope",
    "learned_positions",
    "shaw_scores",
    "shaw_values",
    "sinusoidal_positions",
    "t5_bias",
    "t5_bucket",
]
