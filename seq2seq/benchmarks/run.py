"""The benchmark: comparison after comparison, each case compiled, warmed up and timed in turns with the others."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jaxtyping import Array

from seq2seq.benchmarks.attention import CASES
from seq2seq.benchmarks.case import JAX_NN, KINDS, PASSES, TORCH, Case, Comparison, Sizes, chosen, comparisons, inputs
from seq2seq.benchmarks.figure import plot_results
from seq2seq.benchmarks.limits import LeftOut, Limits
from seq2seq.benchmarks.peers import PEERS, torch_module
from seq2seq.benchmarks.record import Measurement, Omission, Results, environment
from seq2seq.benchmarks.table import write_table
from seq2seq.benchmarks.timing import Program, paired_ratio, program_of, seconds_of, take_turns

LENGTHS = (256, 1024, 4096, 16384, 65536)
Log = Callable[[str], None]


def run_benchmark(
    out: str | Path,
    *,
    lengths: Sequence[int] = LENGTHS,
    sizes: Sizes = Sizes(0),  # noqa: B008 -- frozen
    cases: Sequence[str] = (),
    kinds: Sequence[str] = KINDS,
    passes: Sequence[str] = PASSES,
    repeats: int = 5,
    time_limit: float = 120.0,
    memory_limit: float | None = None,
    log: Log = lambda line: None,
) -> Results:
    """Measure time and temporary memory of the named cases, and write results.json, table.txt and figures.

    results.json is written after each comparison: a run that is interrupted keeps what it has measured.

    Args:
        out: folder that receives the files.
        lengths: n, of queries and of keys.
        sizes: batch, heads, width of a head and dtype; its own n is not used.
        cases: names of functions; all if empty.
        kinds: of "full", "causal", "window".
        passes: of "forward", "gradient".
        repeats: timed runs of each case, after one that is not counted.
        time_limit: seconds for all runs of one case at one length; what would take longer is left out.
        memory_limit: GiB of temporary memory; four fifths of the accelerator's or half of the computer's if not given.
        log: receives lines of progress.

    Returns:
        Measurements, and what was left out and why.

    Raises:
        ValueError: an unknown case, kind or pass; a length or number of repeats below 1.
    """
    every = (*CASES, *PEERS)
    names = chosen("cases", cases, [case.name for case in every])
    kinds, passes = chosen("kinds", kinds, KINDS), chosen("passes", passes, PASSES)
    _check_counts(lengths=lengths, repeats=[repeats])
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    limits = Limits(time_limit, memory_limit, repeats + 1)
    settings = {"dtype": sizes.dtype, "repeats": repeats, "time_limit_s": time_limit, "memory_limit_gib": limits.gib}
    results = Results(environment(), settings)
    present = _present([case for case in every if case.name in names], results, log)
    plan = comparisons(present, lengths, sizes, kinds, passes)
    for number, comparison in enumerate(plan, 1):
        log(f"{number}/{len(plan)}  {comparison}")
        _compare(comparison, repeats, limits, results, log)
        results.write(out / "results.json")
        jax.clear_caches()
        gc.collect()
    results.write(out / "results.json")
    write_table(out / "table.txt", results)
    plot_results(out, results)
    return results


def _check_counts(**counts: Sequence[int]) -> None:
    for name, values in counts.items():
        if not values or min(values) < 1:
            raise ValueError(f"{name}: expected integers >= 1, got {', '.join(map(str, values)) or 'none'}")


def _present(cases: Sequence[Case], results: Results, log: Log) -> list[Case]:
    """The cases that there are here; the others are told once."""
    kept = []
    for case in cases:
        reason = _missing(case)
        if reason is None:
            kept.append(case)
        else:
            log(f"{case.name} is not here: {reason}")
            results.left_out.append(Omission(case.name, "any", 0, "any", "any", f"not here: {reason}"))
    return kept


def _missing(case: Case) -> str | None:
    """Why a case cannot run at all: PyTorch is not installed, or this version of attn knows no such thing."""
    try:
        if case.library == "torch":
            torch_module()
        else:
            tiny = Sizes(8, heads=2, head_dim=4)
            jax.eval_shape(case.build(tiny, case.kinds[0]), *inputs(tiny, case.one_head)[:3])
    except (ImportError, AttributeError, ValueError) as error:
        return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _compare(comparison: Comparison, repeats: int, limits: Limits, results: Results, log: Log) -> None:
    """Measure what fits of one comparison."""
    place: dict[str, Any] = {
        "inputs": comparison.inputs,
        "n": comparison.sizes.n,
        "kind": comparison.kind,
        "of_pass": comparison.of_pass,
    }
    arrays = inputs(comparison.sizes, comparison.one_head)
    programs: dict[str, Program] = {}
    warm_up: dict[str, float] = {}
    for case in comparison.cases:
        try:
            programs[case.name], warm_up[case.name] = _ready(case, comparison, arrays, limits)
        except LeftOut as reason:
            results.left_out.append(Omission(case.name, **place, reason=str(reason)))
        except Exception as error:  # another library's, or a lack of memory: the others still count
            log(f"{case.name} failed: {_first_line(error)}")
            results.left_out.append(Omission(case.name, **place, reason=f"failed: {_first_line(error)}"))
    samples = take_turns({name: program.run for name, program in programs.items()}, repeats)
    for case in comparison.cases:
        if case.name in programs:
            of_case, program = samples[case.name], programs[case.name]
            measurement = Measurement(
                case.name,
                **place,
                samples=of_case,
                warm_up=warm_up[case.name],
                compile_seconds=program.compile_seconds,
                temporary_bytes=program.temporary_bytes,
                to_jax_nn=paired_ratio(of_case, samples.get(JAX_NN)),
                to_torch=paired_ratio(of_case, samples.get(TORCH)),
            )
            results.measurements.append(measurement)
            limits.learn(case, comparison, measurement.seconds)


def _ready(case: Case, comparison: Comparison, arrays: Sequence[Array], limits: Limits) -> tuple[Program, float]:
    """The case compiled and run once, with the seconds of that run; LeftOut as soon as it is known not to fit."""
    limits.check_memory(case.held_bytes(comparison.sizes))
    limits.check_time(case, comparison)
    program = program_of(case, comparison, arrays)
    limits.check_memory(program.temporary_bytes)
    first = seconds_of(program.run)
    if program.compile_seconds is not None:  # a first run that compiles as well tells nothing about the next
        limits.check_seconds(first)
    return program, first
