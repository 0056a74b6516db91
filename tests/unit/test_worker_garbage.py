"""A run that has ended leaves nothing to the garbage collector, which would look through all of them every now and
then while the worker's thread waits."""

from __future__ import annotations

import gc

from unit.shop import Shop, steps

from pipeline.lane import Flight
from pipeline.tray import Tray


def kept() -> list[Flight | Tray]:
    return [one for one in gc.get_objects() if isinstance(one, Flight | Tray)]


def test_an_attempt_that_has_ended_is_freed_without_the_collector() -> None:
    shop = Shop()
    worker = shop.worker()
    earlier = {id(one): one for one in kept()}  # of other tests; held, so that no id comes again
    gc.disable()
    try:
        for _ in range(5):
            shop.fire()
        steps(worker, 10)
        assert len(shop.terminal()) == 5
        shop.seen.clear()
        left = [type(one).__name__ for one in kept() if id(one) not in earlier]
    finally:
        gc.enable()
    assert left == []
