"""Compiled programs are kept between calls, and freed memory between steps, where the user wants it and where it can be done."""

import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from seq2seq.process import keep_compiled_programs, keep_freed_memory

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


STEPS = """
import resource, sys
from seq2seq.process import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else None
import jax, jax.numpy as jnp
step = jax.jit(lambda x: jnp.sin(x[:, None] + x[None]) @ x)  # a product with a matrix of 64 MiB that is made anew each time
x = jnp.ones(4096)
for n in range(35):
    if n == 30:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step(x).block_until_ready()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def steps(mode, **environment):
    """(what keep_freed_memory returned, page faults of five steps with a buffer of 64 MiB each) in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if name not in ("GLIBC_TUNABLES", "MALLOC_ARENA_MAX")}
    command = [sys.executable, "-c", STEPS, mode]
    kept, faults = subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True).stdout.split()
    return kept, int(faults)


def test_freed_memory_is_kept_from_step_to_step():
    pages = 5 * 2**26 // os.sysconf("SC_PAGESIZE")
    kept, faults = steps("keep")
    _, faults_without = steps("leave")
    assert faults_without > pages / 2
    if platform.libc_ver()[0] == "glibc":
        assert kept == "True"
        assert faults < pages / 50
    else:  # another C library is left as it is
        assert kept == "False"


def test_what_the_user_said_of_malloc_holds(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert keep_freed_memory() is False
