"""Training goes on exactly where it stopped, however it stopped."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from tiny_run import TRANSFORMER, tiny_config

from seq2seq.checkpoints import CheckpointError, CheckpointStore, load_run
from seq2seq.config import ConfigError, OptimizerConfig, save_config
from seq2seq.corpora import Pair
from seq2seq.tokenizer import train_tokenizers
from seq2seq.training import Trainer, train

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("quick_compilation_of_the_file")


def latest_state(run_dir):
    """(meta, every array) of the newest checkpoint, read without any template."""
    store = CheckpointStore(run_dir, "latest", keep=2)
    step = store.steps[0]
    items = {name: ocp.args.StandardRestore() for name in ("model", "optimizer")}
    restored = store.manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore(), **items))
    leaves = jax.tree_util.tree_leaves_with_path((restored["model"], restored["optimizer"]))
    return restored.meta, {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def assert_same_state(one, other):
    (meta, arrays), (other_meta, other_arrays) = latest_state(one), latest_state(other)
    for key in ("step", "data", "stopper", "tokenizers"):
        assert meta[key] == other_meta[key], key
    assert arrays.keys() == other_arrays.keys()
    assert len(arrays) > 20
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, other_arrays[name], err_msg=name)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The run of 20 steps that all others must equal."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    config = tiny_config(folder)
    train(config, folder / "run")
    return config, folder / "run"


def test_ten_and_ten_steps_equal_twenty(uninterrupted, tmp_path):
    config, run_dir = uninterrupted
    train(replace(config, training=replace(config.training, max_steps=10)), tmp_path / "run")
    train(config, tmp_path / "run", resume=True)
    assert_same_state(run_dir, tmp_path / "run")


def test_metrics_are_whole_and_in_order(uninterrupted):
    lines = [json.loads(line) for line in (uninterrupted[1] / "metrics.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("train", 5),
        ("train", 10),
        ("dev", 10),
        ("train", 15),
        ("train", 20),
        ("dev", 20),
    ]
    assert lines[-1].keys() == {"kind", "step", "minutes", "dev_loss", "dev_accuracy"}
    assert lines[0].keys() >= {"loss", "learning_rate", "grad_norm", "tokens", "tokens_per_second", "minutes"}
    assert lines[0]["loss"] > lines[-2]["loss"]


def start_script(config, folder, *options):
    save_config(config, folder / "config.toml")
    command = [sys.executable, "scripts/train.py", str(folder / "config.toml"), "--run-dir", str(folder / "run"), *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_step(folder, step, process):
    metrics = folder / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if metrics.exists() and any(json.loads(line)["step"] >= step for line in metrics.read_text().split("\n")[:-1]):
            return
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.005)
    pytest.fail(f"no step {step} after four minutes")


def test_a_killed_run_resumes_to_the_same_parameters(uninterrupted, tmp_path):
    config, run_dir = uninterrupted
    process = start_script(config, tmp_path)
    wait_for_step(tmp_path, int(np.random.default_rng().choice([5, 10, 15])), process)
    process.kill()
    process.communicate()
    train(config, tmp_path / "run", resume=True)
    assert_same_state(run_dir, tmp_path / "run")


def test_sigterm_saves_and_says_how_to_go_on(tmp_path):
    config = tiny_config(tmp_path, max_steps=1_000_000, eval_every=1_000_000, checkpoint_every=1_000_000)
    process = start_script(config, tmp_path)
    wait_for_step(tmp_path, 5, process)
    process.send_signal(signal.SIGTERM)
    output = process.communicate()[0]
    assert process.returncode == 128 + signal.SIGTERM
    meta, _ = latest_state(tmp_path / "run")
    assert f"saved step {meta['step']}" in output
    assert f"--run-dir {tmp_path / 'run'} --resume" in output
    assert meta["step"] >= 5


def test_an_existing_run_is_neither_overwritten_nor_continued_with_another_config(uninterrupted):
    config, run_dir = uninterrupted
    with pytest.raises(ConfigError, match="--resume to go on with it"):
        train(config, run_dir)
    other = replace(config, optimizer=OptimizerConfig(learning_rate=1e-3))
    with pytest.raises(ConfigError, match=r"optimizer.learning_rate: expected 0.01, as the run to resume has it, got 0.001"):
        train(other, run_dir, resume=True)


def test_a_finished_run_says_so(uninterrupted, capsys):
    config, run_dir = uninterrupted
    outcome = train(config, run_dir, resume=True)
    assert outcome.step == 20
    assert "already at step 20 of 20: nothing left to train" in capsys.readouterr().out


def test_patience_ends_training(tmp_path):
    config = tiny_config(tmp_path, max_steps=1000, eval_every=2, patience=2)
    config = replace(config, optimizer=OptimizerConfig(learning_rate=1e-12, clip_norm=1e-9))
    outcome = train(config, tmp_path / "run")
    assert "patience" in outcome.reason
    assert outcome.step < 1000


def test_a_damaged_checkpoint_gives_way_to_the_one_before(uninterrupted, tmp_path, capsys):
    config, run_dir = uninterrupted
    train(config, tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "latest" / "20"
    for path in newest.rglob("*"):
        if path.is_file():
            os.truncate(path, path.stat().st_size // 2)
    train(config, tmp_path / "run", resume=True)
    assert f"{newest} cannot be read" in capsys.readouterr().err
    assert_same_state(run_dir, tmp_path / "run")


def test_a_checkpoint_of_another_model_is_refused_by_its_arrays(uninterrupted, tmp_path):
    _, run_dir = uninterrupted
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    lines = (copy / "config.toml").read_text().splitlines()
    align_dim = next(line for line in lines if line.startswith("align_dim = ")).removeprefix("align_dim = ")

    def with_line(key, value):
        changed = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in lines]
        assert changed != lines
        (copy / "config.toml").write_text("\n".join(changed))

    with_line("align_dim", "3")
    with pytest.raises(CheckpointError, match=rf"score_vector.value is \({align_dim},\), the model has \(3,\)"):
        load_run(copy)
    with_line("attention", '"general"')
    with pytest.raises(CheckpointError, match=r"scaled_kernel.value is not there, .*vector.value is .*, the model has none"):
        load_run(copy)


def test_load_run_gives_the_parameters_of_the_best_evaluation(uninterrupted):
    meta, arrays = latest_state(uninterrupted[1])
    assert load_run(uninterrupted[1]).step == meta["stopper"]["best_step"]
    latest = load_run(uninterrupted[1], "latest")
    assert latest.step == 20
    table = next(array for name, array in arrays.items() if "target_embedding" in name)
    np.testing.assert_array_equal(latest.model.target_embedding.table[...], table)


def test_load_run_refuses_what_is_no_run_and_another_tokenizer(uninterrupted, tmp_path):
    with pytest.raises(ConfigError, match=r"a run folder with config\.toml"):
        load_run(tmp_path)
    config, run_dir = uninterrupted
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(CheckpointError, match="expected a best checkpoint, found none"):
        load_run(copy)
    shutil.copytree(run_dir / "checkpoints", copy / "checkpoints")
    other = [Pair("q r s t u v", "v u t s r q", "1")]
    train_tokenizers(other, config.tokenizer, tmp_path)
    (tmp_path / "tokenizer.model").replace(copy / "tokenizer.model")
    with pytest.raises(ConfigError, match="tokenizer: expected the model trained with, sha256"):
        load_run(copy)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_compilations_are_at_most_the_bucket_shapes(tmp_path, accumulate):
    trainer = Trainer(tiny_config(tmp_path, model=TRANSFORMER, accumulate=accumulate), tmp_path / "run")
    trainer.run()
    whole, add = (program._cache_size() for program in trainer.train_step.programs)
    shapes = len(trainer.batches.shapes)
    assert (whole, add) == ((shapes, 0) if accumulate == 1 else (0, shapes))
    assert trainer.validation.eval_step._cache_size() <= len(trainer.batches.shapes)


TWO_DEVICES = """
import sys
import jax, numpy as np
from seq2seq.config import load_config
from seq2seq.training import Trainer
trainer = Trainer(load_config(sys.argv[1]), __import__("pathlib").Path(sys.argv[2]))
trainer.run()
assert trainer.mesh.size == int(sys.argv[4])
np.savez(sys.argv[3], *map(np.asarray, jax.tree.leaves(trainer.state.params)))
"""


def test_two_devices_train_like_one(tmp_path):
    """Rows do not divide by the devices (48 // 6 = 8 does, 48 // 4 = 12 does; 45 // 6 = 7 does not)."""
    config = tiny_config(tmp_path, max_steps=4)
    config = replace(config, batches=replace(config.batches, tokens=45), model=replace(config.model, dropout_rate=0.0))
    # So large an epsilon makes a step of Adam linear in the gradient: roundoff of a small one is not magnified.
    config = replace(config, optimizer=replace(config.optimizer, learning_rate=0.1, warmup_steps=0, epsilon=1.0))
    save_config(config, tmp_path / "config.toml")
    results = []
    for devices in (1, 2):
        flags = os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={devices}"
        arguments = [tmp_path / "config.toml", tmp_path / f"run{devices}", tmp_path / f"{devices}.npz", str(devices)]
        environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        subprocess.run([sys.executable, "-c", TWO_DEVICES, *map(str, arguments)], check=True, env=environment, cwd=ROOT)
        results.append(np.load(tmp_path / f"{devices}.npz"))
    for name in results[0].files:
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-4, atol=1e-5)
