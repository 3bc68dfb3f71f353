"""The command line of prepare_data.py."""

import importlib.util
import sys
from pathlib import Path

import pytest

from seq2seq.cli import report_errors

PATH = Path(__file__).parents[2] / "scripts" / "prepare_data.py"


@pytest.fixture(scope="module")
def main():
    spec = importlib.util.spec_from_file_location("prepare_data", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # --help reads the source of the module's classes
    spec.loader.exec_module(module)
    yield module.main
    del sys.modules[spec.name]


def test_it_writes_the_files_and_says_so(main, tmp_path, capsys):
    (tmp_path / "text.tsv").write_text("".join(f"one {i}\tun {i}\n" for i in range(20)))
    args = [
        "tsv",
        "--pair",
        "en-fr",
        "--train",
        str(tmp_path / "text.tsv"),
        "--held-out",
        "3",
        "--output-dir",
        str(tmp_path / "data"),
    ]
    main(args)
    out = tmp_path / "data" / "tsv" / "en-fr"
    for split, count in (("train", 14), ("dev", 3), ("test", 3)):
        for suffix in ("en", "fr", "ids"):
            assert len((out / f"{split}.{suffix}").read_text().splitlines()) == count
    printed = capsys.readouterr().out
    assert "20 pairs read, 20 kept" in printed
    assert str(out / "train.ids") in printed
    main(args)
    assert "prepared before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["bible", "--pair", "en-xx"], "corpus.pair: expected two of en (World English Bible), kjv"),
        (["bible", "--pair", "en"], "corpus.pair: expected source-target, as in en-fr, got en"),
        (["tsv"], "corpus.train: expected 1 file(s) for the recipe 'tsv', got ()"),
        (["tsv", "--train", "no/such.tsv"], "no/such.tsv: expected a readable file, got: No such file or directory"),
    ],
)
def test_a_mistake_ends_as_one_line(main, tmp_path, capsys, monkeypatch, args, message):
    monkeypatch.setattr(sys, "argv", ["scripts/prepare_data.py"])
    with pytest.raises(SystemExit) as caught, report_errors(benchmark=True):
        main([*args, "--output-dir", str(tmp_path)])
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"prepare_data.py: {message}")
    assert printed.err.count("\n") == 1
