"""From a config file to a comparison through the scripts, as a user would: the toy task, shortened."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODELS = ("rnn_none", "rnn_additive", "transformer")


def run_script(*arguments, text=None, code=0):
    result = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, input=text, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result


def train_toy(model, folder):
    return run_script(
        "scripts/train.py",
        f"configs/toy/reverse_{model}.toml",
        "--run-dir",
        folder / model,
        *("--corpus.output-dir", folder / "data"),
        *("--corpus.max-symbols", 8, "--corpus.max-test-symbols", 8, "--corpus.held-out", 200),
        *("--training.max-steps", 300, "--training.max-minutes", 0, "--training.eval-every", 300),
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The three toy runs, trained and compared (which evaluates them)."""
    folder = tmp_path_factory.mktemp("toy")
    output = {model: train_toy(model, folder).stdout for model in MODELS}
    compared = run_script("scripts/compare.py", *(folder / model for model in MODELS))
    return folder, output, compared


def token_accuracy(folder, model):
    metrics = json.loads((folder / model / "eval" / "test.metrics.json").read_text())
    return metrics["scores"]["overall"]["token_accuracy"]["value"]


def test_attention_learns_to_reverse_and_beats_chance(runs):
    """A guess is right once in twenty; the fixed vector must be behind."""
    folder, _, _ = runs
    none, additive, transformer = (token_accuracy(folder, model) for model in MODELS)
    assert additive > 80
    assert transformer > 50
    assert none > 5
    assert additive > none + 5


def test_training_says_what_it_does(runs):
    _, output, _ = runs
    text = output["rnn_additive"]
    for said in ("model: rnn, attention additive", "parameters", "training pairs", "compiling batch shape", "dev_loss"):
        assert said in text
    assert "produced" in text


def test_comparison_writes_table_and_figures(runs):
    folder, _, compared = runs
    for name in ("compare.md", "compare.json", "token_accuracy_by_length.png", "training_curves.png", "report.html"):
        assert (folder / "compare" / "test" / name).stat().st_size > 100
        assert name in compared.stdout
    assert "Transformer" in compared.stdout


def test_translate_gives_line_for_line_and_heat_maps(runs):
    folder, _, _ = runs
    text = "a b c\n\nd\n"
    attention = folder / "attention"
    result = run_script("scripts/translate.py", folder / "rnn_additive", "--attention", attention, text=text)
    lines = result.stdout.split("\n")
    assert len(lines) == 4
    assert lines[1] == lines[3] == ""
    assert sorted(path.name for path in attention.iterdir()) == ["00001.json", "00001.png", "00003.json", "00003.png"]
    numbers = json.loads((attention / "00001.json").read_text())
    assert numbers["columns"][-1] == "</s>"
    assert len(numbers["weights"]) == len(numbers["rows"])


def test_options_of_translation_and_scores(runs, tmp_path):
    """JSON, n-best, sampling and an ensemble from the command line, and scores that agree with what was found."""
    folder, _, _ = runs
    run, other = folder / "rnn_additive", folder / "transformer"
    (tmp_path / "in.txt").write_text("a b c\n")
    options = ("--input", tmp_path / "in.txt", tmp_path / "in.txt", "--json", "--beam-size", 3, "--n-best", 3)
    first, second = map(json.loads, run_script("scripts/translate.py", run, *options).stdout.splitlines())
    assert first == second
    best, *others = first["hypotheses"]
    assert len(others) == 2
    (tmp_path / "out.txt").write_text(best["text"] + "\n")
    pair = ("--source", tmp_path / "in.txt", "--target", tmp_path / "out.txt")
    scored = run_script("scripts/score.py", run, *pair)
    assert abs(float(scored.stdout) - best["log_probability"]) < 1e-3
    assert "perplexity of a token" in scored.stderr
    together = run_script("scripts/score.py", run, *pair, "--ensemble", other)
    assert float(together.stdout) != float(scored.stdout)
    drawn = run_script("scripts/translate.py", run, "--search", "sample", "--seed", 3, "--n-best", 4, text="a b c d\n").stdout
    assert drawn.count("1 ||| ") == 4


def test_mistakes_end_as_one_line(runs, tmp_path):
    folder, _, _ = runs
    config = tmp_path / "bad.toml"
    config.write_text("[training]\nlable_smoothing = 0.1\n")
    for arguments, expected in (
        (("scripts/train.py", config), f"{config}: training.lable_smoothing: expected a known key"),
        (("scripts/train.py", tmp_path / "none.toml"), "expected an existing file"),
        (("scripts/translate.py", tmp_path), "a run folder with config.toml"),
        (("scripts/evaluate.py", tmp_path), "a run folder with config.toml"),
        (
            ("scripts/translate.py", folder / "rnn_none", "--replace-unknown", "True"),
            "decoding.replace_unknown: expected a run with",
        ),
        (
            ("scripts/translate.py", folder / "rnn_none", "--beam-size", 51),
            "decoding.beam_size: expected an integer from 1 to 50",
        ),
        (("scripts/translate.py", folder / "rnn_none", "--attention", tmp_path / "a"), "attention"),
    ):
        result = run_script(*arguments, text="a b\n", code=2)
        assert result.stderr.count("\n") == 1, result.stderr
        assert expected in result.stderr


@pytest.mark.parametrize(
    "script", ["train", "evaluate", "compare", "translate", "score", "align", "score_alignment", "visualize", "prepare_data"]
)
def test_every_script_explains_itself(script):
    result = run_script(f"scripts/{script}.py", "--help")
    assert f"python scripts/{script}.py" in result.stdout


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--model.num-heads", 3), "and command line: model.num_heads: expected a divisor of model_dim = 64, got 3"),
        (("--model.num-haeds", 4), "and command line: model.num_haeds: expected a known key ('num_heads')"),
        (("--training.max-steps", "many"), "and command line: training.max_steps: expected an integer, got 'many' (str)"),
        (("--tokenizer.vocab-size", 500), ".toml: tokenizer.vocab_size: expected at most"),
    ],
)
def test_mistakes_on_the_command_line_and_in_the_vocabulary(tmp_path, options, expected):
    folders = ("--run-dir", tmp_path / "run", "--corpus.output-dir", tmp_path)
    result = run_script("scripts/train.py", "configs/toy/reverse_transformer.toml", *folders, *options, code=2)
    assert result.stderr.count("\n") == 1, result.stderr
    assert expected in result.stderr


def test_the_demo_explains_itself_and_refuses_what_it_does_not_know():
    helped = subprocess.run(["bash", "scripts/demo.sh", "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "bash scripts/demo.sh --quick" in helped.stdout
    refused = subprocess.run(["bash", "scripts/demo.sh", "--fast"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert refused.stderr == "error: argument: expected --quick or --help, got --fast\n"
