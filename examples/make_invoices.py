"""Writes invoices.csv: unpaid invoices of made-up companies, the same file every time (a fixed seed).

    python examples/make_invoices.py > examples/invoices.csv

`due_local` with `zone` is when the reminder goes out: in the morning where the customer's day begins during
the Berlin night of 29 to 30 November 2026, in the late afternoon where it ends. No company here is a real
one, and every mail address is in a domain that RFC 2606 reserves.
"""

import csv
import random
import sys
from datetime import date, datetime, time, timedelta
from typing import NamedTuple

SEED = 20262075
INVOICES = 1000
EVENING, MORNING = date(2026, 11, 29), date(2026, 11, 30)
STEP = timedelta(minutes=5)


class Market(NamedTuple):
    """Customers of one zone: their share, the window of their reminders, how they are billed and named."""

    zone: str
    share: int
    day: date
    first: time
    last: time
    currency: str
    unit: float
    forms: tuple[str, ...]


MARKETS = (
    Market("Pacific/Auckland", 3, MORNING, time(9), time(11), "NZD", 1.7, ("Ltd",)),
    Market("Australia/Lord_Howe", 1, MORNING, time(8), time(10), "AUD", 1.6, ("Pty Ltd",)),
    Market("Australia/Sydney", 6, MORNING, time(8), time(10, 30), "AUD", 1.6, ("Pty Ltd",)),
    Market("Asia/Tokyo", 9, MORNING, time(8), time(10), "JPY", 160, ("KK", "GK")),
    Market("Asia/Singapore", 6, MORNING, time(8, 30), time(10), "SGD", 1.4, ("Pte Ltd",)),
    Market("Asia/Kathmandu", 1, MORNING, time(9), time(10), "NPR", 145, ("Pvt Ltd",)),
    Market("Asia/Kolkata", 9, MORNING, time(8), time(10), "INR", 92, ("Pvt Ltd", "LLP")),
    Market("Asia/Dubai", 3, MORNING, time(8), time(9), "AED", 4, ("FZE", "LLC")),
    Market("Africa/Nairobi", 3, MORNING, time(8), time(9, 30), "KES", 140, ("Ltd",)),
    Market("Europe/Helsinki", 4, MORNING, time(8), time(9), "EUR", 1, ("Oy",)),
    Market("Europe/Berlin", 18, MORNING, time(7), time(9), "EUR", 1, ("GmbH", "AG", "KG")),
    Market("Europe/London", 8, MORNING, time(7), time(8), "GBP", 0.85, ("Ltd", "LLP")),
    Market("America/Sao_Paulo", 5, EVENING, time(17), time(19), "BRL", 6, ("Ltda", "SA")),
    Market("America/St_Johns", 1, EVENING, time(17), time(18, 30), "CAD", 1.5, ("Inc",)),
    Market("America/New_York", 11, EVENING, time(16), time(19), "USD", 1.1, ("Inc", "LLC")),
    Market("America/Chicago", 5, EVENING, time(16), time(18, 30), "USD", 1.1, ("Inc", "LLC")),
    Market("America/Los_Angeles", 6, EVENING, time(16), time(18, 30), "USD", 1.1, ("Inc", "LLC")),
    Market("Pacific/Honolulu", 1, EVENING, time(16), time(18), "USD", 1.1, ("LLC",)),
)
FIRST = (
    "Amber", "Brass", "Cedar", "Cobalt", "Copper", "Delta", "Ember", "Fern", "Granite", "Harbour", "Indigo",
    "Juniper", "Kestrel", "Larch", "Maple", "Marble", "Meadow", "North", "Ochre", "Opal", "Pebble", "Quartz",
    "Ridge", "Saffron", "Slate", "Thistle", "Tidal", "Umber", "Velvet", "Willow",
)  # fmt: skip
SECOND = (
    "Anchor", "Bakery", "Bridge", "Ceramics", "Cycles", "Dairy", "Foods", "Forge", "Freight", "Garden",
    "Glass", "Heron", "Instruments", "Lantern", "Loom", "Mill", "Optics", "Orchard", "Paper", "Press", "Quay",
    "Roasters", "Sails", "Spring", "Studio", "Timber", "Tools", "Vineyard", "Works", "Yard",
)  # fmt: skip


def main() -> None:
    """Write the file to standard output."""
    chance = random.Random(SEED)
    names = chance.sample([(first, second) for first in FIRST for second in SECOND], 360)
    others = chance.choices(MARKETS, [market.share for market in MARKETS], k=len(names) - len(MARKETS))
    markets = [*MARKETS, *others]
    customers = [(market, *name) for market, name in zip(markets, names, strict=True)]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("invoice", "customer", "email", "amount", "currency", "due_local", "zone"))
    for number in range(1, INVOICES + 1):
        out.writerow((number, *row(chance, *chance.choice(customers))))


def row(chance: random.Random, market: Market, first: str, second: str) -> tuple[str, ...]:
    """Everything of an invoice but its number."""
    form = market.forms[len(first + second) % len(market.forms)]
    domain = ("example.com", "example.org", "example.net")[len(first) % 3]
    start, end = datetime.combine(market.day, market.first), datetime.combine(market.day, market.last)
    due = start + STEP * chance.randint(0, (end - start) // STEP)
    amount = min(chance.lognormvariate(6, 1.1), 40_000) * market.unit
    return (
        f"{first} {second} {form}",
        f"accounts.{first}.{second}@{domain}".lower(),
        f"{amount:.0f}" if market.currency == "JPY" else f"{amount:.2f}",
        market.currency,
        due.isoformat(),
        market.zone,
    )


if __name__ == "__main__":
    main()
