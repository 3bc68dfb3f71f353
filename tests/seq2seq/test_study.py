"""Which runs a study trains: those that are missing or have not ended, and no other."""

import json
from pathlib import Path

import pytest

from seq2seq import study
from seq2seq.config import ConfigError
from seq2seq.training import Outcome


@pytest.fixture
def trained(monkeypatch):
    """The folders that were trained; training takes every step at once, and the folder "stopped" catches a signal."""
    folders = []

    def train(config, run_dir, *, resume):
        assert resume
        folders.append(run_dir.name)
        write_steps(run_dir, config.training.max_steps)
        return Outcome("", config.training.max_steps, 1.0, signal=15 if run_dir.name == "stopped" else 0)

    monkeypatch.setattr(study, "train", train)
    return folders


def write_steps(folder: Path, steps: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text(json.dumps({"step": steps, "minutes": 1.0}) + "\n")


def configs(tmp_path: Path, *names: str) -> list[Path]:
    folder = tmp_path / "configs" / "length"
    folder.mkdir(parents=True)
    for name in names:
        (folder / f"{name}.toml").write_text("[training]\nmax_steps = 100\n")
    return [folder / f"{name}.toml" for name in names]


def test_only_runs_that_have_not_ended_are_trained(tmp_path, trained):
    paths, root, said = configs(tmp_path, "done", "half", "missing"), tmp_path / "runs", []
    write_steps(root / "length" / "done", 100)
    write_steps(root / "length" / "half", 50)
    given = [*paths, tmp_path / "other_run"]
    folders = study.study_runs(given, root=root, train_missing=True, log=said.append)
    assert trained == ["half", "missing"]
    assert folders == [*(root / "length" / name for name in ("done", "half", "missing")), tmp_path / "other_run"]
    assert [line.split(": ")[0] for line in said] == ["2 of 4", "3 of 4"]
    study.study_runs(given, root=root, train_missing=True, log=said.append)
    assert trained == ["half", "missing"]


def test_nothing_is_trained_unasked(tmp_path, trained):
    (path,) = configs(tmp_path, "half")
    write_steps(tmp_path / "runs" / "length" / "half", 50)
    with pytest.raises(ConfigError, match=r"--train-missing trains it\), got 50 steps in .*length/half"):
        study.study_runs([path], root=tmp_path / "runs")
    with pytest.raises(ConfigError, match="runs: expected at least one run folder or config file, got none"):
        study.study_runs([])
    assert trained == []


def test_a_signal_ends_the_study_where_it_can_go_on(tmp_path, trained):
    paths = configs(tmp_path, "stopped", "next")
    with pytest.raises(SystemExit) as ended:
        study.study_runs(paths, root=tmp_path / "runs", train_missing=True, log=lambda line: None)
    assert ended.value.code == 143
    assert trained == ["stopped"]
