"""The benchmark of attention at tiny lengths: what it measures, leaves out and writes; and the check of a new device."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
from rich.console import Console

import attn
from seq2seq.benchmarks import check, check_attention, run, run_benchmark
from seq2seq.benchmarks.attention import CASES
from seq2seq.benchmarks.case import Case, Sizes, comparisons, inputs
from seq2seq.benchmarks.check import CAUSAL, VARIANTS, Problem, print_verdicts, succeeded
from seq2seq.benchmarks.figure import plot_results
from seq2seq.benchmarks.limits import GIB, LeftOut, Limits
from seq2seq.benchmarks.options import Options
from seq2seq.benchmarks.peers import PEERS, bare_products
from seq2seq.benchmarks.record import Measurement, Results
from seq2seq.benchmarks.reference import pairs_seen, reference
from seq2seq.benchmarks.table import left_out_lines, print_results
from seq2seq.benchmarks.timing import compiled, gradient_of, paired_ratio, take_turns
from seq2seq.cli import report_errors

SCRIPT = Path(__file__).parents[2] / "scripts" / "benchmark_attention.py"
TINY = Sizes(0, heads=2, head_dim=4)
NAMED = ("dense", "jax.nn", "sliding-window", "bare-products")


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    jax.config.update("jax_disable_most_optimizations", True)
    out, lines = tmp_path_factory.mktemp("benchmark"), []
    try:
        results = run_benchmark(out, lengths=(32, 16), sizes=TINY, cases=NAMED, kinds=("window",), repeats=2, log=lines.append)
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    return SimpleNamespace(results=results, out=out, lines=lines)


def test_every_case_of_a_kind_is_measured_at_every_length(tiny_run):
    measured = {(m.case, m.n, m.kind, m.of_pass) for m in tiny_run.results.measurements}
    expected = {(case, n, "window", "forward") for case in NAMED for n in (16, 32)}
    expected |= {(case, n, kind, "gradient") for case, n, kind, _ in expected if case != "bare-products"}
    assert measured == expected
    assert tiny_run.lines[0] == "1/4  n = 16, window, forward, B=1 N=2 H=4"
    assert len(tiny_run.lines) == 4
    assert tiny_run.results.left_out == []


def test_the_file_holds_all_samples_and_where_they_are_from(tiny_run):
    written = json.loads((tiny_run.out / "results.json").read_text())
    assert written["left_out_count"] == 0
    assert len(written["measurements"]) == 14
    assert all(len(m["samples"]) == 2 and min(m["samples"]) > 0 for m in written["measurements"])
    assert all(m["compile_seconds"] > 0 and m["temporary_bytes"] >= 0 for m in written["measurements"])
    place = written["environment"]
    assert (place["jax"], place["platform"]) == (jax.__version__, "cpu")
    assert {"date", "command", "flax", "torch", "cores", "device"} <= place.keys()
    assert place["cores"] >= 1
    assert written["settings"]["repeats"] == 2


def test_ratios_are_of_the_same_repeat(tiny_run):
    by_place = {(m.case, m.n, m.kind, m.of_pass): m for m in tiny_run.results.measurements}
    for (case, *place), m in by_place.items():
        assert m.to_torch is None
        theirs = by_place["jax.nn", *place].samples
        assert m.to_jax_nn == pytest.approx(np.median(np.array(m.samples) / theirs))
        assert case != "jax.nn" or m.to_jax_nn == 1


def test_the_table_has_a_line_for_each_measurement(tiny_run):
    text = (tiny_run.out / "table.txt").read_text()
    rows = [line.split() for line in text.splitlines() if "B=1" in line]
    assert len(rows) == 14
    assert ["jax.nn", "B=1", "N=2", "H=4", "16", "window", "gradient"] in [row[:7] for row in rows]
    assert {row[8] for row in rows if row[0] == "jax.nn"} == {"1.00"}
    assert "left out: 0" in text


def test_figures_are_written_twice_over(tiny_run):
    for name in ("time", "memory"):
        assert matplotlib.image.imread(tiny_run.out / f"{name}.png")[..., :3].min() < 0.2
        assert (tiny_run.out / f"{name}.svg").read_text().startswith("<?xml")


def test_what_does_not_fit_is_left_out_and_told(tmp_path, monkeypatch, quick_compilation):
    def fails(sizes, kind):
        return lambda q, k, v: q if q.shape[1] == 8 else jax.pure_callback(_refuse, q, q)

    cases = [Case("dense", CASES[0].build, ("full",), holds_pairs=True), Case("breaks", fails, ("full",))]
    cases += [Case("held", CASES[0].build, ("full",)), Case("absent", lambda s, k: attn.no_such_attention, ("full",))]
    monkeypatch.setattr(run, "CASES", tuple(cases))
    monkeypatch.setattr(run, "PEERS", ())
    options = {"lengths": (16,), "sizes": TINY, "passes": ("forward",), "repeats": 1}
    results = run_benchmark(tmp_path, **options, memory_limit=512 / GIB)
    reasons = {omission.case: omission.reason for omission in results.left_out}
    assert results.measurements == []
    assert reasons["dense"] == "1.91e-06 GiB, limit 4.77e-07 GiB"  # 4 bytes of 2 x 16 x 16 scores, before compilation
    assert reasons["held"].endswith("limit 4.77e-07 GiB")
    assert reasons["breaks"].startswith("failed: ")
    assert reasons["absent"] == "not here: module 'attn' has no attribute 'no_such_attention'"
    assert "left out: 4\n" in (tmp_path / "table.txt").read_text()
    assert not (tmp_path / "time.png").exists()  # nothing to draw
    results = run_benchmark(tmp_path, **options, cases=["held"], time_limit=1e-12)
    assert "limit 1e-12 s" in results.left_out[0].reason
    assert json.loads((tmp_path / "results.json").read_text())["left_out_count"] == 1


def _refuse(x):
    raise RuntimeError("no")


def test_an_interrupted_run_keeps_what_it_has(tmp_path, monkeypatch, quick_compilation):
    def log(line):
        if line.startswith("2/2"):
            raise KeyboardInterrupt

    monkeypatch.setattr(run, "PEERS", ())
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(
            tmp_path, lengths=(16, 32), sizes=TINY, cases=["dense"], kinds=["full"], passes=["forward"], repeats=1, log=log
        )  # fmt: skip
    assert [m["n"] for m in json.loads((tmp_path / "results.json").read_text())["measurements"]] == [16]


def test_a_case_is_expected_to_be_as_fast_as_at_the_last_length():
    (comparison,) = comparisons([CASES[0]], [1024], Sizes(0), ["full"], ["forward"])
    longer = replace(comparison, sizes=Sizes(4096))
    limits = Limits(seconds=60.0, gib=1.0, runs=2)
    limits.learn(CASES[0], comparison, 1.0)
    limits.check_time(CASES[0], comparison)
    limits.check_time(CASES[0], longer)
    limits.seconds = 31.0
    with pytest.raises(LeftOut, match="2 runs of 16 s, limit 31 s"):
        limits.check_time(CASES[0], longer)


def test_turns_are_taken_forwards_and_backwards():
    order = []
    samples = take_turns({name: lambda name=name: order.append(name) for name in "abc"}, 3)
    assert "".join(order) == "abc" + "cba" + "abc"
    assert {name: len(times) for name, times in samples.items()} == {"a": 3, "b": 3, "c": 3}
    assert paired_ratio([1.0, 9.0], None) is None


def test_every_case_is_what_its_kind_says(quick_compilation):
    """Those that are attention under the kind's mask agree with it; all others have at least its shape."""
    exact = {"dense", "flex", "sliding-window", "jax.nn", "flax", "dot"}
    sizes = Sizes(8, heads=2, head_dim=4)
    cases = [case for case in (*CASES, *PEERS) if case.library == "jax" and case.fixed is None and not run._missing(case)]
    assert {"dense", "linear", "top-k", "concat", "bare-products"} <= {case.name for case in cases}
    arrays = {one_head: inputs(sizes, one_head)[:3] for one_head in (False, True)}
    calls = [(case, kind, case.build(sizes, kind)) for case in cases for kind in case.kinds]
    for case, _, function in calls:
        assert jax.eval_shape(function, *arrays[case.one_head]).shape == arrays[case.one_head][0].shape
    calls = [call for call in calls if call[0].name in exact]
    contexts = jax.jit(lambda arrays: [function(*arrays[case.one_head]) for case, _, function in calls])(arrays)
    by_call = {(case.name, case.one_head, kind): c for (case, kind, _), c in zip(calls, contexts, strict=True)}
    for (name, one_head, kind), context in by_call.items():
        expected = by_call["jax.nn", True, kind] if one_head else by_call["dense", False, kind]
        np.testing.assert_allclose(context, expected, atol=1e-5, err_msg=f"{name} {kind}")


@pytest.mark.parametrize(("kind", "n"), [("full", 20), ("causal", 1030), ("window", 1030)])
def test_bare_products_visit_the_blocks_of_the_kind(kind, n, quick_compilation):
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, n, 1, 2)), jnp.float32)
    rows = np.arange(n) // 512
    seen = {"full": np.ones((n, n), bool), "causal": rows[:, None] >= rows}
    seen["window"] = seen["causal"] & (rows >= np.maximum(rows[:, None] * 512 - 256, 0) // 512)
    expected = (np.asarray(x[0, :, 0]) @ np.asarray(x[0, :, 0]).T * seen[kind]) @ np.asarray(x[0, :, 0])
    np.testing.assert_allclose(bare_products(x, x, x, kind)[0, :, 0], expected, rtol=1e-3, atol=1e-2)


def test_a_program_is_the_gradient_by_query_key_and_value():
    q, k, v, of_context = inputs(Sizes(5, heads=2, head_dim=3), False)
    dense = lambda q, k, v: attn.dot_product_attention(q, k, v, implementation="dense")  # noqa: E731
    program = compiled(gradient_of(dense), (q, k, v, of_context))
    expected = reference(*map(np.asarray, (q, k, v, of_context)), np.ones((1, 5, 5), bool))[1:]
    for got, wanted in zip(program.run(), expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)
    assert program.compile_seconds > 0


def test_the_reference_is_the_gradient_of_itself():
    """Central differences of sum(context * cotangent), with grouped heads, a window and lengths."""
    generator = np.random.default_rng(1)
    q, of_context = generator.standard_normal((2, 2, 4, 2, 3))
    k, v = generator.standard_normal((2, 2, 4, 1, 3))
    seen = pairs_seen(np.arange(4), 4, is_causal=True, window=(2, 0), key_lengths=[2, 4])
    assert seen[0].tolist()[3] == [False, True, False, False]
    product = lambda *x: (reference(*x, of_context, seen)[0] * of_context).sum()  # noqa: E731
    for place, gradient in enumerate(reference(q, k, v, of_context, seen)[1:]):
        direction = generator.standard_normal(gradient.shape)
        up, down = ([x + sign * (i == place) * 1e-5 * direction for i, x in enumerate((q, k, v))] for sign in (1, -1))
        assert (product(*up) - product(*down)) / 2e-5 == pytest.approx((gradient * direction).sum(), abs=1e-7)


def test_unknown_names_and_counts_are_errors(tmp_path):
    with pytest.raises(ValueError, match=r"cases: expected some of dense, blockwise, .*; got 'densest'"):
        run_benchmark(tmp_path, cases=["densest"])
    with pytest.raises(ValueError, match="kinds: expected some of full, causal, window; got 'diagonal'"):
        run_benchmark(tmp_path, kinds=["diagonal"])
    with pytest.raises(ValueError, match="passes: expected some of forward, gradient; got 'backward'"):
        run_benchmark(tmp_path, passes=["backward"])
    with pytest.raises(ValueError, match="lengths: expected integers >= 1, got 0"):
        run_benchmark(tmp_path, lengths=[0])
    with pytest.raises(ValueError, match="repeats: expected integers >= 1, got 0"):
        run_benchmark(tmp_path, repeats=0)
    with pytest.raises(ValueError, match="heads: expected an even number for grouped queries, got 3"):
        check_attention(heads=3)
    assert not list(tmp_path.iterdir())


def measurement(case, n, inputs="B=1 N=8 H=64", memory=2**20):
    return Measurement(case, inputs, n, "full", "forward", [n / 1e6], 0.0, 0.1, memory, 1.0, None)


def test_fixed_sizes_are_in_the_table_and_not_in_the_figure(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("seq2seq.benchmarks.figure.save_figure", lambda figure, path: drawn.append(figure))
    place = {"device": "cpu", "cores": 2, "jax": "1", "flax": "2", "torch": None}
    measurements = [measurement("dense", 16), measurement("dense", 32, memory=0), measurement("fixed", 128, "B=16 D=512")]
    results = Results(place, {"dtype": "float32", "repeats": 1}, measurements)
    assert [path.name for path in plot_results(tmp_path, results)] == ["time.png", "time.svg", "memory.png", "memory.svg"]
    (of_time,), (of_memory,) = (figure.axes for figure in drawn)
    np.testing.assert_allclose(of_time.lines[0].get_xydata(), [[16, 0.016], [32, 0.032]])
    np.testing.assert_allclose(of_memory.lines[0].get_xydata(), [[16, 1.0]])  # no logarithm of nothing
    assert [line.get_label() for line in of_time.lines] == ["dense"]
    console = Console(width=125, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_results(console, results)
    console.file.close()
    assert "B=16 D=512" in console.export_text()
    assert left_out_lines(results) == []


@pytest.fixture(scope="module")
def verdicts():
    """One implementation, and the variants that hold all options: grouped queries are causal, and so is what is timed."""
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "VARIANTS", VARIANTS[2:])
        patch.setattr(check, "_present", lambda log: ["dense"])
        made = check_attention(lengths=(16,), short=(8,), heads=2, head_dim=4, repeats=1)
    jax.config.update("jax_disable_most_optimizations", False)
    return made


def test_the_check_passes_and_says_so(verdicts):
    assert succeeded(verdicts)
    assert {v.verdict for v in verdicts} == {"pass"}
    assert {v.path for v in verdicts} == {"dense", "jax.nn"}
    assert len(verdicts) == (2 * 3 + 1) * 2
    assert {v.problem.variant.name for v in verdicts} == {"causal", "window", "key_lengths", "GQA"}
    assert all(v.value_error < (2e-5 if v.problem.dtype == "float32" else 2e-2) for v in verdicts)
    assert all((v.forward is not None) == (v.gradient is not None) == v.problem.is_timed for v in verdicts)
    console = Console(width=125, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    print_verdicts(console, verdicts)
    console.file.close()
    text = console.export_text()
    assert f"pass: {len(verdicts)}, fail: 0, left out: 0" in text


@pytest.mark.parametrize(
    ("wrong", "note"),
    [
        (lambda q, k, v: v, ""),
        (lambda q, k, v: v * jnp.nan, ""),
        (lambda q, k, v: jnp.zeros(3) + jnp.zeros(2), "add got incompatible shapes"),
    ],
)
def test_a_wrong_implementation_fails(monkeypatch, quick_compilation, wrong, note):
    monkeypatch.setattr(check, "_functions", lambda problem, paths: {"dense": wrong})
    (verdict,) = check._check(Problem(CAUSAL, 8, "float32", heads=2, head_dim=4), [], 1, 1e9)
    assert verdict.verdict == "fail"
    assert verdict.note.startswith(note)
    assert not succeeded([verdict])


def test_a_wrong_gradient_alone_fails(monkeypatch, quick_compilation):
    right = lambda q, k, v: attn.dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    monkeypatch.setattr(check, "_functions", lambda *_: {"dense": lambda q, k, v: right(q, jax.lax.stop_gradient(k), v)})
    (verdict,) = check._check(Problem(CAUSAL, 8, "float32", heads=2, head_dim=4), [], 1, 1e9)
    assert verdict.verdict == "fail"
    assert verdict.value_error < 1e-6 < 0.1 < verdict.gradient_error


def test_a_check_without_time_or_memory_is_no_success(monkeypatch):
    late = check_attention(lengths=(16,), short=(8,), heads=2, head_dim=4, seconds=-1.0)
    assert {(v.verdict, v.note) for v in late} == {("left out", "no time left")}
    assert not succeeded(late)
    assert {"dense", "auto", "jax.nn"} <= {v.path for v in late}
    assert {v.problem.variant.name for v in late} == {"full", "causal", "window", "key_lengths", "GQA"}
    assert succeeded([v for v in late if v.problem.is_timed])
    monkeypatch.setattr(check, "_functions", lambda *_: {"dense": lambda q, k, v: q})
    (verdict,) = check._check(Problem(CAUSAL, 8, "float32", heads=2, head_dim=4), [], 1, 16.0)
    assert (verdict.verdict, verdict.value_error) == ("left out", None)


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("benchmark_attention", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["scripts/benchmark_attention.py"])
    return module


def test_the_command_hands_its_options_on(script, tmp_path, monkeypatch, capsys, tiny_run):
    given = {}
    monkeypatch.setattr(script, "run_benchmark", lambda out, **options: given.update(options, out=out) or tiny_run.results)
    assert script.main(Options(lengths=(16,), heads=2, out=tmp_path, time_limit_per_case=9.0, kinds=("full",))) == 0
    assert (given["lengths"], given["sizes"], given["time_limit"], given["kinds"]) == ((16,), Sizes(0, heads=2), 9.0, ("full",))
    assert "left out: 0" in capsys.readouterr().out


def test_the_check_sets_the_exit_status(script, monkeypatch, capsys, verdicts):
    for wrong, status in ((False, 0), (True, 1)):
        ours = [replace(verdicts[0], verdict="fail"), *verdicts[1:]] if wrong else verdicts
        monkeypatch.setattr(script, "check_attention", lambda ours=ours, **_: ours)
        assert script.main(Options(check=True)) == status
    assert "fail: 1" in capsys.readouterr().out


def test_a_mistake_ends_as_one_line(script, capsys):
    with pytest.raises(SystemExit) as caught, report_errors(benchmark=True):
        script.main(Options(cases=("densest",)))
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("benchmark_attention.py: cases: expected some of dense")
