"""The benchmark of training: our process on a tiny task, the turns with processes that only speak, and what JoeyNMT is given."""

import ast
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sentencepiece
from tiny_run import RNN, TRANSFORMER, tiny_config

from seq2seq.batches import TrainBatches, encode_pairs
from seq2seq.benchmarks import training
from seq2seq.benchmarks.joeynmt_config import NoEqual, joeynmt_config, joeynmt_dropout
from seq2seq.benchmarks.training import NotHere, Plan, joeynmt_command, run_training_benchmark
from seq2seq.benchmarks.training_data import one_line, write_material
from seq2seq.benchmarks.training_options import Options
from seq2seq.benchmarks.training_protocol import Worker, WorkerError
from seq2seq.benchmarks.training_record import INSTALLED, OURS, STEP
from seq2seq.cli import report_errors
from seq2seq.config import TokenizerConfig, load_config, save_config
from seq2seq.corpora import load_corpus
from seq2seq.tokenizer import load_tokenizers

ROOT = Path(__file__).parents[2]
WORKERS = ROOT / "seq2seq" / "benchmarks"
PLAN = Plan(turns=2, steps=2, train_steps=5, decode_turns=2, beam=1, sentences=3)

# Writes down what it is asked; ours is told from the others by being given a run, and is three times as fast.
FAKE = """
import json, sys
sys.path.insert(0, WORKERS)
from training_protocol import serve
me = {"speed": 100}
def tell(*call):
    with open(CALLS, "a") as file:
        file.write(json.dumps([me["name"], *call]) + "\\n")
def prepare(**given):
    me["name"] = "ours" if "run_dir" in given else "step" if "batches" in given else "installed"
    me["speed"] = 300 if "run_dir" in given else 100
    print("what libraries print does no harm")
    return {"parameters": 7, "environment": {me["name"]: "1.0"}}
def warm_up():
    counts = {"compilations": {"train": 1, "eval": 1}, "shapes": {"train": 1, "eval": 1}}
    return counts if me["name"] == "ours" else {}
def train(steps):
    tell("train", steps)
    if FAILS == [me["name"], "train"]:
        raise MemoryError("no room")
    return {"seconds": 100 * steps / me["speed"], "target_tokens": 100 * steps, "compilations": 2}
def decode(beam_size):
    tell("decode", beam_size)
    if FAILS == [me["name"], "decode"]:
        sys.exit(1)
    return {"seconds": 300 / me["speed"], "mean_length": 4.0, "unfinished": 0.0, "texts": ["a b"] * 3}
serve({"prepare": prepare, "warm_up": warm_up, "train": train, "decode": decode,
       "warm_up_decoding": lambda beam_size: {}, "peak_bytes": lambda: 2**20})
"""


@pytest.fixture
def speaking(tmp_path, monkeypatch):
    """Runs the benchmark with processes that only speak; returns results, what was asked for, and the log."""
    monkeypatch.setattr(training, "REST", 0.0)
    save_config(tiny_config(tmp_path, model=TRANSFORMER), tmp_path / "tiny.toml")

    def run(fails=(), here=True, **plan):
        calls, lines, fake = tmp_path / "calls", [], tmp_path / "fake.py"
        fake.write_text(f"WORKERS, CALLS, FAILS = {str(WORKERS)!r}, {str(calls)!r}, {list(fails)!r}\n{FAKE}")
        command = [sys.executable, str(fake)]
        monkeypatch.setattr(training, "OUR_COMMAND", command)
        monkeypatch.setattr(training, "joeynmt_config", lambda config, folder: {})
        if here:
            monkeypatch.setattr(training, "joeynmt_command", lambda python: command)
        results = run_training_benchmark(tmp_path / "out", [tmp_path / "tiny.toml"], plan=replace(PLAN, **plan), log=lines.append)
        asked = [json.loads(line) for line in calls.read_text().splitlines()]
        return SimpleNamespace(results=results, asked=asked, lines=lines, out=tmp_path / "out")

    return run


def test_systems_take_turns_forwards_and_backwards(speaking):
    asked = speaking().asked
    blocks = [[name, "train", 2] for name in ("ours", "step", "installed", "installed", "step", "ours")]
    longer = [["ours", "train", 1], ["installed", "train", 1]]
    texts = [[name, "decode", 1] for name in ("ours", "installed", "installed", "ours")]
    assert asked == blocks + longer + texts


def test_rows_hold_rates_and_ratios(speaking):
    results = speaking().results
    assert [(r.system, r.tokens_per_second, r.to_ours) for r in results.training] == [
        (OURS, pytest.approx(300), pytest.approx(1)),
        (STEP, pytest.approx(100), pytest.approx(3)),
        (INSTALLED, pytest.approx(100), pytest.approx(3)),
    ]
    assert [(r.system, r.sentences_per_second, r.to_ours) for r in results.decoding] == [
        (OURS, pytest.approx(3), pytest.approx(1)),
        (INSTALLED, pytest.approx(1), pytest.approx(3)),
    ]
    assert results.training[0].compilations == {"train": 1 + 2 * 2, "eval": 1}  # what the blocks compiled counts
    assert results.training[1].compilations is None
    assert {r.peak_bytes for r in results.training} == {2**20}
    assert {r.trained_steps for r in results.decoding} == {5}
    assert results.left_out == []


def test_both_files_hold_what_was_measured(speaking):
    run = speaking()
    written = json.loads((run.out / "results.json").read_text())
    assert written["settings"] == {"turns": 2, "steps": 2, "train_steps": 5, "decode_turns": 2, "beam": 1, "sentences": 3}
    assert [row["tokens_per_second"] for row in written["training"]] == pytest.approx([300, 100, 100])
    assert written["decoding"][1]["sentences_per_second"] == pytest.approx(1)
    assert {"ours", "step", "installed", "command", "load_average"} <= written["environment"].keys()
    rows = [line.split() for line in (run.out / "table.txt").read_text().splitlines() if line.startswith(" tiny")]
    assert rows[0][:5] == ["tiny", "ours", "7", "300", "1.00"]
    assert rows[2][:5] == ["tiny", "joeynmt", "7", "100", "3.00"]
    assert rows[4][:5] == ["tiny", "joeynmt", "1", "1.00", "3.00"]


@pytest.mark.parametrize(
    ("fails", "trained", "decoded", "reason"),
    [
        (("step", "train"), [OURS, INSTALLED], [OURS, INSTALLED], "train: MemoryError: no room"),
        (("installed", "decode"), [OURS, STEP, INSTALLED], [OURS], "decode: the process has ended"),
    ],
)
def test_one_that_fails_is_left_out_and_the_others_go_on(speaking, fails, trained, decoded, reason):
    run = speaking(fails)
    assert [row.system for row in run.results.training] == trained
    assert [row.system for row in run.results.decoding] == decoded
    (omission,) = run.results.left_out
    assert omission.reason.startswith(reason)
    assert omission.reason.endswith(f"(log: {run.out / f'tiny.{omission.system}.log'})")
    assert any("left out" in line for line in run.lines)
    assert f"tiny {omission.system}: {reason}" in (run.out / "table.txt").read_text()


@pytest.mark.parametrize(("load", "told"), [(0.2, 0), (1.7, 1)])
def test_a_busy_computer_is_told(speaking, monkeypatch, load, told):
    monkeypatch.setattr(training.os, "getloadavg", lambda: (load, 9.0, 9.0))
    run = speaking(decode_turns=0)
    assert sum(f"the load average is {load} " in line for line in run.lines) == told
    assert f"load average before {load:.2f};" in (run.out / "table.txt").read_text()


def test_our_own_failure_is_an_error(speaking):
    with pytest.raises(WorkerError, match="train: MemoryError: no room"):
        speaking(("ours", "train"))


def test_without_joeynmt_ours_is_measured_and_this_is_told_once(speaking):
    run = speaking(here=False, decode_turns=0)
    assert [row.system for row in run.results.training] == [OURS]
    assert run.results.decoding == []
    told = [line for line in run.lines if line.startswith("JoeyNMT is not here: ")]
    assert len(told) == 1
    assert "No module named 'joeynmt'" in told[0]
    assert [omission.system for omission in run.results.left_out] == [STEP, INSTALLED]


def test_an_interpreter_that_is_none_is_named():
    with pytest.raises(NotHere, match="no/such/python: No such file"):
        joeynmt_command("no/such/python")


@pytest.mark.parametrize("name", ["joeynmt_worker", "training_protocol"])
def test_what_runs_in_another_environment_imports_the_standard_library_only(name):
    tree = ast.parse((WORKERS / f"{name}.py").read_text())
    modules = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in tree.body if _imports(node)]
    assert len(modules) > 5
    assert {module.split(".")[0] for module in modules} <= sys.stdlib_module_names


def _imports(node):
    return isinstance(node, ast.Import | ast.ImportFrom)


def test_our_process_trains_counts_and_translates(tmp_path, monkeypatch):
    """One bucket: one program of each step, none of them compiled again while it is timed."""
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    config = tiny_config(tmp_path, model=TRANSFORMER)
    config = replace(config, batches=replace(config.batches, lengths=(6,)))
    (tmp_path / "material").mkdir()
    material = write_material(config, tmp_path / "material", 2, 4, lambda line: None)
    with Worker(training.OUR_COMMAND, tmp_path / "log") as worker:
        facts = worker.ask("prepare", run_dir=str(material.run_dir), sentences=material.sentences)
        assert facts["parameters"] > 1000
        assert facts["environment"]["platform"] == "cpu"
        warm = worker.ask("warm_up")
        assert warm["compilations"] == {"train": 1, "eval": 1}
        assert warm["shapes"] == {"train": 1, "eval": 1}
        assert warm["compile_seconds"] > 0
        block = worker.ask("train", steps=2)
        with np.load(material.batches) as arrays:
            expected = sum(int(np.sum(arrays[f"target.{i}"][:, 1:] != 1)) for i in range(2))
        assert (block["target_tokens"], block["compilations"]) == (expected, 0)
        assert worker.ask("warm_up_decoding", beam_size=1)["compilations"] == 1
        decoded = worker.ask("decode", beam_size=1)
        assert len(decoded["texts"]) == 4
        assert 0 < decoded["mean_length"] <= 8
        assert min(decoded["seconds"], block["seconds"]) > 0
        assert worker.ask("peak_bytes") > 2**26
        with pytest.raises(WorkerError, match=r"no_such: KeyError: 'no_such' \(log: "):
            worker.ask("no_such")


@pytest.fixture
def material(tmp_path):
    config = replace(tiny_config(tmp_path), tokenizer=TokenizerConfig(kind="bpe", vocab_size=16))
    folder = tmp_path / "material"
    folder.mkdir()
    return config, write_material(config, folder, 9, 0, lambda line: None)


def test_joeynmt_is_given_the_same_pairs_with_its_ids(material):
    """Read as JoeyNMT reads: text to pieces, pieces to their lines."""
    config, written = material
    folder, corpus, tokenizers = written.folder, load_corpus(config.corpus), load_tokenizers(written.run_dir)
    vocabulary = (folder / "source.vocabulary").read_text().splitlines()
    assert vocabulary[:4] == ["<unk>", "<pad>", "<s>", "</s>"]
    assert vocabulary == (folder / "target.vocabulary").read_text().splitlines()
    for side in ("source", "target"):
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.model"))
        lines = (folder / f"train.{side}").read_text().splitlines()
        assert len(lines) == len(corpus.train)
        for line, pair in list(zip(lines, corpus.train, strict=True))[:20]:
            ids = [vocabulary.index(piece) for piece in model.encode(line, out_type=str)]
            assert ids == tokenizers.source.encode(getattr(pair, side))
    assert (folder / "test.source").read_text().splitlines() == written.sentences
    assert [pair.target for pair in corpus.test] == written.references
    assert not (folder / "test.target").exists()


def test_joeynmt_is_given_our_batches_without_rows_of_padding(material):
    config, written = material
    encoded = encode_pairs(load_corpus(config.corpus).train, load_tokenizers(written.run_dir))
    batches, removed = iter(TrainBatches(encoded, config.batches, config.seed)), 0
    with np.load(written.batches) as arrays:
        assert len(arrays.files) == 2 * 9
        for i in range(9):
            batch, source, target = next(batches), arrays[f"source.{i}"], arrays[f"target.{i}"]
            removed += len(batch.source) - len(source)
            ours = batch.source[: len(source)]
            assert not batch.source[len(source) :].any()
            np.testing.assert_array_equal(np.choose(np.minimum(source, 2), [1, 0, source]), ours)
            assert source.shape[1] == target.shape[1] - 1 == batch.source.shape[1]
            assert (target[:, 0] == 2).all()
            assert ((target == 3).sum(axis=1) == 1).all()
    assert removed > 0


def test_a_line_is_one_line_whatever_it_holds():
    assert one_line("a\u2028b c\x85d") == "a b c d"


def test_the_transformer_in_the_words_of_joeynmt(tmp_path):
    config = replace(load_config(ROOT / "configs/benchmark/transformer.toml"), seed=5)
    theirs = joeynmt_config(config, tmp_path)
    stack = theirs["model"]["encoder"]
    assert (stack["hidden_size"], stack["ff_size"], stack["num_heads"], stack["num_layers"]) == (256, 1024, 4, 3)
    assert (stack["layer_norm"], stack["dropout"], theirs["random_seed"]) == ("pre", 0.1, 5)
    assert stack["embeddings"] == {"embedding_dim": 256, "scale": True, "dropout": 0.1}
    assert theirs["model"]["decoder"] == stack
    assert theirs["model"]["tied_embeddings"]
    assert theirs["model"]["tied_softmax"]
    options = theirs["training"]
    assert (options["batch_size"], options["batch_type"], options["normalization"]) == (4096, "token", "tokens")
    assert (options["label_smoothing"], options["clip_grad_norm"], options["adam_betas"]) == (0.1, 1.0, [0.9, 0.98])
    assert (options["learning_rate"], options["learning_rate_warmup"]) == (1e-3, 100)
    assert theirs["data"]["src"]["max_length"] == config.batches.lengths[-1] - 1  # without </s>
    assert theirs["testing"]["beam_alpha"] == config.decoding.alpha
    assert json.loads(json.dumps(theirs)) == theirs
    deeper = replace(config, model=replace(config.model, encoder_layers=6, attention_dropout_rate=0.0))
    assert joeynmt_config(deeper, tmp_path)["model"]["encoder"]["num_layers"] == 6
    assert joeynmt_dropout(deeper) == {"attention": 0.0, "feed_forward": 0.1}


def test_the_rnn_in_the_words_of_joeynmt(tmp_path):
    config = load_config(ROOT / "configs/benchmark/rnn_additive.toml")
    model = joeynmt_config(config, tmp_path)["model"]
    assert (model["encoder"]["hidden_size"], model["encoder"]["bidirectional"], model["encoder"]["rnn_type"]) == (
        256,
        True,
        "gru",
    )
    assert (model["decoder"]["hidden_size"], model["decoder"]["attention"]) == (512, "bahdanau")
    assert not model["tied_embeddings"]
    assert not model["tied_softmax"]
    assert joeynmt_dropout(config) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": "rope"}, "model.positions: expected 'sinusoidal' to compare with JoeyNMT, got 'rope'"),
        ({"word_dropout_rate": 0.1}, "model.word_dropout_rate: expected 0.0"),
    ],
)
def test_what_joeynmt_has_not_is_named(tmp_path, change, message):
    config = load_config(ROOT / "configs/benchmark/transformer.toml")
    with pytest.raises(NoEqual, match=message):
        joeynmt_config(replace(config, model=replace(config.model, **change)), tmp_path)


def test_rnns_that_joeynmt_has_not_are_named(tmp_path):
    config = load_config(ROOT / "configs/benchmark/rnn_additive.toml")
    with pytest.raises(NoEqual, match=r"model\.align_dim: expected 512 to compare with JoeyNMT, got 8"):
        joeynmt_config(replace(config, model=replace(config.model, align_dim=8)), tmp_path)
    with pytest.raises(NoEqual, match=r"model\.attention: expected 'additive' or 'concat' or 'general'"):
        joeynmt_config(replace(config, model=replace(RNN, attention="none")), tmp_path)


def test_impossible_plans_are_errors(tmp_path):
    for name, value in (("turns", 0), ("steps", 0), ("decode_turns", -1), ("beam", 0)):
        with pytest.raises(ValueError, match=f"{name}: expected an integer >= "):
            run_training_benchmark(tmp_path / "out", ["a.toml"], plan=replace(PLAN, **{name: value}))
    with pytest.raises(ValueError, match="configs: expected files of different names, got a, a"):
        run_training_benchmark(tmp_path / "out", ["a.toml", "b/a.toml"])
    assert not (tmp_path / "out").exists()


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("benchmark_training", ROOT / "scripts" / "benchmark_training.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["scripts/benchmark_training.py"])
    return module


def test_the_command_hands_its_options_on(script, speaking, tmp_path, monkeypatch, capsys):
    results, given = speaking(decode_turns=0).results, {}
    monkeypatch.setattr(
        script, "run_training_benchmark", lambda out, configs, **rest: given.update(rest, out=out, configs=configs) or results
    )
    options = Options(configs=(Path("x.toml"),), joeynmt="py", out=tmp_path, turns=7, steps=3, beam=4, train_steps=9, sentences=2)
    assert script.main(options) == 0
    assert given["plan"] == Plan(turns=7, steps=3, train_steps=9, decode_turns=3, beam=4, sentences=2)
    assert (given["joeynmt"], given["out"], given["configs"]) == ("py", tmp_path, (Path("x.toml"),))
    assert "joeynmt-step" in capsys.readouterr().out
    assert all((ROOT / path).exists() for path in Options().configs)


def test_a_mistake_ends_as_one_line(script, capsys):
    with pytest.raises(SystemExit) as caught, report_errors(benchmark=True):
        script.main(Options(configs=(Path("no_such.toml"),)))
    assert caught.value.code == 2
    assert capsys.readouterr().err == "benchmark_training.py: no_such.toml: config: expected an existing file, got no such file\n"
