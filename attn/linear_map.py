"""A linear function with a transpose of our own, under every transformation.

JAX derives reverse mode by transposing the tangent rule.  For attention in blocks the tangent rule and its transpose are two
loops that both want to be written by hand: `linear_map` ties them together.  Unlike `jax.custom_vjp` it keeps forward mode,
and derivatives of any order: differentiated by what it is not linear in, it is the ordinary function of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

# (given, linear, differentiable) -> result.  With `differentiable`, only what JAX can differentiate in both directions.
Function = Callable[[Any, Any, bool], Any]


def linear_map(function: Function, transpose: Function, given: Any, linear: Any) -> Any:
    """function(given, linear), linear in `linear`; reverse mode calls transpose(given, cotangents) for its cotangents.

    Args:
        function: (given, linear, differentiable) -> result.
        transpose: (given, cotangents of the result, differentiable) -> cotangents of `linear`.
        given: pytree of arrays, in which the function need not be linear.
        linear: pytree of floating arrays.

    Returns:
        The result, a pytree of floating arrays.
    """
    leaves, tree = jax.tree.flatten((given, linear))
    result = jax.eval_shape(lambda given, linear: function(given, linear, False), given, linear)
    outputs = linear_map_p.bind(
        *leaves, function=function, transpose=transpose, tree=tree, result=jax.tree.structure(result),
        num_given=len(jax.tree.leaves(given)),
    )  # fmt: skip
    return jax.tree.unflatten(jax.tree.structure(result), outputs)


linear_map_p = Primitive("linear_map")
linear_map_p.multiple_results = True


def _call(*leaves: Array, function: Function, tree: Any, differentiable: bool = False, **_: Any) -> list[Array]:
    given, linear = jax.tree.unflatten(tree, leaves)
    return jax.tree.leaves(function(given, linear, differentiable))


def _abstract(*avals: Any, **params: Any) -> list[Any]:
    shapes = jax.eval_shape(lambda *leaves: _call(*leaves, **params), *avals)
    return [jax.core.ShapedArray(shape.shape, shape.dtype) for shape in shapes]


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[list[Array], list[Any]]:
    num_given = params["num_given"]
    given, linear = list(primals[:num_given]), list(primals[num_given:])
    result = linear_map_p.bind(*primals, **params)
    change: list[Any] = [jnp.zeros_like(x) for x in result]
    if any(type(t) is not ad.Zero for t in tangents[num_given:]):
        along = map(ad.instantiate_zeros, tangents[num_given:])
        change = linear_map_p.bind(*given, *along, **params)
    moved = [index for index in range(num_given) if type(tangents[index]) is not ad.Zero]
    if moved:

        def of_moved(*values: Array) -> list[Array]:
            leaves = list(given)
            for index, value in zip(moved, values, strict=True):
                leaves[index] = value
            return _call(*leaves, *linear, differentiable=True, **params)

        _, further = jax.jvp(of_moved, [given[index] for index in moved], [tangents[index] for index in moved])
        change = [a + b for a, b in zip(change, further, strict=True)]
    return result, change


def _transpose(cotangents: Sequence[Any], *leaves: Any, **params: Any) -> list[Any]:
    num_given = params["num_given"]
    given, _ = jax.tree.unflatten(params["tree"], leaves)
    results = jax.tree.unflatten(params["result"], [ad.instantiate_zeros(ct) for ct in cotangents])
    linear = jax.tree.leaves(linear_map(params["transpose"], params["function"], given, results))
    wanted = [ct if ad.is_undefined_primal(x) else None for ct, x in zip(linear, leaves[num_given:], strict=True)]
    return [None] * num_given + wanted


def _batch(leaves: Sequence[Array], axes: Sequence[Any], **params: Any) -> tuple[list[Array], list[int]]:
    mapped = [index for index, axis in enumerate(axes) if axis is not None]

    def one(values: Sequence[Array]) -> list[Array]:
        each = list(leaves)
        for index, value in zip(mapped, values, strict=True):
            each[index] = value
        return linear_map_p.bind(*each, **params)

    batched = [jnp.moveaxis(leaves[index], axes[index], 0) for index in mapped]
    # One entry after another: each skips its own blocks, and the cache holds the blocks of one.
    results = jax.lax.map(one, batched)
    return results, [0] * len(results)


linear_map_p.def_impl(_call)
linear_map_p.def_abstract_eval(_abstract)
ad.primitive_jvps[linear_map_p] = _jvp
ad.primitive_transposes[linear_map_p] = _transpose
batching.primitive_batchers[linear_map_p] = _batch
mlir.register_lowering(linear_map_p, mlir.lower_fun(_call, multiple_results=True))
