"""Shared by all tests."""

import jax
import pytest


@pytest.fixture
def quick_compilation():
    """Half the compilation time, for tests of shapes and options; equivalence and laws run as users run."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
