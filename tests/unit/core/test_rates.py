"""Rates as people write them."""

import pytest

from pipeline.core.rates import Rates, parse_rate


@pytest.mark.parametrize(
    ("text", "rate"), [("100", 100), ("5/s", 5), ("30/m", 0.5), (7, 7), ("0.5/h", 0.5 / 3600)]
)
def test_rates_are_read(text: object, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "fast", "0", "-1", "5/d", "1e3", "inf"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no rate"):
        parse_rate(text)


def test_without_rates_nothing_is_held_back():
    assert (Rates().catchup, Rates().queues) == (None, {})
