"""What attn is compared with: jax.nn, Flax, PyTorch where it is installed, and the bare matrix products."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from attn import sliding_window_mask
from seq2seq.benchmarks.attention import DECODER, FULL
from seq2seq.benchmarks.case import JAX_NN, TORCH, WINDOW, Case, Sizes

BLOCK = 512


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def torch_module() -> ModuleType:
    """PyTorch with as many threads as there are cores, or an ImportError that says what is missing."""
    import torch

    if jax.default_backend() != "cpu":
        raise ImportError("PyTorch is compared on the CPU only")
    torch.set_num_threads(cores())
    return torch


def _jax_nn(sizes: Sizes, kind: str):
    options = {"is_causal": kind == "causal", "local_window_size": WINDOW if kind == "window" else None}
    return lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **options)


def _jax_nn_one_head(sizes: Sizes, kind: str):
    attend = _jax_nn(sizes, kind)
    return lambda q, k, v: attend(q[:, :, None], k[:, :, None], v[:, :, None])[:, :, 0]


def _flax(sizes: Sizes, kind: str):
    left, right = WINDOW
    mask = (lambda: sliding_window_mask(sizes.n, left=left, right=right)) if kind == "window" else lambda: None
    return lambda q, k, v: nnx.dot_product_attention(q, k, v, mask=mask(), is_causal=kind == "causal")


def bare_products(
    query: Float[Array, "B T N H"], key: Float[Array, "B S N H"], value: Float[Array, "B S N H"], kind: str = "full"
) -> Float[Array, "B T N H"]:
    """(Q K^T) V over the blocks of 512 x 512 that the kind allows: the products of attention and nothing else.

    >>> x = jnp.ones((1, 4, 1, 2))
    >>> bare_products(x, x, x)[0, :, 0, 0]
    Array([8., 8., 8., 8.], dtype=float32)
    """
    queries, keys, values = _blocks(query), _blocks(key), _blocks(value)

    def of_queries(i, context):
        def of_keys(j, products):
            scores = jnp.einsum("bnth,bnsh->bnts", queries[i], keys[j])
            return products + jnp.einsum("bnts,bnsh->bnth", scores, values[j])

        first = jnp.maximum(i * BLOCK - WINDOW[0], 0) // BLOCK if kind == "window" else 0
        last = len(keys) if kind == "full" else jnp.minimum(i + 1, len(keys))
        return context.at[i].set(jax.lax.fori_loop(first, last, of_keys, jnp.zeros_like(queries[i])))

    context = jax.lax.fori_loop(0, len(queries), of_queries, jnp.zeros_like(queries))
    return jnp.moveaxis(context, 0, 2).reshape(*context.shape[1:3], -1, context.shape[-1])[:, :, : query.shape[1]].swapaxes(1, 2)


def _blocks(x: Float[Array, "B T N H"]) -> Float[Array, "I B N bq H"]:
    block = min(BLOCK, x.shape[1])
    rows = jnp.pad(x, [(0, 0), (0, -x.shape[1] % block), (0, 0), (0, 0)]).swapaxes(1, 2)
    return jnp.moveaxis(rows.reshape(*rows.shape[:2], -1, block, rows.shape[-1]), 2, 0)


def _bare(sizes: Sizes, kind: str):
    return lambda q, k, v: bare_products(q, k, v, kind)


def _torch_sdpa(sizes: Sizes, kind: str):
    torch = torch_module()
    attend = torch.nn.functional.scaled_dot_product_attention
    mask = _torch_window(torch, sizes.n) if kind == "window" else None
    return lambda q, k, v: attend(q, k, v, attn_mask=mask, is_causal=kind == "causal")


def _torch_window(torch: ModuleType, n: int) -> Any:
    distance = torch.arange(n)[:, None] - torch.arange(n)
    return (distance >= -WINDOW[1]) & (distance <= WINDOW[0])


def _torch_flex(sizes: Sizes, kind: str):
    torch = torch_module()
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()  # after eight shapes it would fall back to the dense computation
    attend = torch.compile(flex_attention, dynamic=False)
    if kind == "full":
        return lambda q, k, v: attend(q, k, v)
    left = sizes.n if kind == "causal" else WINDOW[0]
    allowed = lambda b, h, i, j: (i >= j) & (i - j <= left)  # noqa: E731
    block_mask = create_block_mask(allowed, None, None, sizes.n, sizes.n, device="cpu")
    return lambda q, k, v: attend(q, k, v, block_mask=block_mask)


PEERS = (
    Case(JAX_NN, _jax_nn, holds_pairs=True),
    Case("flax", _flax, holds_pairs=True),
    Case(TORCH, _torch_sdpa, library="torch"),
    Case("torch-flex", _torch_flex, passes=("forward",), library="torch"),  # no backward pass on CPU
    Case("bare-products", _bare, passes=("forward",)),
    Case(JAX_NN, _jax_nn_one_head, FULL, holds_pairs=True, one_head=True),
    Case(JAX_NN, _jax_nn_one_head, FULL, holds_pairs=True, one_head=True, fixed=DECODER),
)


def torch_run(attend: Callable[..., Any], arrays: Sequence[Array], of_pass: str) -> Callable[[], Any]:
    """A pass of a function of tensors [B N n H], on the values of query, key, value and cotangent [B n N H]."""
    torch = torch_module()
    *primals, cotangent = (_tensor(torch, x) for x in arrays)
    if of_pass == "forward":
        return lambda: _without_gradient(torch, attend, primals)
    primals = [primal.requires_grad_() for primal in primals]
    return lambda: torch.autograd.grad(attend(*primals), primals, cotangent)


def _tensor(torch: ModuleType, x: Array) -> Any:
    dtype = getattr(torch, x.dtype.name)
    return torch.tensor(jax.device_get(x.astype(jnp.float32)), dtype=dtype).transpose(1, 2).contiguous()


def _without_gradient(torch: ModuleType, attend: Callable[..., Any], primals: list[Any]) -> Any:
    with torch.no_grad():
        return attend(*primals)
