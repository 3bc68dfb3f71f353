"""Whether attention is right and fast on a device that nobody has tried: every implementation against float64 NumPy.

Value and gradients are compared at short lengths under every option, and at long ones, where they are also timed, in the
context and the gradient by the query of a few rows.  An error is the largest difference divided by the largest magnitude.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from rich.console import Console

import attn
from seq2seq.benchmarks.limits import GIB, memory_at_hand
from seq2seq.benchmarks.reference import pairs_seen, reference
from seq2seq.benchmarks.table import significant
from seq2seq.benchmarks.timing import Program, compiled, seconds_of, take_turns
from seq2seq.evaluation.tables import DASH, print_table

TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2}
"""Allowed error; in bfloat16 a result is rounded by up to 0.4 %, and an implementation may round its weights as well."""
ROWS = 64
"""Queries compared at long lengths."""
SECONDS = 240.0
"""No check is begun after this time, so that all ends within five minutes."""
HEADS, HEAD_DIM = 8, 64


@dataclass(frozen=True)
class Variant:
    """Options of attention; `window` and `key_lengths` in parts of n."""

    name: str
    is_causal: bool = False
    window: float | None = None
    key_lengths: tuple[float, ...] = (1.0, 1.0)
    group: int = 1


CAUSAL = Variant("causal", is_causal=True)
VARIANTS = (
    Variant("full"),
    CAUSAL,
    Variant("window", window=0.25),
    Variant("key_lengths", key_lengths=(0.4, 1.0)),
    Variant("GQA", is_causal=True, group=2),
)


@dataclass(frozen=True)
class Problem:
    """One variant at one length and dtype, on which all implementations are compared."""

    variant: Variant
    n: int
    dtype: str
    is_timed: bool = False
    heads: int = HEADS
    head_dim: int = HEAD_DIM

    @property
    def lengths(self) -> list[int]:
        parts = self.variant.key_lengths[:1] if self.is_timed else self.variant.key_lengths
        return [max(int(part * self.n), 1) for part in parts]

    @property
    def window(self) -> tuple[int, int] | None:
        return None if self.variant.window is None else (int(self.variant.window * self.n), 0)

    @property
    def held_bytes(self) -> int:
        """Scores of all pairs."""
        return 4 * len(self.lengths) * self.heads * self.n**2


@dataclass(frozen=True)
class Verdict:
    """One line of the table; errors and times (in seconds) are None where there are none."""

    path: str
    problem: Problem
    verdict: str
    """pass, fail, or left out."""
    note: str = ""
    value_error: float | None = None
    gradient_error: float | None = None
    forward: float | None = None
    gradient: float | None = None


def check_attention(
    *,
    lengths: Sequence[int] = (),
    short: Sequence[int] = (),
    heads: int = HEADS,
    head_dim: int = HEAD_DIM,
    repeats: int = 5,
    memory_limit: float | None = None,
    seconds: float = SECONDS,
    log: Callable[[str], None] = lambda line: None,
) -> list[Verdict]:
    """Compare all implementations with float64 NumPy, and time them.

    Args:
        lengths: at which they are timed; 256 and 1024, or 1024, 4096 and 16384 on an accelerator, if none is given.
        short: at which all values and gradients are compared; 40 and 150, or 256 and 1000, if none is given.
        heads: N, even.
        head_dim: H.
        repeats: timed runs.
        memory_limit: GiB of temporary memory; four fifths of the accelerator's or half of the computer's if not given.
        seconds: nothing is begun after this time, and what is left is told as left out.
        log: receives lines of progress.

    Returns:
        One verdict for each implementation and problem.

    Raises:
        ValueError: an odd number of heads.
    """
    if heads < 2 or heads % 2:
        raise ValueError(f"heads: expected an even number for grouped queries, got {heads}")
    is_cpu = jax.default_backend() == "cpu"
    short = short or ((40, 150) if is_cpu else (256, 1000))
    lengths = lengths or ((256, 1024) if is_cpu else (1024, 4096, 16384))
    limit = GIB * memory_limit if memory_limit else memory_at_hand()
    ends, verdicts = time.monotonic() + seconds, []
    paths = _present(log)
    for problem in _problems(short, lengths, heads, head_dim, ("float32",) if is_cpu else ("bfloat16", "float32")):
        log(f"{problem.variant.name}, n = {problem.n}, {problem.dtype}")
        if time.monotonic() > ends:
            verdicts += [Verdict(path, problem, "left out", "no time left") for path in _functions(problem, paths)]
        else:
            # Products of float32 in less than float32, the default of accelerators, would be all that is seen.
            with jax.default_matmul_precision("highest" if problem.dtype == "float32" else "default"):
                verdicts += _check(problem, paths, repeats, limit)
            if problem.is_timed:
                jax.clear_caches()
    return verdicts


def succeeded(verdicts: Sequence[Verdict]) -> bool:
    """Whether nothing failed and every comparison at short lengths was reached."""
    return not any(v.verdict == "fail" or (v.note == "no time left" and not v.problem.is_timed) for v in verdicts)


def _problems(short, lengths, heads: int, head_dim: int, timed_dtypes: Sequence[str]) -> Iterator[Problem]:
    """All variants at the first short length, causal attention at the others; then those to be timed."""
    for dtype in TOLERANCE:
        for variant in VARIANTS:
            yield Problem(variant, short[0], dtype, heads=heads, head_dim=head_dim)
        for n in short[1:]:
            yield Problem(CAUSAL, n, dtype, heads=heads, head_dim=head_dim)
    for n in sorted(lengths):
        for dtype in timed_dtypes:
            yield Problem(CAUSAL, n, dtype, is_timed=True, heads=heads, head_dim=head_dim)


def _present(log: Callable[[str], None]) -> list[str]:
    """The implementations that there are here; what is missing is told once."""
    x, names = jnp.ones((1, 1, 1)), []
    for name in ("dense", "blockwise", "auto"):
        try:
            jax.eval_shape(lambda x, name=name: attn.dot_product_attention(x, x, x, implementation=name), x)
            names.append(name)
        except ValueError as error:
            log(f"{name} is not here: {error}")
    return [*names, "cudnn"] if jax.default_backend() == "gpu" else names


def _functions(problem: Problem, paths: Sequence[str]) -> dict[str, Callable[..., Array]]:
    """What is compared, functions of query, key and value; cuDNN has no float32."""
    names = [path for path in paths if path != "cudnn" or problem.dtype != "float32"]
    causal: dict[str, Any] = {"is_causal": problem.variant.is_causal}
    # cuDNN takes no option that it does not need.
    lengths = jnp.array(problem.lengths) if min(problem.lengths) < problem.n else None

    def ours(name: str):
        options = causal | {"window": problem.window, "key_lengths": lengths, "implementation": name}
        return lambda q, k, v: attn.dot_product_attention(q, k, v, **options)

    theirs = causal | {"local_window_size": problem.window, "key_value_seq_lengths": lengths}
    return {name: ours(name) for name in names} | {"jax.nn": lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **theirs)}


def _inputs(problem: Problem) -> list[Array]:
    kv_heads = problem.heads // problem.variant.group
    shapes = [(len(problem.lengths), problem.n, count, problem.head_dim) for count in (problem.heads, kv_heads, kv_heads)]
    generator = np.random.default_rng(problem.n)
    return [jnp.asarray(generator.standard_normal(shape, np.float32), problem.dtype) for shape in [*shapes, shapes[0]]]


def _value_and_gradient(attend: Callable[..., Array]) -> Callable[..., tuple[Array, ...]]:
    def both(query, key, value, cotangent):
        context, pullback = jax.vjp(attend, query, key, value)
        return context, *pullback(cotangent)

    return both


def _check(problem: Problem, paths: Sequence[str], repeats: int, limit: float) -> list[Verdict]:
    arrays = _inputs(problem)
    rows = np.arange(problem.n) if not problem.is_timed else np.linspace(0, problem.n - 1, min(ROWS, problem.n)).astype(int)
    seen = pairs_seen(
        rows, problem.n, is_causal=problem.variant.is_causal, window=problem.window, key_lengths=problem.lengths
    )  # fmt: skip
    query, key, value, cotangent = (np.asarray(x, np.float64) for x in arrays)
    expected = reference(query[:, rows], key, value, cotangent[:, rows], seen)
    compared = 2 if problem.is_timed else 4  # a few queries do not make all of the gradients of keys and values
    verdicts, programs = [], {}
    for path, attend in _functions(problem, paths).items():
        verdict, program = _compare(path, problem, attend, arrays, rows, expected[:compared], limit)
        verdicts.append(verdict)
        if program is not None and problem.is_timed:
            programs[path] = {"gradient": program.run, "forward": compiled(attend, arrays[:3]).run}
    return _timed(verdicts, programs, repeats)


def _compare(
    path: str,
    problem: Problem,
    attend: Callable[..., Array],
    arrays: Sequence[Array],
    rows: np.ndarray,
    expected: Sequence[np.ndarray],
    limit: float,
) -> tuple[Verdict, Program | None]:
    """One implementation: its verdict, and its program of value and gradient if it has one."""
    try:
        if path in ("dense", "jax.nn") and problem.held_bytes > limit:
            return Verdict(path, problem, "left out", f"{problem.held_bytes / GIB:.3g} GiB"), None
        program = compiled(_value_and_gradient(attend), arrays)
        held = program.temporary_bytes or 0
        if held > limit:
            return Verdict(path, problem, "left out", f"{held / GIB:.3g} GiB"), None
        context, of_query, *others = (np.asarray(x, np.float64) for x in program.run())
    except (ValueError, NotImplementedError) as error:
        # Ours do everything, but for cuDNN, which like jax.nn says what it cannot do.
        verdict = "left out" if path in ("cudnn", "jax.nn") else "fail"
        return Verdict(path, problem, verdict, _short(error)), None
    except Exception as error:  # of a compiler or a device: the other implementations still count
        return Verdict(path, problem, "fail", _short(error)), None
    errors = [_error(got, wanted) for got, wanted in zip((context[:, rows], of_query[:, rows], *others), expected, strict=False)]
    passes = max(errors) <= TOLERANCE[problem.dtype]  # False for NaN
    of_value, of_gradient = errors[0], max(errors[1:])
    return Verdict(path, problem, "pass" if passes else "fail", "", of_value, of_gradient), program


def _error(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference over the largest magnitude; infinite where the result is not finite."""
    difference = float(np.abs(got - expected).max() / np.abs(expected).max())
    return difference if np.isfinite(difference) else float("inf")


def _timed(verdicts: Sequence[Verdict], programs: dict[str, dict[str, Any]], repeats: int) -> list[Verdict]:
    """The verdicts with times of those that ran: medians, all implementations in turns."""
    times: dict[str, dict[str, float]] = {path: {} for path in programs}
    for of_pass in ("forward", "gradient"):
        runs = {path: of_path[of_pass] for path, of_path in programs.items()}
        for run in runs.values():
            seconds_of(run)
        for path, samples in take_turns(runs, repeats).items():
            times[path][of_pass] = float(np.median(samples))
    return [replace(verdict, **times.get(verdict.path, {})) for verdict in verdicts]


def _short(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [""])[0] or type(error).__name__
    return line if len(line) <= 60 else f"{line[:57]}..."


def print_verdicts(console: Console, verdicts: Sequence[Verdict]) -> None:
    """One line for each implementation and problem."""
    header = ["path", "options", "n", "dtype", "value error", "gradient error", "forward ms", "gradient ms", "verdict"]
    allowed = ", ".join(f"{tolerance:g} in {dtype}" for dtype, tolerance in TOLERANCE.items())
    device = jax.devices()[0]
    title = f"attention on {device.device_kind} ({device.platform}), jax {jax.__version__}; allowed error {allowed}"
    print_table(console, title, header, [_row(verdict) for verdict in verdicts])
    counts = {word: sum(v.verdict == word for v in verdicts) for word in ("pass", "fail", "left out")}
    console.print(", ".join(f"{word}: {count}" for word, count in counts.items()), highlight=False)


def _row(v: Verdict) -> list[str]:
    errors = [DASH if e is None else f"{e:.1e}" for e in (v.value_error, v.gradient_error)]
    times = [significant(None if seconds is None else 1e3 * seconds) for seconds in (v.forward, v.gradient)]
    verdict = f"{v.verdict}: {v.note}" if v.note else v.verdict
    return [v.path, v.problem.variant.name, f"{v.problem.n:,}", v.problem.dtype, *errors, *times, verdict]
