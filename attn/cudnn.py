"""Dot-product attention by cuDNN's kernels, on CUDA devices, where they mean the same as `attn.dense`.

cuDNN gives softmax(scale Q K^T) V and its reverse mode, for finite arrays.  All else comes from the blocks of `attn.blockwise`:

    forward mode                                       d context = d blocks(q, k, v)
    the transpose of forward mode                      cuDNN, or blocks: to be differentiated further, or for odd T or S
    NaN or Inf in an input or a cotangent              blocks, which keep them with the queries that attend to them

cuDNN's own lse comes rounded to half precision and without a derivative, so lse is left to the blocks as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import inf
from numbers import Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from attn.dot_product_blocks import blockwise_attention, structure_of
from attn.linear_map import Function, linear_map
from attn.options import Lengths
from attn.shapes import known, per_batch

HALF = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))


class Options(NamedTuple):
    """What a call of cuDNN is told beside the arrays; both are part of the compiled program."""

    scale: float
    is_causal: bool


@partial(jax.jit, static_argnames="options")
def cudnn_attention(
    query: Float[Array, "*B T N H"], key: Float[Array, "*B S K H"], value: Float[Array, "*B S K H"], *, options: Options
) -> Float[Array, "*B T N H"]:
    """The context, for arguments without `misfits` on a device without an `absence`.

    The batch axes go to cuDNN in one call; entries of a `vmap` go one after another.
    """
    if 0 in (query.size, key.size):
        return _blocks(options, query, key, value)
    flat = (x.reshape(-1, *x.shape[-3:]) for x in (query, key, value))
    return _attend(options, *flat).reshape(query.shape)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attend(options: Options, query: Array, key: Array, value: Array) -> Array:
    given = (query, key, value)
    return linear_map(_shown(options, _forward, given), _no_transpose, given, ())


@_attend.defjvp
def _attend_jvp(options: Options, given: Sequence[Array], changes: Sequence[Array]) -> tuple[Array, Array]:
    change = linear_map(partial(_tangent, options), _shown(options, _cotangents, given), tuple(given), tuple(changes))
    return _attend(options, *given), change


def _forward(options: Options, given: Any, linear: Any, differentiable: bool) -> Array:
    return lax.cond(_all_finite(*given), partial(_cudnn, options), partial(_blocks, options), *given)


def _no_transpose(given: Any, cotangents: Any, differentiable: bool) -> Any:
    return ()


def _tangent(options: Options, given: Any, changes: Any, differentiable: bool) -> Array:
    return jax.jvp(partial(_blocks, options), given, changes)[1]


def _cotangents(options: Options, given: Any, back: Array, differentiable: bool) -> Any:
    def through(attend: Any, back: Array, *given: Array) -> Any:
        return jax.vjp(partial(attend, options), *given)[1](back)

    # JAX refuses the reverse mode of cuDNN for odd T or S, as it would have to be beside a bias.
    even = all(x.shape[1] % 2 == 0 for x in given)
    if differentiable or not even:
        return through(_blocks, back, *given)
    return lax.cond(_all_finite(back, *given), partial(through, _cudnn), partial(through, _blocks), back, *given)


def _all_finite(*arrays: Array) -> Bool[Array, ""]:
    return jnp.stack([jnp.isfinite(x).all() for x in arrays]).all()


def _cudnn(options: Options, query: Array, key: Array, value: Array) -> Array:
    return jax.nn.dot_product_attention(query, key, value, **options._asdict(), implementation="cudnn")


def _blocks(options: Options, query: Array, key: Array, value: Array) -> Array:
    structure, masked, masks = structure_of(query, key, None, options.is_causal, 0, None, None, None, None, None)
    context, _ = blockwise_attention(
        query, key, value, bias=None, structure=structure, masked=masked, masks=masks, scale=options.scale, softcap=None,
        dropout_rate=0.0, dropout_key=None, block_sizes=None, precision=None,
    )  # fmt: skip
    return context.astype(value.dtype)


class _Shown(NamedTuple):
    """A function for `linear_map` beside a program in which cuDNN is called.

    JAX passes devices on to the lowering only where it finds, in the programs among the parameters of an equation, a primitive
    that asks for them; cuDNN's do, and inside a function they are not found.
    """

    program: Any
    function: Function

    def __call__(self, given: Any, linear: Any, differentiable: bool) -> Any:
        return self.function(given, linear, differentiable)


def _shown(options: Options, function: Any, given: Sequence[Array]) -> _Shown:
    return _Shown(jax.make_jaxpr(partial(_cudnn, options))(*given), partial(function, options))


# Where it can be used.


def misfits(
    query: Array,
    key: Array,
    value: Array,
    *,
    is_causal: bool,
    query_offset: Lengths,
    scale: Any,
    unsupported: Mapping[str, Any],
) -> Iterator[str]:
    """Why cuDNN cannot give what these arguments of `dot_product_attention` mean: each argument, and what was expected.

    Args:
        query, key, value: arrays that fit together.
        is_causal, query_offset, scale: the options that cuDNN has.
        unsupported: the other options by name, each None where it is not used.
    """
    aim = "for implementation='cudnn'"
    if query.dtype not in HALF:
        yield f"query: expected bfloat16 or float16 {aim}, got {query.dtype}"
    for name, array in {"key": key, "value": value}.items():
        if array.dtype != query.dtype:
            yield f"{name}: expected the dtype of the query, {query.dtype}, {aim}, got {array.dtype}"
    width = query.shape[-1]
    if width not in range(8, 129, 8):
        yield f"query: expected H a multiple of 8 from 8 to 128 {aim}, got H = {width}"
    if value.shape[-1] != width:
        yield f"value: expected V = H = {width} {aim}, got V = {value.shape[-1]}"
    # Kernels that look for the highest score before they scale it are right for positive scales only.
    if not (isinstance(scale, Real) and 0 < scale < inf):
        yield f"scale: expected a Python number > 0 {aim}, got {scale}"
    if is_causal and not _is_zero(query_offset, query.shape[:-3]):
        yield f"query_offset: expected 0, known when traced, {aim} and is_causal, got {query_offset}"
    for name, option in unsupported.items():
        if option is not None:
            came = f"shape {option.shape}" if getattr(option, "shape", ()) else repr(option)
            yield f"{name}: expected {'0' if name == 'dropout_rate' else 'None'} {aim}, got {came}"


def _is_zero(query_offset: Lengths, batch: Sequence[int]) -> bool:
    # Evaluated at once also inside jit, where even a constant would be traced.
    with jax.ensure_compile_time_eval():
        offsets = known(per_batch("query_offset", query_offset, batch))
    return offsets is not None and not any(offsets)


def absence() -> str | None:
    """Why the default device has no cuDNN attention, as `misfits` says it; None for CUDA devices from Ampere on."""
    aim = "for 'cudnn'"
    device = _default_device()
    if device.platform not in ("gpu", "cuda"):
        return f"implementation: expected a default backend 'gpu' {aim}, got {device.platform!r}"
    # CUDA's is "8.0", ROCm's the name of an architecture.
    capability = getattr(device, "compute_capability", "none")
    major, _, _ = capability.partition(".")
    if not (major.isdecimal() and int(major) >= 8):
        return f"implementation: expected a CUDA device of compute capability >= 8.0 {aim}, got {capability}"
    return None


def _default_device() -> Any:
    chosen = jax.config.jax_default_device
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen
