"""A mod as a rule and the arrays that it captures, so that these can be arguments of what is compiled or differentiated."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun
from jaxtyping import Array


class Rule:
    """A mod without the arrays it captures: rule(captured, *arguments), with arguments of the types it was made for.

    Two rules are equal when they compute the same, step by step, so what was compiled for one serves for the other.
    """

    def __init__(self, jaxpr: Jaxpr):
        self.jaxpr, self.steps = jaxpr, _steps(jaxpr)

    def __call__(self, captured: Sequence[Array], *arguments: Array) -> Array:
        (result,) = jaxpr_as_fun(ClosedJaxpr(self.jaxpr, captured))(*arguments)
        return jnp.asarray(result)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(self.steps)


def hoisted(mod: Callable[..., Any], *arguments: jax.ShapeDtypeStruct) -> tuple[Rule, tuple[Array, ...], Any]:
    """The rule of a mod for arguments of these types, what it captures, and the type of what it returns."""
    closed, result = jax.make_jaxpr(mod, return_shape=True)(*arguments)
    return Rule(closed.jaxpr), tuple(jnp.asarray(array) for array in closed.consts), result


def _steps(jaxpr: Jaxpr) -> Hashable:
    """What a jaxpr computes, with its variables numbered, so that two can be compared."""
    numbers: dict[Any, int] = {}

    def name(variable: Any) -> Hashable:
        if isinstance(variable, Literal):
            return str(variable.aval), repr(variable.val.item() if hasattr(variable.val, "item") else variable.val)
        return numbers.setdefault(variable, len(numbers)), str(variable.aval)

    def step(equation: Any) -> Hashable:
        parameters = tuple((key, _parameter(value)) for key, value in sorted(equation.params.items()))
        return equation.primitive, tuple(map(name, equation.invars)), parameters, tuple(map(name, equation.outvars))

    inputs = tuple(map(name, (*jaxpr.constvars, *jaxpr.invars)))
    return len(jaxpr.constvars), inputs, tuple(map(step, jaxpr.eqns)), tuple(map(name, jaxpr.outvars))


def _parameter(value: Any) -> Hashable:
    """A parameter of a step; what cannot be compared is equal to itself only."""
    if isinstance(value, ClosedJaxpr):
        return _steps(value.jaxpr), tuple(map(id, value.consts))
    if isinstance(value, Jaxpr):
        return _steps(value)
    if isinstance(value, tuple | list):
        return tuple(map(_parameter, value))
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value
