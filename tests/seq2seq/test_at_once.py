"""Batches at once: each item once, the first of a shape before the others, an error that ends the rest."""

import os
import threading
import time

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.translation.at_once import MOST_AT_ONCE, call_at_once, how_many_at_once


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_every_item_once_and_the_first_of_each_shape_first(shapes, workers):
    results = list(call_at_once(lambda item: item * item, range(len(shapes)), shapes, workers))
    places = [place for place, _ in results]
    assert sorted(results) == [(i, i * i) for i in range(len(shapes))]
    assert {shapes[place] for place in places[: len(set(shapes))]} == set(shapes)


def test_two_shapes_are_worked_on_at_the_same_time():
    both = threading.Barrier(2, timeout=30)
    places = [place for place, _ in call_at_once(lambda _: both.wait(), [0, 1], ["a", "b"], 2)]
    assert places == [0, 1]


def test_the_others_of_a_shape_wait_for_its_first():
    log = []

    def work(item):
        log.append(("begins", item))
        time.sleep(0.05)
        log.append(("ends", item))

    list(call_at_once(work, range(3), ["a"] * 3, 3))
    assert log[:2] == [("begins", 0), ("ends", 0)]
    assert {what for what, _ in log[2:4]} == {"begins"}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_ends_what_has_not_begun(workers):
    begun = []

    def work(item):
        begun.append(item)
        if item == 0:
            raise ValueError("batch 0")
        time.sleep(0.01)

    with pytest.raises(ValueError, match="batch 0"):
        list(call_at_once(work, range(40), range(40), workers))
    assert len(begun) < 40


def test_as_many_at_once_as_processors_and_one_on_several_devices(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    for processors in (1, 2, 64):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=processors: range(n), raising=False)
        assert how_many_at_once() == min(processors, MOST_AT_ONCE)
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    assert how_many_at_once() == 1
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert how_many_at_once() == 1
