"""How `orders.py` is tested."""

import pytest
from orders import app

ORDER = {"number": 55, "items": [{"sku": "a", "price": "12.90"}, {"sku": "b", "price": "7.10"}]}


@pytest.fixture
def dueline_app():
    return app


def test_a_reminder_asks_for_the_sum_and_comes_again(dueline):
    outcome = dueline.run("order.remind", ORDER)
    assert outcome.result == {"asked_for": "20.00"}
    assert [job.handler for job in outcome.scheduled] == ["order.remind"]


def test_who_has_paid_is_left_alone(dueline):
    assert dueline.run("order.dun", {**ORDER, "paid": True}).status == "cancelled"


def test_a_wrong_order_is_dead_with_the_place(dueline, capsys):
    outcome = dueline.run("order.remind", {"number": 55, "items": [{"sku": "a"}]})
    assert outcome.reason == "invalid_payload"
    assert "order.items[0].price: missing" in capsys.readouterr().out
