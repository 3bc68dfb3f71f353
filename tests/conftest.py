"""Shared by all tests."""

import os
from contextlib import contextmanager

import jax
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache


@contextmanager
def _few_optimizations():
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def quick_compilation():
    """Half the compilation time, here and in the scripts that the test starts, for tests of shapes and options; values and laws
    are compiled as users compile."""
    with _few_optimizations():
        yield


@pytest.fixture(scope="module")
def quick_compilation_of_the_file():
    """The same with the fixtures of a file, for tests that compare with their bits."""
    with _few_optimizations():
        yield


@pytest.fixture(autouse=True, scope="session")
def programs_are_kept(tmp_path_factory):
    """What one test compiled, another finds, in each worker and in the scripts that tests start."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "programs")
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    reset_cache()  # whether there is one was asked at the first compilation


@pytest.fixture(autouse=True, scope="module")
def compiled_programs_are_dropped():
    """What one file compiled is of no use to the next, and some gigabytes by the end of all."""
    yield
    jax.clear_caches()
