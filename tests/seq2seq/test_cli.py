"""Compiled programs are kept between calls of the scripts, where the user wants it and where it can be done."""

import os
import sys
from types import SimpleNamespace

import pytest

from seq2seq.cli import keep_compiled_programs

FOLDER, SECONDS = "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


@pytest.fixture
def told(monkeypatch, tmp_path):
    """What jax is told, with a home of its own and neither variable set; all of it is undone."""
    values = {}
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (FOLDER, SECONDS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(config=SimpleNamespace(update=values.__setitem__)))
    return values


def test_programs_are_kept_in_the_home(told, tmp_path):
    keep_compiled_programs()
    (folder,) = (tmp_path / ".cache" / "attn-seq2seq").iterdir()
    assert told == {FOLDER.lower(): str(folder), SECONDS.lower(): 0.5}
    assert os.environ[FOLDER] == str(folder)  # for a jax that is imported later


def test_the_users_own_folder_goes_first_and_an_empty_one_is_none(told, monkeypatch):
    monkeypatch.setenv(FOLDER, "/somewhere")
    keep_compiled_programs()
    assert told[FOLDER.lower()] == "/somewhere"
    monkeypatch.setenv(FOLDER, "")
    keep_compiled_programs()
    assert told[FOLDER.lower()] is None


def test_a_home_that_cannot_be_written_to_keeps_nothing(told, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    keep_compiled_programs()
    assert told == {}
    assert FOLDER not in os.environ
