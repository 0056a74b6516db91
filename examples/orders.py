"""Handlers that are checked, watched and tested. `pytest examples/test_orders.py` needs no store."""

from dataclasses import dataclass
from decimal import Decimal

from pipeline import Cancel, Dueline, RetryPolicy


class Failures:
    """A middleware: counts what failed, by handler."""

    def __init__(self):
        self.counts = {}

    def after(self, ctx, outcome):
        if outcome.error is not None:
            self.counts[ctx.handler] = self.counts.get(ctx.handler, 0) + 1


failures = Failures()
app = Dueline(middleware=[failures])


@dataclass
class Item:
    sku: str
    price: Decimal


@dataclass
class Order:
    number: int
    items: list[Item]
    paid: bool = False


@app.job("order.remind", max_age="3d", retry=RetryPolicy(base="1m"), aliases=["order.dun"])
def remind(ctx, order: Order):
    if order.paid:
        raise Cancel("paid")
    total = sum(item.price for item in order.items)
    ctx.schedule("order.remind", ctx.payload, in_="7d")
    return {"asked_for": str(total)}


@app.on_dead
def tell(job):
    print(f"{job.handler} {job.job_id}: {job.reason}: {job.error.message}")
