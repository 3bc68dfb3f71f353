"""Early stopping knows which way a metric gets better, and counts patience across a checkpoint."""

import pytest

from seq2seq.early_stopping import DIRECTIONS, EarlyStopping


def feed(stopper, values):
    for step, value in enumerate(values, start=1):
        stopper = stopper.update(step, float(value))
    return stopper


def test_rising_bleu_never_stops_and_rising_loss_does():
    assert not feed(EarlyStopping("dev_bleu", 2), [1, 2, 3, 4]).exhausted
    stopper = feed(EarlyStopping("dev_loss", 2), [1, 2, 3])
    assert stopper.exhausted
    assert (stopper.best, stopper.best_step) == (1, 1)


@pytest.mark.parametrize("metric", DIRECTIONS)
def test_equal_values_are_no_improvement(metric):
    stopper = feed(EarlyStopping(metric, 3), [1.0, 1.0])
    assert not stopper.improved
    assert stopper.waited == 1


def test_zero_patience_never_stops():
    assert not feed(EarlyStopping("dev_loss", 0), range(100)).exhausted


def test_not_a_number_counts_as_worse():
    stopper = feed(EarlyStopping("dev_loss", 2), [float("nan"), float("nan")])
    assert stopper.exhausted
    assert stopper.best is None
    assert not stopper.improved


def test_dictionary_round_trip_continues_the_count():
    stopper = feed(EarlyStopping("dev_loss", 3), [1, 2])
    again = EarlyStopping("dev_loss", 3, **stopper.to_dict())
    assert again == stopper
    assert feed(again, [2, 2]).exhausted


def test_unknown_metric():
    with pytest.raises(ValueError, match="metric: expected one of dev_loss"):
        EarlyStopping("dev_blue", 1)
