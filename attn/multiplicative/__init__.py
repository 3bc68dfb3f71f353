"""Multiplicative attention and its relatives (Luong, Pham, Manning 2015, section 3.1: global attention).

    score(h_t, h_s) = h_t . h_s                     dot
                    = h_t . W h_s                   general
                    = v . tanh(W [h_t ; h_s])       concat
    a_t(s) = softmax_s(score(h_t, h_s))             weights, eq. 7
    c_t    = sum_s a_t(s) h_s                       context

Names: h_t, the decoder's state, is our query; h_s (with a bar in the paper), a state of the encoder, is both our key and our
value; W_a is `kernel`, v_a is `score_vector`.  No score is scaled.  Local attention (section 3.2) is in `attn.local`.
"""

from attn.multiplicative.concat import ConcatParams, concat_attention, concat_scores, concat_weights, init_concat
from attn.multiplicative.dot import dot_attention, dot_scores, dot_weights
from attn.multiplicative.general import GeneralParams, general_attention, general_scores, general_weights, init_general

__all__ = [
    "ConcatParams",
    "GeneralParams",
    "concat_attention",
    "concat_scores",
    "concat_weights",
    "dot_attention",
    "dot_scores",
    "dot_weights",
    "general_attention",
    "general_scores",
    "general_weights",
    "init_concat",
    "init_general",
]
