"""Shared by all tests."""

import jax
import pytest


@pytest.fixture
def quick_compilation():
    """Half the compilation time, for tests of shapes and options; equivalence and laws run as users run."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True, scope="module")
def compiled_programs_are_dropped():
    """What one file compiled is of no use to the next, and some gigabytes by the end of all."""
    yield
    jax.clear_caches()
