"""Shared by all tests."""

import jax
import pytest


@pytest.fixture
def quick_compilation():
    """Half the compilation time, for tests of shapes and options; equivalence and laws run as users run."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def programs_are_kept(tmp_path_factory):
    """For files that train the same small models again and again: what is compiled once is found again."""
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("programs")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    reset_cache()  # whether there is one was asked at the first compilation
    yield
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    reset_cache()


@pytest.fixture(autouse=True, scope="module")
def compiled_programs_are_dropped():
    """What one file compiled is of no use to the next, and some gigabytes by the end of all."""
    yield
    jax.clear_caches()
